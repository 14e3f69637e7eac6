// Timeline of a job: one predicted iteration of a version beside the highest clocks.

import { ApiError } from "./api_error.js";
import { fileButtons } from "./chart_files.js";
import { createClockScale } from "./clock_scale.js";
import { make, panelHead, setChildren, setText } from "./elements.js";
import { count, counted, joules, megahertz, percent } from "./format.js";
import { DetailsTable, makeRow } from "./tables.js";
import { layOut } from "./timeline_layout.js";
import { TimelineViewer } from "./timeline_viewer.js";
import {
  comparisonWords,
  figuresWords,
  kindWords,
  milliseconds,
  stageFigures,
} from "./timeline_words.js";

/**
 * @import { CsvRow } from "./chart_files.js"
 * @import { ClockScale } from "./clock_scale.js"
 * @import { PanelContext } from "./job_page.js"
 * @import { JobPageState } from "./job_state.js"
 * @import { Layout } from "./timeline_layout.js"
 * @import { Iterations } from "./timeline_viewer.js"
 * @import { JobOverview, PlanTimeline } from "./wire_types.js"
 */

export class TimelinePanel {
  /** @param {HTMLElement} element @param {PanelContext} context */
  constructor(element, context) {
    this._context = context;
    /** @type {JobPageState | null} */
    this._state = null;
    /** @type {number | null} */
    this._chosen = null;
    this._asked = "";
    this._question = new AbortController();
    // A long pipeline's timeline takes the planner seconds: none is requested out of view.
    this._isNear = false;
    this._nearing = new IntersectionObserver(
      (entries) => context.guard(() => this._comeNear(entries)),
      { rootMargin: "0px" },
    );
    this._element = element;
    this._viewer = new TimelineViewer(context.announce, () => this._tellTable());
    this._table = new TimelineTable();
    /** @type {Iterations | null} */
    this._iterations = null;
    /** @type {PlanTimeline | null} */
    this._view = null;
    this._note = make("span.note");
    this._follow = make("button.quiet", { hidden: true, onclick: () => this._choose(null) });
    this._again = make("button", { hidden: true, onclick: () => this._askAgain() }, "Try again");
    this._message = make("p.timeline-message", { role: "status" });
    this._words = make("p.timeline-words");
    this._warning = make("p.timeline-warning", { hidden: true });
    this._legend = make("div.timeline-legend");
    this._content = make(
      "div.timeline-content",
      { hidden: true },
      make("div.timeline-above", this._words, this._viewer.tools),
      this._warning,
      this._legend,
      this._viewer.element,
      this._table.element,
    );
    const files = fileButtons({
      title: "Timeline",
      rows: () => fileRows(this._view),
      pictures: () => this._viewer.canvases,
    });
    this._viewer.tools.append(files);
    this._follow.append("Follow the active version");
    const head = panelHead("Timeline", this._note, this._follow);
    setChildren(element, head, this._message, this._again, this._content);
    /** @param {Event} event */
    this._onVersion = (event) => {
      if (event instanceof CustomEvent) this._choose(event.detail.version);
    };
    document.addEventListener("flyball:show-version", this._onVersion);
  }

  destroy() {
    this._question.abort();
    this._nearing.disconnect();
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
    if (!this._isNear && this._chosen === null) {
      this._tell("The timeline is loaded as it comes into view.");
      this._nearing.observe(this._element);
      return;
    }
    // With a new version profile or stragglers may have changed, and with them the prediction.
    const question = `${version} ${state.overview.newest_version}`;
    if (question === this._asked) return;
    this._asked = question;
    void this._ask(version);
  }

  /** @param {IntersectionObserverEntry[]} entries */
  _comeNear(entries) {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    this._nearing.disconnect();
    this._isNear = true;
    if (this._state) this.update(this._state);
  }

  /** @param {number | null} version null: the active one */
  _choose(version) {
    this._chosen = version;
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
    this._again.hidden = true;
    if (this._iterations === null) this._tell(`Loading version ${version}\u2026`);
    const { api, path, guard } = this._context;
    try {
      /** @type {PlanTimeline} */
      const view = await api.get(`${path}/timeline?version=${version}`, { signal });
      if (!signal.aborted) guard(() => this._show(view));
    } catch (error) {
      if (!signal.aborted) this._refuse(version, ApiError.from(error));
    }
  }

  /** @param {PlanTimeline} view */
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
    this._content.hidden = false;
    setText(this._words, comparisonWords(plan, baseline));
    this._warning.hidden = view.is_as_planned;
    setText(
      this._warning,
      `The profile has changed since version ${view.version} was planned: ` +
        "this is what the version takes on the profile as it is now.",
    );
    setChildren(this._legend, ...legend(this._iterations));
    this._viewer.show(this._iterations);
    this._tellVersion();
  }

  /** @param {number} version @param {ApiError} error */
  _refuse(version, error) {
    const asked = this._asked;
    this._clear();
    // Request it again once the planner responds.
    if (error.status !== 0) this._asked = asked;
    this._tell(`Version ${version} cannot be shown: ${error.detail}`);
    this._again.hidden = error.status === 409 || error.status === 404;
  }

  /** Show nothing. */
  _clear() {
    this._question.abort();
    this._asked = "";
    this._iterations = null;
    this._content.hidden = true;
    setText(this._note, "");
  }

  _tellVersion() {
    const overview = this._state?.overview;
    const active = overview?.active_version ?? null;
    this._follow.hidden = this._chosen === null || this._chosen === active;
    if (!this._view || !this._iterations || !overview) return;
    setText(this._note, versionWords(this._view, overview));
  }

  _tellTable() {
    if (this._iterations === null) return;
    const { plan, baseline } = this._iterations;
    this._table.update(plan, baseline, this._viewer.visibleRows());
  }

  /** @param {string} text */
  _tell(text) {
    this._message.hidden = text === "";
    setText(this._message, text);
  }
}

