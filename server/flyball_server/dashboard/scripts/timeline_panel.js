// The job page's timeline: asks for a version's iteration and shows it beside the highest clocks.

import { ApiError } from "./api_error.js";
import { createClockScale } from "./clock_scale.js";
import { make, setChildren, setText } from "./elements.js";
import { count, counted } from "./format.js";
import { layOut } from "./timeline_layout.js";
import { showLegend } from "./timeline_legend.js";
import { TimelineTable } from "./timeline_table.js";
import { TimelineViewer } from "./timeline_viewer.js";
import { comparisonWords, figuresWords } from "./timeline_words.js";

/** @typedef {import("./job_state.js").JobPageState} JobPageState */
/** @typedef {import("./wire_types.js").TimelineView} TimelineView */

/**
 * @param {HTMLElement} element
 * @param {import("./job_page.js").PanelContext} context
 * @returns {import("./job_page.js").Panel}
 */
export function createTimelinePanel(element, context) {
  const panel = new TimelinePanel(element, context);
  return { update: (state) => panel.update(state), destroy: () => panel.destroy() };
}

class TimelinePanel {
  /**
   * @param {HTMLElement} element
   * @param {import("./job_page.js").PanelContext} context
   */
  constructor(element, context) {
    this._context = context;
    /** @type {JobPageState | null} */
    this._state = null;
    /** @type {number | null} */
    this._chosen = null;
    this._asked = "";
    this._question = new AbortController();
    this._viewer = new TimelineViewer(context.announce, () => this._tellTable());
    this._table = new TimelineTable();
    /** @type {import("./timeline_viewer.js").Iterations | null} */
    this._iterations = null;
    /** @type {TimelineView | null} */
    this._view = null;
    this._elements = makePanelElements(element, this._viewer, this._table, {
      follow: () => this._choose(null),
      again: () => this._askAgain(),
    });
    /** @param {Event} event */
    this._onVersion = (event) => this._choose(event);
    document.addEventListener("flyball:show-version", this._onVersion);
  }

  destroy() {
    this._question.abort();
    this._viewer.destroy();
    this._table.destroy();
    document.removeEventListener("flyball:show-version", this._onVersion);
  }

  /** @param {JobPageState} state */
  update(state) {
    this._state = state;
    const version = this._chosen ?? versionToShow(state);
    this._tellVersion();
    if (version === null) {
      this._clear();
      this._tell(waitingText(state));
      return;
    }
    // A new version is made when profile or stragglers change: the iteration is predicted anew.
    const question = `${version} ${state.overview.newest_version}`;
    if (question === this._asked) return;
    this._asked = question;
    void this._ask(version);
  }

  /** @param {Event | null} event of a version to show; null: the active one. */
  _choose(event) {
    const version = event instanceof CustomEvent ? Number(event.detail?.version) : null;
    this._chosen = Number.isInteger(version) ? version : null;
    if (this._state) this.update(this._state);
  }

  _askAgain() {
    this._asked = "";
    if (this._state) this.update(this._state);
  }

  /** @param {number} version */
  async _ask(version) {
    this._question.abort();
    this._question = new AbortController();
    const { signal } = this._question;
    this._elements.again.hidden = true;
    if (this._iterations === null) this._tell(`Loading version ${version}\u2026`);
    const path = `api/v1/jobs/${encodeURIComponent(this._context.jobId)}/timeline?version=${version}`;
    /** @type {TimelineView} */
    let view;
    try {
      view = await this._context.api.get(path, { signal });
    } catch (error) {
      if (!signal.aborted) this._refuse(version, ApiError.from(error));
      return;
    }
    if (!signal.aborted) this._context.guard(() => this._show(view));
  }

  /** @param {TimelineView} view */
  _show(view) {
    const plan = layOut(view.plan);
    const baseline = layOut(view.baseline);
    const scale = createClockScale(
      Math.min(plan.slowest_mhz, baseline.slowest_mhz),
      Math.max(plan.fastest_mhz, baseline.fastest_mhz),
    );
    this._iterations = {
      plan,
      baseline,
      scale,
      planTitle: `Plan, version ${view.version}: ${figuresWords(plan)}`,
      baselineTitle: `Baseline, all at the highest clocks: ${figuresWords(baseline)}`,
    };
    this._view = view;
    this._tell("");
    this._elements.content.hidden = false;
    setText(this._elements.words, comparisonWords(plan, baseline));
    this._elements.warning.hidden = view.is_as_planned;
    setText(
      this._elements.warning,
      `The profile has changed since version ${view.version} was planned: this is what the version takes on the profile as it is now.`,
    );
    showLegend(this._elements.legend, this._iterations);
    this._viewer.show(this._iterations);
    this._tellVersion();
  }

