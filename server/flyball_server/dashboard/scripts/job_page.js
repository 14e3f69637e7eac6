// @ts-check
// The view of one job: follows its live events and hands what it knows to the panels.

import { ApiError } from "./api.js";
import { make, setChildren } from "./elements.js";
import { createFiguresPanel } from "./figures_panel.js";
import { createFrontierPanel } from "./frontier_panel.js";
import { createHistoryPanel } from "./history_panel.js";
import { createJobHead } from "./job_head.js";
import { afterEvent } from "./job_state.js";
import { troubleText } from "./jobs_page.js";
import { createLiveCharts } from "./live_charts.js";
import { refusalNotice } from "./refusal_notice.js";
import { createStragglersPanel } from "./stragglers_panel.js";
import { createTimelinePanel } from "./timeline_panel.js";

/**
 * @typedef {import("./wire_types.js").JobPageState} JobPageState
 * @typedef {import("./wire_types.js").Panel} Panel
 * @typedef {import("./wire_types.js").PanelContext} PanelContext
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
  const path = `api/v1/jobs/${encodeURIComponent(jobId)}/events`;
  const stop = shell.api.follow(path, {
    onEvent: (name, data) => page.take(name, data),
    onState: (connected, text, status) => page.connected(connected, text, status),
  });
  page.stop = stop;
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
    this.isOver = false;
    this.stop = () => {};
    setChildren(main, make("p", { class: "note page" }, "Asking the planner\u2026"));
  }

  destroy() {
    this.isOver = true;
    this.stop();
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
      this.refuse(404, `Job ${this.jobId} has been forgotten by this planner`);
      return;
    }
    const wasUnknown = this.state === null;
    this.state = afterEvent(this.state, name, data);
    if (this.state === null) return;
    if (wasUnknown) this.open(this.state);
    this.show();
  }

  /** @param {JobPageState} state */
  open(state) {
    const context = { api: this.shell.api, jobId: this.jobId, announce: this.shell.announce };
    const page = make("div", { class: "page job-page" });
    setChildren(this.main, page);
    for (const [name, create] of PANELS) {
      const element = make("section", { class: `panel panel-${name}`, id: `panel-${name}` });
      page.append(element);
      this.guard(element, () => this.panels.push({ element, panel: create(element, context) }));
    }
    void this.askForSteps(state.overview.num_stages);
  }

  /**
   * The steps before those that the events begin with, for the charts.
   * @param {number} num_stages
   */
  async askForSteps(num_stages) {
    const limit = Math.max(1, Math.min(FIRST_STEPS, Math.floor(FIRST_STAGE_STEPS / num_stages)));
    const job = encodeURIComponent(this.jobId);
    try {
      const steps = await this.shell.api.get(`api/v1/jobs/${job}/steps/stages?limit=${limit}`);
      if (this.isOver) return;
      this.state = afterEvent(this.state, "steps", steps);
      this.show();
    } catch (error) {
      // The newest come with the events; why these did not, is for who looks.
      if (!this.isOver) console.warn(`older steps: ${ApiError.from(error).detail}`);
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
   * A panel that fails does not take the others with it.
   * @param {HTMLElement} element
   * @param {() => void} action
   */
  guard(element, action) {
    try {
      action();
    } catch (error) {
      this.panels = this.panels.filter((entry) => entry.element !== element);
      setChildren(
        element,
        make(
          "p",
          { class: "problem" },
          "This part of the page has failed; the browser's console says why.",
        ),
      );
      console.error(error);
    }
  }

  /**
   * @param {boolean} connected
   * @param {string} text
   * @param {number} status
   */
  connected(connected, text, status) {
    if (!connected && status >= 400 && status < 500) this.refuse(status, text);
    else this.shell.connection.set(connected, text);
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
