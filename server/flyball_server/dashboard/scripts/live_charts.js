// Live charts of a job's measured steps: time, energy, power and planned clocks of each stage.

import { ChartWindow, WINDOWS } from "./chart_window.js";
import { make, setAttribute, setChildren, setText } from "./elements.js";
import { counted, fixed } from "./format.js";
import { StepCharts } from "./step_charts.js";
import { stepsTable } from "./step_table.js";
import { stageText, stepText } from "./step_words.js";

/** @typedef {import("./job_state.js").JobPageState} JobPageState */

const ANNOUNCE_MS = 400;

/**
 * @param {HTMLElement} element
 * @param {import("./job_page.js").PanelContext} context
 * @returns {import("./job_page.js").Panel}
 */
export function createLiveCharts(element, context) {
  const panel = new LiveCharts(element, context);
  return {
    update: (state) => panel.update(state),
    destroy: () => panel.destroy(),
  };
}

class LiveCharts {
  /**
   * @param {HTMLElement} element
   * @param {import("./job_page.js").PanelContext} context
   */
  constructor(element, { announce }) {
    this.element = element;
    this.announce = announce;
    this.window = new ChartWindow();
    /** @type {JobPageState | null} */
    this.state = null;
    /** @type {StepCharts | null} */
    this.charts = null;
    /** @type {number | null} */
    this.cursor = null;
    /** @type {number | null} */
    this.stage = null;
    this.note = make("span", { class: "note" });
    this.windowButtons = WINDOWS.map((num_steps) =>
      make(
        "button",
        { type: "button", class: "choice", onclick: () => this.follow(num_steps) },
        String(num_steps),
      ),
    );
    const choices = make(
      "div",
      { class: "choices", role: "group", "aria-label": "Newest steps shown" },
      "newest ",
      ...this.windowButtons,
    );
    this.readout = make("p", { class: "readout" });
    this.slow = make("p", { class: "stragglers-note", hidden: true });
    this.none = make("p", { class: "note" }, "No step has been measured yet.");
    this.place = make("div", {
      class: "charts",
      tabindex: "0",
      role: "application",
      "aria-label":
        "Charts of measured steps. Left and right: from step to step. " +
        "Plus and minus: closer, further. Escape: the newest steps.",
      hidden: true,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    });
    this.table = stepsTable();
    setChildren(
      this.element,
      make("div", { class: "panel-head" }, make("h2", {}, "Measured steps"), this.note, choices),
      this.slow,
      this.readout,
      this.none,
      this.place,
      this.table.element,
    );
    this.showChoice();
  }

  destroy() {
    clearTimeout(this.speaking);
    this.charts?.destroy();
  }

  /** @param {JobPageState} state */
  update(state) {
    const old = this.state;
    this.state = state;
    const isSame =
      old !== null &&
      old.steps === state.steps &&
      old.history === state.history &&
      old.stragglers === state.stragglers &&
      old.overview.measured_baseline_time_s?.mean ===
        state.overview.measured_baseline_time_s?.mean &&
      old.overview.num_stages === state.overview.num_stages;
    if (!isSame) this.show();
  }

  show() {
    const { state } = this;
    if (state === null) return;
    const shown = this.window.shown(state.steps);
    this.showChoice();
    this.none.hidden = state.steps.length > 0;
    this.readout.hidden = state.steps.length === 0;
    this.place.hidden = state.steps.length === 0;
    setText(this.note, state.steps.length === 0 ? "" : noteOf(state));
    this.showStragglers(state);
    this.table.update(state);
    if (state.steps.length === 0) return;
    const charts = this.chartsFor(state.overview.num_stages);
    charts.show(shown, state);
    if (this.cursor !== null && !shown.some(({ step }) => step === this.cursor)) this.cursor = null;
    charts.setCursor(this.cursor);
    this.showReadout();
  }

  /**
   * @param {number} num_stages
   * @returns {StepCharts}
   */
  chartsFor(num_stages) {
    if (this.charts !== null && this.charts.num_stages === num_stages) return this.charts;
    this.charts?.destroy();
    this.charts = new StepCharts(this.place, num_stages, {
      onCursor: (step, stage) => this.pointAt(step, stage, false),
      onSelect: (from, to) => this.select(from, to),
    });
    return this.charts;
  }

  /** @param {JobPageState} state */
  showStragglers({ stragglers }) {
    this.slow.hidden = stragglers.length === 0;
    const told = stragglers.map(({ rank, slowdown, is_in_force }) => {
      const planned = is_in_force ? "" : " (not yet planned for)";
      return `rank ${rank} takes ${fixed(slowdown, 2)}\u00d7 as long${planned}`;
    });
    setText(this.slow, `\u25b2 Slow GPUs: ${told.join("; ")}`);
  }

  /**
   * @param {number | null} step
   * @param {number | null} stage that the pointer is on
   * @param {boolean} isTold to screen readers too
   */
  pointAt(step, stage, isTold) {
    if (this.cursor === step && this.stage === stage) return;
    this.cursor = step;
    this.stage = stage;
    this.charts?.setCursor(step);
    this.showReadout();
    if (!isTold) return;
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => this.announce(this.readout.textContent ?? ""), ANNOUNCE_MS);
  }

  showReadout() {
    const { state } = this;
    if (state === null) return;
    const newest = state.steps[state.steps.length - 1];
    const step = state.steps.find((each) => each.step === this.cursor) ?? newest;
    const lead = step === newest ? "Newest step" : "Step";
    const stage = this.stage;
    const atStage = step && stage !== null ? `; ${stageText(step, stage, state)}` : "";
    setText(this.readout, step === undefined ? "" : `${lead} ${stepText(step, state)}${atStage}`);
  }

  /** @param {number} num_steps */
  follow(num_steps) {
    this.window.followNewest(num_steps);
    this.show();
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  select(from, to) {
    if (this.state === null) return;
    this.window.choose(from, to, this.state.steps);
    this.show();
  }

  showChoice() {
    this.windowButtons.forEach((button, index) => {
      const isChosen = this.window.chosen === null && this.window.num_steps === WINDOWS[index];
      setAttribute(button, "aria-pressed", String(isChosen));
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.state === null) return;
    if (event.target !== this.place) return; // a legend's button
    const { steps } = this.state;
    const shown = this.window.shown(steps);
    const here = shown.findIndex(({ step }) => step === this.cursor);
    const last = shown.length - 1;
    const from = here < 0 ? last : here;
    /** @type {Record<string, number>} */
    const moves = {
      ArrowLeft: from - 1,
      ArrowRight: from + 1,
      PageUp: from - 10,
      PageDown: from + 10,
      Home: 0,
      End: last,
    };
    if (event.key in moves) {
      const index = here < 0 && event.key === "ArrowLeft" ? last : moves[event.key];
      this.pointAt(shown[Math.min(last, Math.max(0, index))]?.step ?? null, null, true);
    } else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "Escape" || event.key === "0") {
      this.pointAt(null, null, false);
      this.follow(this.window.num_steps);
    } else return;
    event.preventDefault();
  }

  /** @param {number} factor */
  zoom(factor) {
    if (this.state === null) return;
    this.window.zoom(factor, this.cursor, this.state.steps);
    this.show();
  }
}

/**
 * @param {JobPageState} state
 * @returns {string}
 */
function noteOf({ steps, overview }) {
  const gpus = overview.emulated ? "on emulated GPUs" : "on the ranks' GPUs";
  return `measured ${gpus}; ${counted(steps.length, "step")} here`;
}
