// Frontier of a job: computed when cheap or requested, shown as chart and table.

import { ApiError } from "./api_error.js";
import { fileButtons } from "./chart_files.js";
import { make, panelHead, setChildren, setText } from "./elements.js";
import { count, counted, jobTarget, joules, percent, percentAbove, seconds } from "./format.js";
import { FrontierChart } from "./frontier_chart.js";
import {
  frontierKey,
  MANY_INSTRUCTIONS,
  marksOf,
  NUM_POINTS,
  numInstructions,
  pointWords,
} from "./frontier_curve.js";
import { frontierLegend } from "./frontier_picture.js";
import { FrontierTarget } from "./frontier_target.js";
import { isOver } from "./job_words.js";
import { DetailsTable, makeRow } from "./tables.js";
import { themeColors } from "./theme.js";

/**
 * @import { Mark } from "./frontier_curve.js"
 * @import { PanelContext } from "./job_page.js"
 * @import { JobPageState } from "./job_state.js"
 * @import { CsvRow, LineName } from "./chart_files.js"
 * @import { FrontierPoint, JobFrontier } from "./wire_types.js"
 */

export class FrontierPanel {
  /** @param {HTMLElement} element @param {PanelContext} context */
  constructor(element, context) {
    this._element = element;
    this._context = context;
    /** @type {JobPageState | null} */
    this._state = null;
    /** @type {JobFrontier | null} */
    this._frontier = null;
    /** Key of the wanted frontier. @type {string | null} */
    this._key = null;
    /** Key of the frontier that is shown. @type {string | null} */
    this._foundKey = null;
    this._question = new AbortController();
    this._timer = 0;
    this._chart = new FrontierChart((point) => {
      if (this._frontier) this._target.confirm(point, this._frontier);
    });
    this._target = new FrontierTarget(
      context,
      () => this._chart.focus(),
      (point) => this._chart.setChosen(point),
    );
    const label = "Figures of the frontier";
    this._table = make("details.frontier-figures", { hidden: true });
    this._rows = new DetailsTable(this._table, `${label} as a table`, label, {
      caption: "One iteration; predicted unless marked as measured",
      heads: ["Plan", "Iteration time", "Energy", "Saving", "Time against baseline", "Gap"],
    });
    this._drawn = "";
    this._note = make("span.note");
    const hint = "Each point is a plan: choose one to run it.";
    this._hint = make("p.note.frontier-hint", { hidden: true }, hint);
    this._message = make("p.frontier-message");
    this._ask = make("button", { hidden: true, onclick: () => void this._solve() });
    this._legend = make("ul.frontier-legend");
    this._content = make("div", { hidden: true });
    const files = fileButtons({
      title: () => `Frontier, ${this._inForce()}`,
      rows: () => fileRows(this._frontier?.points ?? []),
      pictures: () => [this._chart.picture],
      legend: nameCurves,
    });
    files.hidden = true;
    this._files = files;
    setChildren(this._content, this._hint, this._legend, this._chart.element);
    setChildren(
      element,
      panelHead("Frontier", this._note, files),
      this._message,
      this._ask,
      this._content,
      this._target.element,
      this._table,
    );
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
    this._target.update(state, this._canChange());
    const reason = reasonForNone(state);
    if (reason !== null) {
      // Empty: the history comes in a moment.
      if (reason !== "") this._clear();
      if (this._frontier === null) this._tell(reason);
    } else if (frontierKey(state) !== this._key) {
      this._key = frontierKey(state);
      this._consider(state);
    }
    this._show();
  }

  /** Show nothing. */
  _clear() {
    this._question.abort();
    this._stopTimer();
    this._target.drop();
    this._key = null;
    this._drawn = "";
    this._frontier = null;
    this._ask.hidden = true;
    this._content.hidden = true;
    this._files.hidden = true;
    this._table.hidden = true;
    setText(this._note, "");
  }

  /** Return whether the job has changed since the shown frontier was computed. */
  _isStale() {
    return this._frontier !== null && this._foundKey !== this._key;
  }

  _canChange() {
    const { _state: state, _context: context } = this;
    return state !== null && !isOver(state.overview) && !context.api.isReadOnly;
  }

  _canChoose() {
    return this._canChange() && !this._isStale();
  }

