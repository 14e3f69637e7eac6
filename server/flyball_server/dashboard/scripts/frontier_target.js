// Changing the target from the frontier: confirm a point or name a target, then follow the plan.

import { ApiError } from "./api_error.js";
import { make, setChildren, setText } from "./elements.js";
import { counted, jobTarget, targetText } from "./format.js";
import { deadlineOf, pointSentence, pointWords, targetOf } from "./frontier_curve.js";
import { isOver } from "./job_words.js";

/**
 * @import { PanelContext } from "./job_page.js"
 * @import { JobPageState } from "./job_state.js"
 * @import { FrontierPoint, JobFrontier, JobOverview, TimetableStatus } from "./wire_types.js"
 */

/** Targets by name; those with a unit take a figure in it. */
const TARGETS = [
  { name: "fastest", words: "as fast as the baseline", unit: "" },
  { name: "slowdown", words: "at most slower by", unit: "%" },
  { name: "deadline", words: "at most this iteration time", unit: "s" },
  { name: "power", words: "at most this mean power", unit: "W" },
  { name: "least-energy", words: "least energy, whatever the time", unit: "" },
];

export class FrontierTarget {
  /**
   * @param {PanelContext} context
   * @param {() => void} onLeft moves the focus back to the chart
   * @param {(point: FrontierPoint | null) => void} onPoint marks the point to be confirmed
   */
  constructor(context, onLeft, onPoint) {
    this._context = context;
    this._onLeft = onLeft;
    this._onPoint = onPoint;
    /** @type {JobPageState | null} */
    this._state = null;
    /** @type {Asked | null} */
    this._asked = null;
    /** Newest version in the planner's last answer. */
    this._answered = 0;
    /** Point to be confirmed. @type {FrontierPoint | null} */
    this._point = null;
    this._isBusy = false;
    this._isGone = false;
    const label = { role: "group", "aria-label": "Confirm the plan" };
    this._strip = make("div.frontier-confirm", { ...label, hidden: true });
    this._strip.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.leave();
    });
    this._progress = make("p.frontier-progress", { role: "status" });
    this._inForce = make("span.note");
    this._form = this._makeForm();
    const words = "This token is read-only: it shows the job and cannot change its target.";
    this._readOnly = make("p.note", { hidden: true }, words);
    const parts = [this._strip, this._progress, this._readOnly, this._form];
    this.element = make("div.frontier-target", ...parts);
  }

  destroy() {
    this._isGone = true;
  }

  /** @param {JobPageState} state @param {boolean} canChange */
  update(state, canChange) {
    this._state = state;
    this._form.hidden = !canChange;
    this._readOnly.hidden = !this._context.api.isReadOnly;
    if (!canChange) this.drop();
    const { overview } = state;
    setText(this._inForce, `In force: policy ${overview.policy}, target ${jobTarget(overview)}`);
    this._tellProgress();
  }

  /**
   * Ask whether to run a point's plan.
   * @param {FrontierPoint} point
   * @param {JobFrontier} frontier
   */
  confirm(point, frontier) {
    const { baseline, points } = frontier;
    const index = points.indexOf(point);
    /** @param {string} words @param {FrontierPoint | undefined} other */
    const neighbour = (words, other) =>
      other && make("button", { onclick: () => this.confirm(other, frontier) }, words);
    const { time, energy, saving, slowdown } = pointWords(point, baseline);
    /** @param {string} target */
    const action = (target) => ({
      disabled: this._isBusy,
      onclick: () => this._run(point, target),
    });
    const run = make("button.primary", action(targetOf(point, baseline)), "Run this plan");
    const keep = make("button.keep", action(deadlineOf(point)), "Keep this deadline");
    keep.title = "Also when a GPU becomes slower, as long as a plan can";
    const cancel = make("button", { onclick: () => this.leave() }, "Cancel");
    const change = `saves ${saving}, ${slowdown} time against the baseline (predicted)`;
    const words = `${time}, ${energy}, ${change}`;
    setChildren(
      this._strip,
      make("p", make("strong", "Run this: "), words),
      run,
      keep,
      neighbour("Faster plan", points[index - 1]),
      neighbour("Slower plan", points[index + 1]),
      cancel,
    );
    this._strip.hidden = false;
    this._point = point;
    this._onPoint(point);
    (this._isBusy ? cancel : run).focus();
    this._strip.scrollIntoView({ block: "nearest" });
    this._context.announce(`Run this plan? ${pointSentence(point, baseline)}`);
  }

  /** Close the confirmation without a change. */
  leave() {
    if (this._strip.hidden) return;
    this.drop();
    this._onLeft();
  }

  /** Close the confirmation; the focus stays where it is. */
  drop() {
    this._strip.hidden = true;
    if (this._point === null) return;
    this._point = null;
    this._onPoint(null);
  }

  /** @param {FrontierPoint} point @param {string} target */
  async _run(point, target) {
    if (this._isBusy) return;
    const hadFocus = this._strip.contains(document.activeElement);
    const isDone = await this._put(target);
    // Another point may have been chosen meanwhile, or none.
    if (this._isGone || this._point !== point) return;
    if (!isDone) {
      // A button that was busy has lost the focus.
      if (hadFocus) this._strip.querySelector("button")?.focus();
      return;
    }
    this.drop();
    if (hadFocus) this._onLeft();
  }

  /** @param {string} target @returns {Promise<boolean>} true: the planner has accepted it */
  async _put(target) {
    const { api, path } = this._context;
    const overview = this._state?.overview;
    // The page may not have seen the version of the answer before yet.
    const versionBefore = Math.max(overview?.newest_version ?? 0, this._answered) || null;
    // A policy that is named counts as a change.
    const policy = overview?.policy === "frontier" ? {} : { policy: "frontier" };
    this._setBusy(true);
    this._asked = null;
    this._tell(`Planning for ${targetText(target)}\u2026`);
    try {
      /** @type {Pick<JobOverview, "newest_version">} */
      const job = await api.put(`${path}/target`, { ...policy, target });
      const version = job.newest_version;
      this._answered = version ?? 0;
      const inForce = await this._otherTarget(target);
      this._asked = { target, versionBefore, version, inForce };
    } catch (error) {
      this._tell(refusal(targetText(target), ApiError.from(error)), true);
      return false;
    } finally {
      this._setBusy(false);
    }
    this._tellProgress();
    return true;
  }

  /**
   * Request the target that a timetable has in force instead of the job's own; null: none;
   * undefined: not known.
   * @param {string} target
   */
  async _otherTarget(target) {
    const { api, path } = this._context;
    try {
      /** @type {TimetableStatus} */
      const { timetable, current_target } = await api.get(`${path}/timetable`);
      return timetable !== null && current_target !== target ? current_target : null;
    } catch {
      return undefined;
    }
  }

  _tellProgress() {
    if (!this._asked || !this._state) return;
    const { words, isOver } = progressOf(this._asked, this._state);
    this._tell(words);
    if (isOver) this._asked = null;
  }

  /** @param {string} words @param {boolean} [isProblem] */
  _tell(words, isProblem = false) {
    if (this._isGone) return;
    setText(this._progress, words);
    this._progress.classList.toggle("problem", isProblem);
  }

  /** @param {boolean} isBusy */
  _setBusy(isBusy) {
    this._isBusy = isBusy;
    for (const button of this.element.querySelectorAll("button")) {
      const plans = button.type === "submit" || ["primary", "keep"].includes(button.className);
      button.disabled = isBusy && plans;
    }
  }

  _makeForm() {
    const options = TARGETS.map(({ name, words }) =>
      make("option", { value: name }, `${name}: ${words}`),
    );
    const select = make("select", { name: "target" }, ...options);
    const range = { min: 0, step: "any", required: true };
    const figure = make("input", { type: "number", name: "figure", ...range, autocomplete: "off" });
    const unit = make("span");
    const figureLabel = make("label.frontier-figure", figure, unit);
    const onSelect = () => {
      const chosen = TARGETS[select.selectedIndex];
      figureLabel.hidden = chosen.unit === "";
      figure.disabled = figureLabel.hidden;
      setText(unit, chosen.unit);
      figure.setAttribute("aria-label", `${chosen.words}, ${chosen.unit}`);
    };
    select.addEventListener("change", onSelect);
    onSelect();
    const submit = make("button", { type: "submit" }, "Plan for it");
    const selectLabel = make("label", "Target ", select);
    const form = make("form.frontier-form", selectLabel, figureLabel, submit, this._inForce);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const { name, unit } = TARGETS[select.selectedIndex];
      const value = `${figure.valueAsNumber}${unit === "%" ? unit : ""}`;
      if (!this._isBusy) void this._put(unit === "" ? name : `${name}:${value}`);
    });
    return form;
  }
}