  /** @param {number} version @param {ApiError} error */
  _refuse(version, error) {
    const asked = this._asked;
    this._clear();
    // Once the planner is there again, it is asked again.
    if (error.status !== 0) this._asked = asked;
    this._tell(`Version ${version} cannot be shown: ${error.detail}`);
    this._elements.again.hidden = error.status === 409 || error.status === 404;
  }

  /** Nothing is shown. */
  _clear() {
    this._question.abort();
    this._asked = "";
    this._iterations = null;
    this._elements.content.hidden = true;
    setText(this._elements.note, "");
  }

  _tellVersion() {
    const overview = this._state?.overview;
    const active = overview?.active_version ?? null;
    this._elements.follow.hidden = this._chosen === null || this._chosen === active;
    if (!this._view || !this._iterations || !overview) return;
    setText(this._elements.note, versionWords(this._view, overview));
  }

  _tellTable() {
    if (this._iterations)
      this._table.update(
        this._iterations.plan,
        this._iterations.baseline,
        this._viewer.visibleRows(),
      );
  }

  /** @param {string} text */
  _tell(text) {
    this._elements.message.hidden = text === "";
    setText(this._elements.message, text);
  }
}

/**
 * @param {HTMLElement} element
 * @param {TimelineViewer} viewer
 * @param {TimelineTable} table
 * @param {{follow: () => void, again: () => void}} actions
 */
function makePanelElements(element, viewer, table, actions) {
  const note = make("span", { class: "note" });
  const follow = make(
    "button",
    { type: "button", class: "quiet", hidden: true, onclick: actions.follow },
    "Follow the active version",
  );
  const again = make(
    "button",
    { type: "button", hidden: true, onclick: actions.again },
    "Try again",
  );
  const message = make("p", { class: "timeline-message", role: "status" });
  const words = make("p", { class: "timeline-words" });
  const warning = make("p", { class: "timeline-warning", hidden: true });
  const legend = make("div", { class: "timeline-legend" });
  const above = make("div", { class: "timeline-above" }, words, viewer.tools);
  const content = make(
    "div",
    { class: "timeline-content", hidden: true },
    above,
    warning,
    legend,
    viewer.element,
    table.element,
  );
  const head = make("div", { class: "panel-head" }, make("h2", {}, "Timeline"), note, follow);
  setChildren(element, head, message, again, content);
  return { note, follow, again, message, words, warning, legend, content };
}

/**
 * The active version; as long as there is none, the newest that is no probe.
 *
 * @param {JobPageState} state
 * @returns {number | null}
 */
function versionToShow({ overview, history }) {
  const isProbe = (/** @type {number} */ version) =>
    history.some((plan) => plan.version === version && plan.kind === "probe");
  const { active_version, newest_version } = overview;
  // Which versions are probes the history tells, which comes right after the overview.
  if (history.length === 0) return null;
  if (active_version !== null && !isProbe(active_version)) return active_version;
  const known = history.filter(({ kind }) => kind !== "probe").at(-1)?.version;
  return known ?? (newest_version !== null && !isProbe(newest_version) ? newest_version : null);
}

/**
 * @param {TimelineView} view
 * @param {import("./wire_types.js").JobOverview} overview
 */
function versionWords({ version, schedule, num_microbatches, emulated, plan }, overview) {
  const isNewest = version === overview.newest_version;
  const role =
    version === overview.active_version ? "active" : isNewest ? "newest" : "not in force";
  const isData = plan.rows.some((row) => row.dp_rank > 0);
  const stages = isData
    ? `${count(plan.rows.length)} stages of several pipelines`
    : counted(plan.rows.length, "stage");
  const microbatches =
    num_microbatches === 1 ? "1 microbatch" : `${count(num_microbatches)} microbatches`;
  const gpus = emulated ? ", emulated GPUs" : "";
  return `version ${version} (${role}), ${schedule}, ${stages}, ${microbatches}; predicted${gpus}`;
}

/** @param {JobPageState} state */
function waitingText({ overview, history }) {
  if (overview.newest_version !== null && history.length === 0) return "";
  if (overview.state === "profiling")
    return "The job is being profiled: the timeline comes with its first plan.";
  return "There is no plan yet: the timeline comes with the first one.";
}