/**
 * Return the active version; while there is none, the newest that is no probe.
 * @param {JobPageState} state
 */
function versionToShow({ overview, history }) {
  const isProbe = (/** @type {number} */ version) =>
    history.some((plan) => plan.version === version && plan.kind === "probe");
  const { active_version, newest_version } = overview;
  // The history, which names the probes, comes right after the overview.
  if (history.length === 0) return null;
  if (active_version !== null && !isProbe(active_version)) return active_version;
  const known = history.filter(({ kind }) => kind !== "probe").at(-1)?.version;
  return known ?? (newest_version !== null && !isProbe(newest_version) ? newest_version : null);
}

/** @param {PlanTimeline | null} view @returns {CsvRow[]} both iterations */
function fileRows(view) {
  const heads = ["iteration", "dp_rank", "stage", "kind", "microbatch", "chunk", "clock_mhz"];
  const rows = (/** @type {"plan" | "baseline"} */ name) =>
    view === null
      ? []
      : view[name].rows.flatMap((row) =>
          row.kinds.map((kind, at) => [
            ...[name, row.dp_rank, row.stage, kind, row.microbatches[at], row.chunks[at]],
            ...[row.clock_mhz[at], row.start_s[at], row.duration_s[at], row.energy_j[at]],
          ]),
        );
  const measures = ["start_s", "duration_s", "energy_j"];
  return [[...heads, ...measures], ...rows("plan"), ...rows("baseline")];
}

/** @param {PlanTimeline} view @param {JobOverview} overview */
function versionWords({ version, schedule, num_microbatches, emulated, plan }, overview) {
  const { active_version, newest_version } = overview;
  const other = version === newest_version ? "newest" : "not in force";
  const role = version === active_version ? "active" : other;
  const isData = plan.rows.some((row) => row.dp_rank > 0);
  const stages = isData
    ? `${count(plan.rows.length)} stages of several pipelines`
    : counted(plan.rows.length, "stage");
  const microbatches = `${count(num_microbatches)} microbatch${num_microbatches === 1 ? "" : "es"}`;
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

const NUM_STOPS = 24;

/**
 * Create the legend: colours of clocks, heights and hatching of kinds, lines.
 * @param {Iterations} iterations
 */
function legend({ plan, scale }) {
  const isData = plan.rows.some((row) => row.dp_rank > 0);
  const kinds = kindWords(plan).map(({ kind, words }) => entry(kind, words));
  const chunks = plan.numChunks > 1 && make("li", "F3.1 is of chunk 1; later chunks stand higher");
  const path = isData ? "each pipeline's longest path" : "critical path";
  const lines = [entry("critical", path), entry("waiting", "waiting")];
  return [clockBar(scale), make("ul.timeline-keys", ...kinds, chunks, ...lines)];
}

/** @param {string} key @param {string} words */
function entry(key, words) {
  const sample = make(`span.timeline-key.timeline-key-${key}`, { "aria-hidden": "true" });
  return make("li", sample, words);
}

/** @param {ClockScale} scale */
function clockBar(scale) {
  const { slowest_mhz, fastest_mhz } = scale;
  const bar = make("span.timeline-clock-bar", { "aria-hidden": "true" });
  bar.style.backgroundImage = `linear-gradient(to right, ${scale.samples(NUM_STOPS).join(", ")})`;
  return make(
    "p.timeline-clocks",
    "Planned SM clock ",
    make("span", megahertz(slowest_mhz)),
    bar,
    make("span", megahertz(fastest_mhz)),
  );
}

// Updates are delayed while the view moves.
const DELAY_MS = 150;
const FIGURES = ["Computes", "Mean clock", "Energy while computing", "Waits"];

export class TimelineTable {
  constructor() {
    this.element = make("details.timeline-figures");
    const label = "Figures of the shown stages";
    this._table = new DetailsTable(this.element, `${label} as a table`, label, {
      selector: "table.timeline-table",
      heads: ["Row", ...FIGURES.flatMap((name) => [`${name}, plan`, `${name}, baseline`])],
    });
    this._caption = make("caption");
    this._table.table.prepend(this._caption);
    this._timer = 0;
  }

  destroy() {
    clearTimeout(this._timer);
  }

  /**
   * @param {Layout} plan
   * @param {Layout} baseline
   * @param {[number, number]} rows first, and the one after the last
   */
  update(plan, baseline, [first, last]) {
    const shown = `rows ${first + 1} to ${last} of ${plan.rows.length}`;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      setText(this._caption, `One iteration, predicted; ${shown}`);
      this._table.show(() =>
        plan.rows.slice(first, last).map((row, index) => {
          const figures = [plan, baseline].map((layout) => stageFigures(layout, first + index));
          return makeRow([
            row.name,
            ...figures.map(({ busy_s }) => milliseconds(busy_s)),
            ...figures.map(({ meanClock_mhz }) => megahertz(meanClock_mhz)),
            ...figures.map(({ busyEnergy_j }) => joules(busyEnergy_j)),
            ...figures.map(({ bubble_percent }) => percent(bubble_percent)),
          ]);
        }),
      );
    }, DELAY_MS);
  }
}