  /** Compute the frontier, or offer that where it takes long. @param {JobPageState} state */
  _consider(state) {
    const instructions = numInstructions(state.overview);
    const isTooLate = isOver(state.overview);
    this._question.abort();
    // The plan to be confirmed is not one of the current plans.
    if (this._isStale()) this._target.drop();
    if (instructions <= MANY_INSTRUCTIONS && !isTooLate) {
      void this._solve();
      return;
    }
    this._stopTimer();
    const size = `${count(instructions)} instructions in an iteration`;
    this._offer(
      isTooLate
        ? "The job has ended; its frontier is computed on request."
        : `With ${size}, computing the frontier may take minutes.`,
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
    const { api, path, guard } = this._context;
    try {
      /** @type {JobFrontier} */
      const frontier = await api.get(`${path}/frontier?points=${NUM_POINTS}`, { signal });
      if (signal.aborted) return;
      this._stopTimer();
      this._frontier = frontier;
      this._foundKey = key;
      this._tell("");
      guard(() => this._show());
    } catch (error) {
      if (!signal.aborted) this._refuse(ApiError.from(error));
    }
  }

  /** @param {ApiError} error */
  _refuse({ status, detail }) {
    this._stopTimer();
    // Request it again once the planner responds.
    if (status === 0) this._key = null;
    this._offer(`The frontier could not be computed: ${detail}`, "Try again");
  }

  /** Show how long computing has taken, once a second. */
  _startTimer() {
    this._stopTimer();
    const begin_ms = Date.now();
    const tell = () => {
      const passed_s = Math.floor((Date.now() - begin_ms) / 1e3);
      const passed = passed_s < 2 ? "" : ` ${count(passed_s)} s so far`;
      this._tell(`Computing the frontier\u2026${passed}`);
    };
    this._timer = setInterval(tell, 1000);
    tell();
  }

  _stopTimer() {
    clearInterval(this._timer);
    this._timer = 0;
  }

  _show() {
    const { _frontier: frontier, _state: state } = this;
    if (!frontier || !state) return;
    const { points, solve_s } = frontier;
    const { emulated } = state.overview;
    const marks = marksOf(frontier, state);
    const canChoose = this._canChoose();
    const drawn = JSON.stringify([this._key, points[0], points.length, marks, canChoose]);
    if (drawn === this._drawn) return;
    this._drawn = drawn;
    this._content.hidden = false;
    this._files.hidden = false;
    this._table.hidden = false;
    this._chart.show({ frontier, marks, canChoose });
    setChildren(this._legend, ...frontierLegend(marks));
    this._rows.show(() => tableRows(frontier, marks));
    const gpus = emulated ? ", emulated GPUs" : "";
    const plans = counted(points.length, "plan");
    setText(this._note, `${plans}, computed in ${seconds(solve_s)}; predicted${gpus}`);
    this._hint.hidden = !canChoose;
  }

  /** Return the plan in force in words, for the title of the picture. */
  _inForce() {
    const job = this._state?.overview;
    return job?.active_version ? `v${job.active_version} in force: ${jobTarget(job)}` : "no plan in force";
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
    const isIdle = words !== "" && this._frontier === null && this._timer === 0;
    this._element.classList.toggle("idle", isIdle);
  }
}

/** Return why no frontier can be requested yet; null: one can. @param {JobPageState} state */
function reasonForNone({ overview, history }) {
  if (overview.state === "awaiting-profile")
    return "The frontier can be computed once the job has a profile.";
  if (overview.state === "profiling")
    return "The job is being profiled; its frontier can be computed afterwards.";
  // The history comes right after the overview.
  if (overview.newest_version !== null && history.length === 0) return "";
  return null;
}

/** @param {FrontierPoint[]} points @returns {CsvRow[]} */
function fileRows(points) {
  const heads = ["deadline_s", "iteration_time_s", "energy_j", "lower_bound_j", "gap_percent"];
  const names = /** @type {(keyof FrontierPoint)[]} */ (heads);
  return [heads, ...points.map((point) => names.map((name) => point[name]))];
}

/**
 * Return the figures of marks and plans as rows of a table.
 * @param {JobFrontier} frontier
 * @param {Mark[]} marks
 */
function tableRows({ points, baseline }, marks) {
  const compared = marks.map(({ kind, label, time_s, energy_j }) => {
    const figures = [label, seconds(time_s), joules(energy_j)];
    // The headline compares what was measured, with a measured baseline.
    if (kind === "measured") return [...figures, "\u2013", "\u2013", ""];
    const saved = percent(-percentAbove(energy_j, baseline.energy_j));
    const slower = percentAbove(time_s, baseline.iteration_time_s);
    return [...figures, saved, percent(slower, { signed: true, digits: 2 }), ""];
  });
  const plans = points.map((point, index) => {
    const { time, energy, saving, slowdown, gap } = pointWords(point, baseline);
    return [`frontier ${index + 1}`, time, energy, saving, slowdown, gap];
  });
  return [...compared, ...plans].map((texts) => makeRow(texts));
}

/** Return the curves of fixed clocks, which have no labels beside them. @returns {LineName[]} */
function nameCurves() {
  const { accent, "text-muted": muted } = themeColors("accent", "text-muted");
  return [
    { label: "one clock per stage", color: accent, dash: [1.5, 3] },
    { label: "one for all", color: muted, dash: [5, 3] },
  ];
}