/** @param {string} target @param {ApiError} error */
function refusal(target, { status, detail }) {
  if (status === 422)
    return `No plan for ${target}: ${detail}. The older plan holds.`.replaceAll("..", ".");
  if (status === 403) return `This token may not change the target: ${detail}`;
  // No answer, or a proxy's timeout.
  if ([0, 502, 504].includes(status)) return `The target may or may not have changed: ${detail}`;
  return `The target was not changed: ${detail}`;
}

/**
 * Target that the planner has accepted.
 * @typedef {object} Asked
 * @property {string} target
 * @property {number | null} versionBefore newest version before the request
 * @property {number | null} version newest version in the planner's answer
 * @property {string | null | undefined} inForce target that a timetable has in force instead;
 *   null: none; undefined: not known
 */

/**
 * @param {Asked} asked
 * @param {JobPageState} state
 * @returns {{words: string, isOver: boolean}} `isOver`: nothing more follows
 */
export function progressOf(asked, { overview, history }) {
  const { versionBefore, version, inForce } = asked;
  const target = targetText(asked.target);
  if (typeof inForce === "string") {
    const other = `The timetable has ${targetText(inForce)} in force`;
    return over(
      `${target} is the job's own target now. ${other}; outside its windows the new one holds.`,
    );
  }
  if (version === null)
    return over(`${target} is the job's target now. It is planned as soon as there is a profile.`);
  if (version === versionBefore) {
    return over(
      inForce === null
        ? `The job was planned for ${target} already: version ${version} stays.`
        : `${target} is the job's own target now: version ${version} stays.`,
    );
  }
  const plan = history.find((each) => each.version === version);
  if (plan && plan.first_step !== null) {
    return over(`Version ${version} holds from step ${plan.first_step}.`);
  }
  if (overview.active_version !== null && overview.active_version > version) {
    return over(`Version ${overview.active_version} has replaced version ${version}.`);
  }
  if (isOver(overview)) return over(`The job has ended; version ${version} was never active.`);
  return { words: `Version ${version} is made. ${waitingWords(overview)}`, isOver: false };
}

/** @param {JobOverview} overview */
function waitingWords({ num_ranks, num_present }) {
  const ranks = counted(num_ranks, "rank");
  if (num_present < num_ranks) {
    return `It takes effect when ${ranks} have it; of these, ${num_present} are present.`;
  }
  return `It waits until ${ranks} have it.`;
}

/** @param {string} words */
function over(words) {
  return { words, isOver: true };
}
