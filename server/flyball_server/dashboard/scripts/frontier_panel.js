// The job page's frontier: asks for it when that is cheap or wanted, shows it, lets a plan be chosen.

import { ApiError } from "./api_error.js";
import { make, setChildren, setText } from "./elements.js";
import { count, counted, seconds } from "./format.js";
import { FrontierChart } from "./frontier_chart.js";
import {
  MANY_INSTRUCTIONS,
  NUM_POINTS,
  frontierKey,
  marksOf,
  numInstructions,
} from "./frontier_curve.js";
import { showFrontierLegend } from "./frontier_legend.js";
import { FrontierTable } from "./frontier_table.js";
import { FrontierTarget } from "./frontier_target.js";
import { isOver } from "./job_words.js";

/** @typedef {import("./job_state.js").JobPageState} JobPageState */
/** @typedef {import("./wire_types.js").FrontierView} FrontierView */

/**
 * @param {HTMLElement} element
 * @param {import("./job_page.js").PanelContext} context
 * @returns {import("./job_page.js").Panel}
 */
export function createFrontierPanel(element, context) {
  const panel = new FrontierPanel(element, context);
  return { update: (state) => panel.update(state), destroy: () => panel.destroy() };
}

class FrontierPanel {
  /**
   * @param {HTMLElement} element
   * @param {import("./job_page.js").PanelContext} context
   */
  constructor(element, context) {
    this._context = context;
    /** @type {JobPageState | null} */
    this._state = null;
    /** @type {FrontierView | null} */
    this._frontier = null;
    /** What the frontier is wanted for. @type {string | null} */
    this._key = null;
    /** What the one that is shown was found for. @type {string | null} */
    this._foundKey = null;
    this._question = new AbortController();
    this._timer = 0;
    this._chart = new FrontierChart((point) => {
      if (this._frontier) this._target.confirm(point, this._frontier.baseline);
    });
    this._target = new FrontierTarget(
      context,
      () => this._chart.focus(),
      (point) => this._chart.setChosen(point),
    );
    this._table = new FrontierTable();
    this._drawn = "";
    this._note = make("span", { class: "note" });
    this._hint = make("p", { class: "note frontier-hint" });
    this._message = make("p", { class: "frontier-message" });
    this._ask = make(
      "button",
      { type: "button", hidden: true, onclick: () => void this._solve() },
      "Compute the frontier",
    );
    this._legend = make("ul", { class: "frontier-legend" });
    this._content = make("div", { hidden: true }, this._hint, this._legend, this._chart.element);
    setChildren(
      element,
      make("div", { class: "panel-head" }, make("h2", {}, "Frontier"), this._note),
      this._message,
      this._ask,
      this._content,
      this._target.element,
      this._table.element,
    );
    this._table.element.hidden = true;
  }

  destroy() {
    this._question.abort();
    clearInterval(this._timer);
    this._chart.destroy();
    this._target.destroy();
  }

  /** @param {JobPageState} state */
  update(state) {
    this._state = state;
    this._target.update(state, !isOver(state.overview));
    const reason = reasonForNone(state);
    if (reason !== null) {
      // Empty: which frontier there is will be known in a moment.
      if (reason !== "") this._clear();
      if (this._frontier === null) this._tell(reason);
    } else if (frontierKey(state) !== this._key) {
      this._key = frontierKey(state);
      this._consider(state);
    }
    this._show();
  }

  /** Nothing is shown. */
  _clear() {
    this._question.abort();
    this._stopTimer();
    this._target.drop();
    this._key = null;
    this._drawn = "";
    this._frontier = null;
    this._ask.hidden = true;
    this._content.hidden = true;
    this._table.element.hidden = true;
    setText(this._note, "");
  }

  /** Whether something has changed since the frontier that is shown was found. */
  _isStale() {
    return this._frontier !== null && this._foundKey !== this._key;
  }

  _canChoose() {
    return this._state !== null && !isOver(this._state.overview) && !this._isStale();
  }

