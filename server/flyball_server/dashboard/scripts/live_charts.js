// Live charts of a job's measured steps: time, energy, power and planned clocks of each stage.

import { hasModifier, make, panelHead, setAttribute, setChildren, setText } from "./elements.js";
import { count, counted, joules, megahertz, seconds, watts } from "./format.js";
import { StepCharts } from "./step_charts.js";
import { otherMisses, versionOf } from "./step_series.js";
import { DetailsTable, makeRow } from "./tables.js";

/**
 * @import { PanelContext } from "./job_page.js"
 * @import { JobPageState } from "./job_state.js"
 * @import { StagesOfStep } from "./wire_types.js"
 */

const ANNOUNCE_MS = 400;

export class LiveCharts {
  /** @param {HTMLElement} element @param {PanelContext} context */
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
    this.note = make("span.note");
    this.windowButtons = WINDOWS.map((num_steps) =>
      make("button.choice", { onclick: () => this.follow(num_steps) }, String(num_steps)),
    );
    const label = { role: "group", "aria-label": "Newest steps shown" };
    const choices = make("div.choices", label, "newest ", ...this.windowButtons);
    this.readout = make("p.readout");
    this.none = make("p.note");
    this.place = make("div.charts", {
      tabindex: "0",
      role: "application",
      "aria-label":
        "Charts of measured steps. Left and right: from step to step. " +
        "Plus and minus: closer, further. Escape: the newest steps.",
      hidden: true,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    });
    this.stagePlace = make("div.charts.stage-charts");
    this.stages = make(
      "section.panel.panel-stages",
      panelHead("Stages", make("span.note", "a row is a stage; a click shows its clock")),
      this.stagePlace,
    );
    element.after(this.stages);
    this.table = stepsTable();
    setChildren(
      this.element,
      panelHead("Measured steps", this.note, choices),
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
    this.stages.remove();
  }

  /** @param {JobPageState} state */
  update(state) {
    const old = this.state && shownParts(this.state);
    this.state = state;
    if (!shownParts(state).every((part, index) => part === old?.[index])) this.show();
  }

  show() {
    const { state } = this;
    if (state === null) return;
    const shown = this.window.shown(state.steps);
    const isEmpty = state.steps.length === 0;
    this.showChoice();
    this.none.hidden = !isEmpty;
    // Steps come right after the overview.
    const isLoading = state.overview.num_steps > 0;
    setText(this.none, isLoading ? "Loading\u2026" : "No step has been measured yet.");
    this.readout.hidden = isEmpty;
    this.place.hidden = isEmpty;
    this.stages.hidden = isEmpty;
    setText(this.note, isEmpty ? "" : noteOf(state));
    this.table.update(state);
    if (isEmpty) return;
    const charts = this.chartsFor(state.overview.num_stages);
    charts.show(shown, state);
    if (this.cursor !== null && !shown.some(({ step }) => step === this.cursor)) this.cursor = null;
    charts.setCursor(this.cursor);
    this.showReadout();
  }

  /** @param {number} num_stages */
  chartsFor(num_stages) {
    if (this.charts !== null && this.charts.num_stages === num_stages) return this.charts;
    this.charts?.destroy();
    this.charts = new StepCharts(this.place, this.stagePlace, num_stages, {
      onCursor: (step, stage) => this.pointAt(step, stage, false),
      onSelect: (from, to) => {
        this.window.choose(from, to, this.state?.steps ?? []);
        this.show();
      },
    });
    return this.charts;
  }

