// The view of one job: follows its live events and hands what it knows to the panels.

import { ApiError } from "./api.js";
import { make, setChildren } from "./elements.js";
import { createFiguresPanel } from "./figures_panel.js";
import { createFrontierPanel } from "./frontier_panel.js";
import { createHistoryPanel } from "./history_panel.js";
import { createJobHead } from "./job_head.js";
import { afterEvent, withSteps } from "./job_state.js";
import { troubleText } from "./jobs_page.js";
import { createLiveCharts } from "./live_charts.js";
import { refusalNotice } from "./refusal_notice.js";
import { createStragglersPanel } from "./stragglers_panel.js";
import { createTimelinePanel } from "./timeline_panel.js";

/**
 * @typedef {import("./job_state.js").JobPageState} JobPageState
 * @typedef {import("./wire_types.js").StagesOfStep} StagesOfStep
 *
 * Arguments of a panel beside its element.
 * @typedef {object} PanelContext
 * @property {import("./api.js").Api} api
 * @property {string} jobId
 * @property {(text: string) => void} announce
 * @property {(action: () => void) => void} guard runs what is done later than in an update: where it
 *   throws, the panel says that it has failed
 *
 * @typedef {{update(state: JobPageState): void, destroy(): void}} Panel
 *
 * @typedef {object} Gap
 * @property {number} after steps after this one are to be asked for
 * @property {number} last the newest that was known
 * @property {number} told from this step on the events have told
 */

// So many steps of single stages are asked for beside those that the events begin with.
const FIRST_STAGE_STEPS = 16_000;
const FIRST_STEPS = 2000;

/** @type {[string, (element: HTMLElement, context: PanelContext) => Panel][]} */
const PANELS = [
  ["job", createJobHead],
  ["figures", createFiguresPanel],
  ["frontier", createFrontierPanel],
  ["stragglers", createStragglersPanel],
  ["charts", createLiveCharts],
  ["timeline", createTimelinePanel],
  ["history", createHistoryPanel],
];

/**
 * @param {HTMLElement} main
 * @param {import("./main.js").Shell} shell
 * @param {string} jobId
 * @returns {{destroy(): void}}
 */
export function createJobPage(main, shell, jobId) {
  const page = new JobPage(main, shell, jobId);
  // As parts of an address these mean another one.
  if (jobId === "." || jobId === "..") {
    page.refuse(404, "No job has such a name.");
    return page;
  }
  const path = `api/v1/jobs/${encodeURIComponent(jobId)}/events`;
  page.stop = shell.api.follow(path, {
    onEvent: (name, data) => page.take(name, data),
    onState: (connected, text, refusal) => page.connected(connected, text, refusal),
  });
  return page;
}

class JobPage {
  /**
   * @param {HTMLElement} main
   * @param {import("./main.js").Shell} shell
   * @param {string} jobId
   */
  constructor(main, shell, jobId) {
    this.main = main;
    this.shell = shell;
    this.jobId = jobId;
    /** @type {JobPageState | null} */
    this.state = null;
    /** @type {{panel: Panel, element: HTMLElement}[]} */
    this.panels = [];
    this.frame = 0;
    this.stop = () => {};
    this.questions = new AbortController();
    // Steps may be numbered with gaps: none is missing where two lie no further apart than this.
    this.usualGap = 1;
    /** @type {Gap | null} asked for in vain */
    this.missing = null;
    setChildren(main, make("p", { class: "note page" }, "Loading\u2026"));
  }

  destroy() {
    this.stop();
    this.close();
  }

  /** Nothing is shown or asked for any more. */
  close() {
    this.questions.abort();
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    for (const { panel } of this.panels) panel.destroy();
    this.panels = [];
  }

  /**
   * @param {string} name
   * @param {any} data
   */
  take(name, data) {
    const { connection } = this.shell;
    if (name === "trouble") {
      connection.trouble(troubleText(data));
      return;
    }
    if (name === "overview") connection.trouble(null);
    connection.heard();
    if (name === "gone") {
      this.showDeleted();
      return;
    }
    const before = this.state;
    this.state = afterEvent(before, name, data);
    if (this.state === null) return;
    // Another run under the same name: nothing that was chosen or asked for is of it.
    if (before?.overview.created_at !== this.state.overview.created_at) this.open(this.state);
    else if (name === "steps") void this.fillGap(before, data);
    this.show();
  }