  /** Solve at once, or offer it. @param {JobPageState} state */
  _consider(state) {
    const instructions = numInstructions(state.overview);
    const isTooLate = isOver(state.overview);
    this._question.abort();
    // What was about to be confirmed is none of the plans that there are now.
    if (this._isStale()) this._target.drop();
    if (instructions <= MANY_INSTRUCTIONS && !isTooLate) {
      void this._solve();
      return;
    }
    this._stopTimer();
    this._offer(
      isTooLate
        ? "The job has ended; its frontier is computed on request."
        : `An iteration has ${count(instructions)} instructions or more: computing the frontier may take minutes.`,
      "Compute the frontier",
    );
  }

  async _solve() {
    this._question.abort();
    this._question = new AbortController();
    const { signal } = this._question;
    const key = this._key;
    this._ask.hidden = true;
    this._startTimer();
    const path = `api/v1/jobs/${encodeURIComponent(this._context.jobId)}/frontier?points=${NUM_POINTS}`;
    /** @type {FrontierView} */
    let frontier;
    try {
      frontier = await this._context.api.get(path, { signal });
    } catch (error) {
      if (!signal.aborted) this._refuse(ApiError.from(error));
      return;
    }
    if (signal.aborted) return;
    this._stopTimer();
    this._frontier = frontier;
    this._foundKey = key;
    this._tell("");
    this._context.guard(() => this._show());
  }

  /** @param {ApiError} error */
  _refuse({ status, detail }) {
    this._stopTimer();
    // Once the planner is there again, it is asked again.
    if (status === 0) this._key = null;
    this._offer(`The frontier could not be computed: ${detail}`, "Try again");
  }

  /** Says for how long it has been solving; not to screen readers, second by second. */
  _startTimer() {
    this._stopTimer();
    const begin_ms = Date.now();
    const tell = () => {
      const passed_s = Math.floor((Date.now() - begin_ms) / 1e3);
      this._tell(
        passed_s < 2
          ? "Computing the frontier\u2026"
          : `Computing the frontier\u2026 ${count(passed_s)} s so far`,
      );
    };
    tell();
    this._timer = setInterval(tell, 1000);
  }

  _stopTimer() {
    clearInterval(this._timer);
  }

  _show() {
    if (!this._frontier || !this._state) return;
    const marks = marksOf(this._frontier, this._state);
    const canChoose = this._canChoose();
    const drawn = JSON.stringify([
      this._key,
      this._frontier.points[0],
      this._frontier.points.length,
      marks,
      canChoose,
    ]);
    if (drawn === this._drawn) return;
    this._drawn = drawn;
    this._content.hidden = false;
    this._table.element.hidden = false;
    const outside = this._chart.show({ frontier: this._frontier, marks, canChoose });
    showFrontierLegend(this._legend, marks, this._state.overview.emulated);
    this._table.show(this._frontier, marks);
    const gpus = this._state.overview.emulated ? ", emulated GPUs" : "";
    setText(
      this._note,
      `${counted(this._frontier.points.length, "plan")}, computed in ${seconds(this._frontier.solve_s)}; predicted${gpus}`,
    );
    const choose = canChoose ? "Each point is a plan: choose one to run it. " : "";
    setText(
      this._hint,
      choose + outside.map(({ words }) => `Outside the chart: ${words}.`).join(" "),
    );
    this._hint.hidden = this._hint.textContent === "";
  }

  /** @param {string} words @param {string} button */
  _offer(words, button) {
    this._tell(words);
    setText(this._ask, button);
    this._ask.hidden = false;
  }

  /** @param {string} words */
  _tell(words) {
    const lead = this._isStale() ? "The job has changed since this frontier was computed. " : "";
    setText(this._message, words && lead + words);
    this._message.hidden = words === "";
  }
}

/**
 * Why there is no frontier to ask for yet; null: there is one.
 *
 * @param {JobPageState} state
 * @returns {string | null}
 */
function reasonForNone({ overview, history }) {
  if (overview.state === "awaiting-profile")
    return "The frontier can be computed once the job has a profile.";
  if (overview.state === "profiling")
    return "The job is being profiled; its frontier can be computed afterwards.";
  // What it is found for is told by the history, which comes right after the overview.
  if (overview.newest_version !== null && history.length === 0) return "";
  return null;
}
