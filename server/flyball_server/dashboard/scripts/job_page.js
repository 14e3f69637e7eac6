// The page of one job: follows its live events and passes its state to the panels.

import { ApiError } from "./api_error.js";
import { followPage, showRefusal } from "./connection.js";
import { byId, hasModifier, isTyping, make, setAttribute, setChildren } from "./elements.js";
import { createFiguresPanel } from "./figures_panel.js";
import { FrontierPanel } from "./frontier_panel.js";
import { createHistoryPanel } from "./history_panel.js";
import { JobHead } from "./job_head.js";
import { afterEvent, withSteps } from "./job_state.js";
import { LiveCharts } from "./live_charts.js";
import { createStragglersPanel } from "./stragglers_panel.js";
import { TimelinePanel } from "./timeline_panel.js";

/**
 * @import { Api } from "./api.js"
 * @import { JobEvent, JobPageState } from "./job_state.js"
 * @import { Shell } from "./main.js"
 * @import { StagesOfStep } from "./wire_types.js"
 */

/**
 * Arguments of a panel beside its element.
 * @typedef {object} PanelContext
 * @property {Api} api
 * @property {string} jobId
 * @property {string} path of the job in the API
 * @property {(text: string) => void} announce
 * @property {(action: () => void) => void} guard runs code outside of an update: if it
 *   throws, the panel shows that it has failed
 * @typedef {{update(state: JobPageState): void, destroy?(): void}} Panel
 * @typedef {object} Gap
 * Steps that events have left out.
 * @property {number} after last step before the requested ones
 * @property {number} last newest known step
 * @property {number} told first step that the events have told
 */

// Steps that the events begin with, and that are requested at once where events left some out.
const FIRST_STEPS = 2000;
const FIRST_STAGE_STEPS = 16_000;

/**
 * Panels with their titles in the list of sections; empty: in no list.
 * @type {[string, (element: HTMLElement, context: PanelContext) => Panel, string][]}
 */
const PANELS = [
  ["job", (element, context) => new JobHead(element, context), ""],
  ["figures", createFiguresPanel, "Figures"],
  ["frontier", (element, context) => new FrontierPanel(element, context), "Frontier"],
  ["charts", (element, context) => new LiveCharts(element, context), "Steps"],
  ["stragglers", createStragglersPanel, ""],
  ["timeline", (element, context) => new TimelinePanel(element, context), "Timeline"],
  ["history", createHistoryPanel, "Plans"],
];

export class JobPage {
  /** @param {HTMLElement} main @param {Shell} shell @param {string} jobId */
  constructor(main, shell, jobId) {
    this.main = main;
    this.shell = shell;
    this.jobId = jobId;
    this.path = `api/v1/jobs/${encodeURIComponent(jobId)}`;
    /** @type {JobPageState | null} */
    this.state = null;
    /** @type {{panel: Panel, element: HTMLElement}[]} */
    this.panels = [];
    this.frame = 0;
    this.stop = () => {};
    this.questions = new AbortController();
    // Largest usual distance of two steps: a job may measure every tenth.
    this.usualGap = 1;
    /** @type {Gap | null} steps that were requested in vain */
    this.missing = null;
    setChildren(main, make("p.note.page", "Loading\u2026"));
    // In a path these two name another resource.
    if (jobId === "." || jobId === "..") this.refuse(404, "No job has such a name.");
    else this.follow();
  }

  follow() {
    this.stop = followPage(this.shell, `${this.path}/events?num_steps=${FIRST_STEPS}`, {
      onEvent: (/** @type {JobEvent} */ event) => this.take(event),
      onRefusal: (status, text) => {
        // A stream that broke as the job was deleted is answered 404 instead of "gone".
        if (status === 404 && this.state !== null) this.showDeleted();
        else this.refuse(status, text);
      },
    });
  }

  destroy() {
    this.stop();
    this.close();
  }

  /** Destroy the panels and abort requests. */
  close() {
    this.questions.abort();
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.sections?.abort();
    for (const { panel } of this.panels) panel.destroy?.();
    this.panels = [];
  }

  /** @param {JobEvent} event */
  take(event) {
    if (event.name === "gone") {
      this.showDeleted();
      return;
    }
    const before = this.state;
    this.state = afterEvent(before, event);
    if (this.state === null) return;
    // Nothing that was chosen or requested belongs to a new run under the same name.
    if (before?.overview.created_at !== this.state.overview.created_at) this.open();
    else if (event.name === "steps") this.fillGap(before, event.data);
    this.show();
  }

  open() {
    this.close();
    this.questions = new AbortController();
    this.usualGap = 1;
    this.missing = null;
    const { api, announce } = this.shell;
    const page = make("div.page.job-page");
    setChildren(this.main, page);
    /** @type {[string, HTMLElement][]} */
    const sections = [];
    for (const [name, create, title] of PANELS) {
      const element = make("section", { class: `panel panel-${name}`, id: `panel-${name}` });
      const guard = (/** @type {() => void} */ action) => this.guard(element, action);
      const context = { api, jobId: this.jobId, path: this.path, announce, guard };
      page.append(element);
      guard(() => this.panels.push({ element, panel: create(element, context) }));
      if (!title) continue;
      sections.push([title, element]);
      if (FOLDED.has(name)) makeFoldable(element, title);
    }
    this.sections = showSections(sections);
  }

