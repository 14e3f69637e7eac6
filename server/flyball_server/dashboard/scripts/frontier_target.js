// Changing the target from the frontier: confirm a point, or name a target; then follow the plan.

import { ApiError } from "./api_error.js";
import { make, setChildren, setText } from "./elements.js";
import { targetText } from "./format.js";
import { pointSentence, pointWords, targetOf } from "./frontier_curve.js";
import { progressOf } from "./target_progress.js";

/** @typedef {import("./job_state.js").JobPageState} JobPageState */
/** @typedef {import("./wire_types.js").FrontierPointView} FrontierPoint */
/** @typedef {import("./wire_types.js").ComparedPlanView} ComparedPlan */

/**
 * The targets by name; those with a unit take a figure.
 *
 * @type {{name: string, words: string, unit: string, target: (figure: number) => string}[]}
 */
const TARGETS = [
  { name: "fastest", words: "as fast as the baseline", unit: "", target: () => "fastest" },
  {
    name: "slowdown",
    words: "at most slower by",
    unit: "%",
    target: (percent) => `slowdown:${Number((percent / 100).toFixed(8))}`,
  },
  {
    name: "deadline",
    words: "at most this iteration time",
    unit: "s",
    target: (time_s) => `deadline:${time_s}`,
  },
  {
    name: "power",
    words: "at most this mean power",
    unit: "W",
    target: (power_w) => `power:${power_w}`,
  },
  {
    name: "least-energy",
    words: "least energy, whatever the time",
    unit: "",
    target: () => "least-energy",
  },
];

export class FrontierTarget {
  /**
   * @param {import("./job_page.js").PanelContext} context
   * @param {() => void} onLeft the confirmation was left: the focus goes back to the chart.
   * @param {(point: FrontierPoint | null) => void} onPoint which point is to be confirmed.
   */
  constructor(context, onLeft, onPoint) {
    this._context = context;
    this._onLeft = onLeft;
    this._onPoint = onPoint;
    /** @type {JobPageState | null} */
    this._state = null;
    /** @type {import("./target_progress.js").Asked | null} */
    this._asked = null;
    /** What is to be confirmed. @type {FrontierPoint | null} */
    this._point = null;
    this._isBusy = false;
    this._isGone = false;
    this._strip = make("div", {
      class: "frontier-confirm",
      role: "group",
      "aria-label": "Confirm the plan",
      hidden: true,
    });
    this._strip.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.leave();
    });
    this._progress = make("p", { class: "frontier-progress", role: "status" });
    this._inForce = make("span", { class: "note" });
    this._form = this._makeForm();
    this.element = make(
      "div",
      { class: "frontier-target" },
      this._strip,
      this._progress,
      this._form,
    );
  }

  destroy() {
    this._isGone = true;
  }

  /** @param {JobPageState} state @param {boolean} canChange */
  update(state, canChange) {
    this._state = state;
    this._form.hidden = !canChange;
    if (!canChange) this.drop();
    setText(
      this._inForce,
      `In force: policy ${state.overview.policy}, target ${targetText(state.overview.target)}`,
    );
    this._tellProgress();
  }

  /**
   * Ask whether to run a point's plan.
   *
   * @param {FrontierPoint} point
   * @param {ComparedPlan} baseline
   */
  confirm(point, baseline) {
    const { time, energy, saving, slowdown } = pointWords(point, baseline);
    const run = make(
      "button",
      {
        type: "button",
        class: "primary",
        disabled: this._isBusy,
        onclick: () => this._run(point),
      },
      "Run this plan",
    );
    const cancel = make("button", { type: "button", onclick: () => this.leave() }, "Cancel");
    const words = make(
      "p",
      {},
      make("strong", {}, "Run this: "),
      `${time}, ${energy}, saves ${saving}, ${slowdown} time against the baseline (predicted)`,
    );
    setChildren(this._strip, words, run, cancel);
    this._strip.hidden = false;
    this._point = point;
    this._onPoint(point);
    (this._isBusy ? cancel : run).focus();
    this._strip.scrollIntoView({ block: "nearest" });
    this._context.announce(`Run this plan? ${pointSentence(point, baseline)}`);
  }

  /** Without a change. */
  leave() {
    if (this._strip.hidden) return;
    this.drop();
    this._onLeft();
  }

  /** Likewise, the focus staying where it is. */
  drop() {
    this._strip.hidden = true;
    if (this._point === null) return;
    this._point = null;
    this._onPoint(null);
  }

  /** @param {FrontierPoint} point */
  async _run(point) {
    if (this._isBusy) return;
    const hadFocus = this._strip.contains(document.activeElement);
    const isDone = await this._put(targetOf(point));
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

  /**
   * @param {string} target
   * @returns {Promise<boolean>} whether the planner has taken it.
   */
  async _put(target) {
    const path = `api/v1/jobs/${encodeURIComponent(this._context.jobId)}`;
    const overview = this._state?.overview;
    const versionBefore = overview?.newest_version ?? null;
    // Named again, the job's policy would count as a change.
    const policy = overview?.policy === "frontier" ? {} : { policy: "frontier" };
    this._setBusy(true);
    this._asked = null;
    this._tell(`Planning for ${targetText(target)}\u2026`);
    try {
      /** @type {import("./wire_types.js").JobView} */
      const job = await this._context.api.put(`${path}/target`, { ...policy, target });
      const version = job.newest_version;
      const inForce = await this._otherTarget(path, target);
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
   * The target that a timetable has in force in the place of the job's own; null: none has;
   * undefined: it cannot be had. The job has its new target whatever comes of this question.
   *
   * @param {string} path of the job
   * @param {string} target
   * @returns {Promise<string | null | undefined>}
   */
  async _otherTarget(path, target) {
    try {
      /** @type {import("./wire_types.js").TimetableView} */
      const { timetable, target_in_force } = await this._context.api.get(`${path}/timetable`);
      return timetable !== null && target_in_force !== target ? target_in_force : null;
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
      button.disabled = isBusy && (button.type === "submit" || button.className === "primary");
    }
  }

  /** @returns {HTMLElement} */
  _makeForm() {
    const select = /** @type {HTMLSelectElement} */ (
      make(
        "select",
        { name: "target" },
        ...TARGETS.map(({ name, words }) => make("option", { value: name }, `${name}: ${words}`)),
      )
    );
    const figure = /** @type {HTMLInputElement} */ (
      make("input", {
        type: "number",
        name: "figure",
        min: 0,
        step: "any",
        required: true,
        autocomplete: "off",
      })
    );
    const unit = make("span", {});
    const figureLabel = make("label", { class: "frontier-figure" }, figure, unit);
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
    const form = make(
      "form",
      { class: "frontier-form" },
      make("label", {}, "Target ", select),
      figureLabel,
      submit,
      this._inForce,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this._isBusy) void this._put(TARGETS[select.selectedIndex].target(figure.valueAsNumber));
    });
    return form;
  }
}

/** @param {string} target @param {ApiError} error */
function refusal(target, { status, detail }) {
  if (status === 422)
    return `No plan for ${target}: ${detail}. The older plan holds.`.replaceAll("..", ".");
  if (status === 403) return `This token may not change the target: ${detail}`;
  // Nobody has answered, or a proxy has not waited until the planner was done.
  if ([0, 502, 504].includes(status))
    return `The target may or may not have changed: ${detail}`;
  return `The target was not changed: ${detail}`;
}