  /**
   * @param {number | null} step
   * @param {number | null} stage under the pointer
   * @param {boolean} isAnnounced to screen readers
   */
  pointAt(step, stage, isAnnounced) {
    if (this.cursor === step && this.stage === stage) return;
    this.cursor = step;
    this.stage = stage;
    this.charts?.setCursor(step);
    this.showReadout();
    if (!isAnnounced) return;
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

  showChoice() {
    this.windowButtons.forEach((button, index) => {
      const isChosen = this.window.chosen === null && this.window.num_steps === WINDOWS[index];
      setAttribute(button, "aria-pressed", String(isChosen));
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    // Other targets are buttons of legends.
    if (hasModifier(event) || this.state === null || event.target !== this.place) return;
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
    this.window.zoom(factor, this.cursor, this.state?.steps ?? []);
    this.show();
  }
}

/** Return the parts of the state that the charts show. @param {JobPageState} state */
function shownParts({ steps, history, stragglers, overview }) {
  const { measured_baseline_time_s, num_stages } = overview;
  return [steps, history, stragglers, measured_baseline_time_s?.mean, num_stages];
}

/** @param {JobPageState} state */
function noteOf({ steps, overview }) {
  const gpus = overview.emulated ? "on emulated GPUs" : "on the ranks' GPUs";
  return `measured ${gpus}; ${counted(steps.length, "step")} here`;
}

export const WINDOWS = [100, 500, 2000];
const LEAST_STEPS = 4;

export class ChartWindow {
  constructor() {
    this.num_steps = WINDOWS[1];
    /** @type {[number, number] | null} null: the newest */
    this.chosen = null;
  }

  /** @param {number} num_steps */
  followNewest(num_steps = this.num_steps) {
    this.num_steps = num_steps;
    this.chosen = null;
  }

  /**
   * @param {number} from step, perhaps between two
   * @param {number} to
   * @param {StagesOfStep[]} steps rising
   */
  choose(from, to, steps) {
    const inside = steps.filter(({ step }) => step >= from && step <= to);
    if (inside.length < LEAST_STEPS) return;
    this.chosen = [inside[0].step, inside[inside.length - 1].step];
  }

  /**
   * Zoom in or out.
   * @param {number} factor below 1: closer
   * @param {number | null} around step; null: the middle
   * @param {StagesOfStep[]} steps rising
   */
  zoom(factor, around, steps) {
    const shown = this.shown(steps);
    if (shown.length === 0) return;
    const first = shown[0].step;
    const last = shown[shown.length - 1].step;
    const centre = around ?? (first + last) / 2;
    this.choose(centre - factor * (centre - first), centre + factor * (last - centre), steps);
  }

  /** Return the steps to show. @param {StagesOfStep[]} steps rising @returns {StagesOfStep[]} */
  shown(steps) {
    if (this.chosen === null) return steps.slice(-this.num_steps);
    const [from, to] = this.chosen;
    const inside = steps.filter(({ step }) => step >= from && step <= to);
    if (inside.length > 0) return inside;
    // The chosen steps are too old: the page has dropped them.
    this.followNewest();
    return this.shown(steps);
  }
}

const ROWS = 20;
const CELLS = ["td", "td.number", "td.number", "td.number", "td"];
/** @returns {{element: HTMLElement, update(state: JobPageState): void}} */
export function stepsTable() {
  const summary = `The newest ${ROWS} steps as a table, measured`;
  const table = new DetailsTable(make("details.steps-table"), summary, "Newest steps", {
    selector: "table.steps",
    heads: ["Step", "Plan", "Time", "Energy", "Mean power", "Held back"],
  });
  return {
    element: table.element,
    update(state) {
      table.element.hidden = state.steps.length === 0;
      const newest = state.steps.slice(-ROWS).reverse();
      table.show(() => newest.map((step) => makeRow(rowTexts(step, state), CELLS)));
    },
  };
}

/** @param {StagesOfStep} step @param {JobPageState} state */
function rowTexts(step, state) {
  // The energy of some ranks is not the energy of an iteration.
  const energy_j = step.num_ranks < state.overview.num_ranks ? null : step.energy_j;
  return [
    count(step.step),
    versionText(step, state),
    seconds(step.time_s),
    joules(energy_j),
    watts(energy_j === null ? null : energy_j / step.time_s),
    heldBackText(step) || "\u2013",
  ];
}

/** @param {StagesOfStep} step @param {JobPageState} state */
export function stepText(step, state) {
  const parts = [`${count(step.step)}: ${versionText(step, state)}`, seconds(step.time_s)];
  if (step.num_ranks < state.overview.num_ranks) {
    parts.push(`${step.num_ranks} of ${state.overview.num_ranks} ranks so far`);
  } else if (step.energy_j === null) parts.push("energy not read");
  else parts.push(joules(step.energy_j), watts(step.energy_j / step.time_s));
  const held = heldBackText(step);
  if (held !== "") parts.push(held);
  return parts.join("; ");
}

/** @param {StagesOfStep} step @param {JobPageState} state */
function versionText(step, { history }) {
  const names = [
    ...step.plan_versions.map((each) => (each === null ? "no plan" : `v${each}`)),
    ...step.unknown_versions.map((each) => `unknown v${each}`),
  ].join(" and ");
  const version = versionOf(step);
  if (version === "unknown") return `${names}, not counted`;
  if (version === "mixed") return `mixed, ${names}`;
  if (version === null) return "default clocks";
  const kind = history.find((plan) => plan.version === version)?.kind ?? "plan";
  return kind === "plan" ? `v${version}` : `v${version}, ${kind}`;
}

/**
 * Return the stages whose clocks were held back, with count and reason; empty: none.
 * @param {StagesOfStep} step
 */
function heldBackText({ stages }) {
  return stages
    .flatMap((each) => {
      const { stage, num_power_capped, num_thermally_capped } = each;
      const other = otherMisses(each);
      const reasons = [
        num_power_capped > 0 ? `${num_power_capped}\u00d7 by power` : "",
        num_thermally_capped > 0 ? `${num_thermally_capped}\u00d7 by heat` : "",
        other > 0 ? `${other}\u00d7 cause unknown` : "",
      ].filter(Boolean);
      return reasons.length === 0 ? [] : [`stage ${stage} held back ${reasons.join(", ")}`];
    })
    .join("; ");
}

/**
 * Return the figures of one stage in a step: power, planned and measured clock.
 * @param {StagesOfStep} step
 * @param {number} stage
 * @param {JobPageState} state
 */
export function stageText(step, stage, { history }) {
  const measured = step.stages.find((each) => each.stage === stage);
  if (measured === undefined) return `stage ${stage}: not posted`;
  const power =
    measured.energy_j === null ? "energy not read" : watts(measured.energy_j / measured.time_s);
  const plan = history.find((each) => each.version === versionOf(step));
  const clock = plan?.stage_clock_mhz[stage];
  const clocks = [
    clock === undefined ? "" : `planned ${megahertz(clock)} on average`,
    measured.sm_clock_mhz === null ? "" : `measured ${megahertz(measured.sm_clock_mhz)}`,
  ].filter(Boolean);
  return [`stage ${stage}: ${power}`, ...clocks].join(", ");
}