  /**
   * Request steps that events have left out, as while the page was hidden; steps that were
   * requested in vain are requested again, with all later ones.
   * @param {JobPageState} before
   * @param {StagesOfStep[]} told
   */
  fillGap(before, told) {
    const gap = this.gapAfter(before, told);
    const missing = this.missing ?? gap;
    this.missing = null;
    if (missing !== null) void this.fill(missing, before.overview.num_stages);
  }

  /**
   * @param {JobPageState} before
   * @param {StagesOfStep[]} told
   * @returns {Gap | null} null: none is missing
   */
  gapAfter({ steps, overview }, told) {
    const last = steps[steps.length - 1]?.step;
    const first = told[0]?.step;
    if (last === undefined || first === undefined || first <= last) return null;
    this.usualGap = Math.min(this.usualGap, first - last);
    if (first - last <= this.usualGap) return null;
    // The last steps may have come before all ranks had posted them.
    const whole = steps.filter(({ num_ranks }) => num_ranks === overview.num_ranks);
    return { after: whole[whole.length - 1]?.step ?? -1, last, told: first };
  }

  /** @param {Gap} gap @param {number} num_stages */
  async fill(gap, num_stages) {
    const { signal } = this.questions;
    const { after, last, told } = gap;
    const limit = Math.max(1, Math.min(FIRST_STEPS, Math.floor(FIRST_STAGE_STEPS / num_stages)));
    const path = `${this.path}/steps/stages?limit=${limit}&after_step=${after}`;
    try {
      /** @type {StagesOfStep[]} */
      const steps = await this.shell.api.get(path, { signal });
      if (signal.aborted || this.state === null) return;
      this.state = withSteps(this.state, steps, told);
      this.show();
      const isNoneBetween = !steps.some(({ step }) => step > last && step < told);
      if (isNoneBetween) this.usualGap = Math.max(this.usualGap, told - last);
    } catch (error) {
      if (signal.aborted) return;
      console.warn(`older steps: ${ApiError.from(error).detail}`);
      if (this.missing === null || after < this.missing.after) this.missing = gap;
    }
  }

  /** Update the panels with the next frame. */
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
   * Run a panel's code; a panel that fails is replaced by a message, the others stay.
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
      failed?.panel.destroy?.();
      const text = "This part of the page has failed; the browser's console says why.";
      setChildren(element, make("p.problem", text));
    }
  }

  showDeleted() {
    this.refuse(404, `Job ${this.jobId} has been deleted on this planner`);
  }

  /** @param {number} status @param {string} text */
  refuse(status, text) {
    this.destroy();
    showRefusal(this.shell, this.main, status, text);
  }
}

// Sections that are closed at first on a narrow screen.
const FOLDED = new Set(["frontier", "timeline", "history"]);
const NARROW = "(max-width: 620px)";

/** Give a section a button that opens and closes it on a narrow screen. @param {HTMLElement} section @param {string} title */
function makeFoldable(section, title) {
  const onclick = () => fold(!section.classList.contains("folded"));
  const button = make("button.fold", { onclick }, title);
  const fold = (/** @type {boolean} */ isFolded) => {
    section.classList.toggle("folded", isFolded);
    setAttribute(button, "aria-expanded", String(!isFolded));
  };
  section.prepend(button);
  fold(matchMedia(NARROW).matches);
}

const GAP = 8; // px between the bar and a section

/**
 * Show the list, and mark the section that is read.
 * @param {[string, HTMLElement][]} sections title and element
 * @returns {AbortController} ends it
 */
export function showSections(sections) {
  const list = byId("sections", HTMLElement);
  const ending = new AbortController();
  const { signal } = ending;
  // Section that was jumped to: it is marked, and kept in its place while what is above it comes.
  /** @type {HTMLElement | null} */
  let target = null;
  const keep = () => {
    if (target === null) return;
    const top = target.getBoundingClientRect().top - barHeight() - GAP;
    window.scrollBy({ top, behavior: "instant" });
  };
  const go = (/** @type {number} */ index) => {
    const [, section] = sections[index];
    section.classList.remove("folded");
    section.querySelector(".fold")?.setAttribute("aria-expanded", "true");
    target = section;
    keep();
    mark(index);
    section.tabIndex = -1;
    section.focus({ preventScroll: true });
  };
  const leave = () => {
    target = null;
  };
  const growth = new ResizeObserver(keep);
  growth.observe(byId("main", HTMLElement));
  signal.addEventListener("abort", () => growth.disconnect());
  for (const name of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    document.addEventListener(name, leave, { signal, passive: true, capture: true });
  }
  const buttons = sections.map(([title], index) =>
    make("button.quiet", { onclick: () => go(index), "aria-keyshortcuts": `${index + 1}` }, title),
  );
  const mark = (/** @type {number} */ here) => {
    buttons.forEach((button, index) =>
      setAttribute(button, "aria-current", index === here ? "true" : null),
    );
  };
  const onScroll = () => {
    const line = barHeight() + 3 * GAP;
    const tops = sections.map(([, section]) => section.getBoundingClientRect().top);
    if (target === null) mark(Math.max(0, tops.findLastIndex((top) => top <= line)));
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const index = Number(event.key) - 1;
    if (!/^[1-9]$/.test(event.key) || hasModifier(event) || isTyping(event)) return;
    if (index >= sections.length) return;
    event.preventDefault();
    go(index);
  };
  document.addEventListener("scroll", onScroll, { signal, passive: true });
  document.addEventListener("keydown", onKey, { signal });
  setChildren(list, ...buttons);
  list.hidden = false;
  mark(0);
  return ending;
}

function barHeight() {
  return document.querySelector(".bar")?.getBoundingClientRect().height ?? 0;
}