  /** @param {JobPageState} state */
  open(state) {
    this.close();
    this.questions = new AbortController();
    this.usualGap = 1;
    this.missing = null;
    const { api, announce } = this.shell;
    const page = make("div", { class: "page job-page" });
    setChildren(this.main, page);
    for (const [name, create] of PANELS) {
      const element = make("section", { class: `panel panel-${name}`, id: `panel-${name}` });
      const guard = (/** @type {() => void} */ action) => this.guard(element, action);
      const context = { api, jobId: this.jobId, announce, guard };
      page.append(element);
      guard(() => this.panels.push({ element, panel: create(element, context) }));
    }
    // Those before the first that the events tell.
    void this.fill({ after: -1, last: -1, told: 0 }, state.overview.num_stages);
  }

  /**
   * Ask for what has been missed, as while nobody looked: the events begin with the newest steps.
   * What was asked for in vain is asked for again, with all that came after it.
   * @param {JobPageState} before
   * @param {StagesOfStep[]} told
   */
  async fillGap(before, told) {
    const gap = this.gapAfter(before, told);
    const missing = this.missing ?? gap;
    this.missing = null;
    if (missing !== null) await this.fill(missing, before.overview.num_stages);
  }

  /**
   * @param {JobPageState} before
   * @param {StagesOfStep[]} told
   * @returns {Gap | null} null: nothing lies between
   */
  gapAfter({ steps, overview }, told) {
    const last = steps[steps.length - 1]?.step;
    const first = told[0]?.step;
    if (last === undefined || first === undefined || first <= last) return null;
    this.usualGap = Math.min(this.usualGap, first - last);
    if (first - last <= this.usualGap) return null;
    // Some of the last ones may have been heard of before all ranks had posted them.
    const whole = steps.filter(({ num_ranks }) => num_ranks === overview.num_ranks);
    return { after: whole[whole.length - 1]?.step ?? -1, last, told: first };
  }

  /**
   * @param {Gap} gap
   * @param {number} num_stages
   */
  async fill(gap, num_stages) {
    const { signal } = this.questions;
    const asked = await this.askForSteps(gap, num_stages, signal);
    if (signal.aborted) return;
    if (asked === null) {
      if (this.missing === null || gap.after < this.missing.after) this.missing = gap;
    } else if (!asked.some(({ step }) => step > gap.last && step < gap.told)) {
      this.usualGap = Math.max(this.usualGap, gap.told - gap.last);
    }
  }

  /**
   * @param {Gap} gap
   * @param {number} num_stages
   * @param {AbortSignal} signal
   * @returns {Promise<StagesOfStep[] | null>} null: they did not come
   */
  async askForSteps({ after, told }, num_stages, signal) {
    const limit = Math.max(1, Math.min(FIRST_STEPS, Math.floor(FIRST_STAGE_STEPS / num_stages)));
    const job = encodeURIComponent(this.jobId);
    const path = `api/v1/jobs/${job}/steps/stages?limit=${limit}&after_step=${after}`;
    try {
      /** @type {StagesOfStep[]} */
      const steps = await this.shell.api.get(path, { signal });
      if (signal.aborted || this.state === null) return null;
      this.state = withSteps(this.state, steps, told);
      this.show();
      return steps;
    } catch (error) {
      // The newest come with the events; why these did not, is for who looks.
      if (!signal.aborted) console.warn(`older steps: ${ApiError.from(error).detail}`);
      return null;
    }
  }

  /** All that has come since the last picture is shown in the next. */
  show() {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const state = this.state;
      if (state === null) return;
      for (const { panel, element } of this.panels) this.guard(element, () => panel.update(state));
    });
  }

  /**
   * A panel that fails, at once or in what it asked for, does not take the others with it.
   * @param {HTMLElement} element
   * @param {() => void} action
   */
  guard(element, action) {
    try {
      action();
    } catch (error) {
      console.error(error);
      const failed = this.panels.find((entry) => entry.element === element);
      this.panels = this.panels.filter((entry) => entry !== failed);
      failed?.panel.destroy();
      setChildren(
        element,
        make(
          "p",
          { class: "problem" },
          "This part of the page has failed; the browser's console says why.",
        ),
      );
    }
  }

  /**
   * @param {boolean} connected
   * @param {string} text
   * @param {number} refusal status of an answer that stays; 0: none
   */
  connected(connected, text, refusal) {
    // A stream that broke just then is answered 404 instead of "gone".
    if (refusal === 404 && this.state !== null) this.showDeleted();
    else if (refusal !== 0) this.refuse(refusal, text);
    else this.shell.connection.set(connected, text);
  }

  /** The job that was shown here exists no more. */
  showDeleted() {
    this.refuse(404, `Job ${this.jobId} has been deleted on this planner`);
  }

  /**
   * @param {number} status
   * @param {string} text
   */
  refuse(status, text) {
    this.destroy();
    this.shell.connection.stop();
    setChildren(this.main, refusalNotice(status, text, this.shell.reopen));
  }
}
