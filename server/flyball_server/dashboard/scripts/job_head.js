// The head of a job's page: its name and state, what it is planned for, what it waits for.

import { ApiError } from "./api_error.js";
import { make, setChildren, setText } from "./elements.js";
import { clockTime, count, joules, percent, seconds, targetText } from "./format.js";
import { emulatedBadge, isOver, progressText, stateBadge } from "./job_words.js";

/**
 * @typedef {import("./job_state.js").JobPageState} JobPageState
 * @typedef {import("./wire_types.js").JobOverview} JobOverview
 * @typedef {import("./wire_types.js").JobView} JobView
 * @typedef {import("./wire_types.js").TimetableView} TimetableView
 */

// The notes may change without an event: a rank falls silent, say.
const NOTES_PERIOD_MS = 30_000;

/**
 * @param {HTMLElement} element
 * @param {import("./job_page.js").PanelContext} context
 * @returns {import("./job_page.js").Panel}
 */
export function createJobHead(element, context) {
  const head = new JobHead(element, context);
  return {
    update: (state) => head.update(state),
    destroy: () => head.destroy(),
  };
}

class JobHead {
  /**
   * @param {HTMLElement} element
   * @param {import("./job_page.js").PanelContext} context
   */
  constructor(element, { api, jobId, guard }) {
    this.api = api;
    this.guard = guard;
    this.path = `api/v1/jobs/${encodeURIComponent(jobId)}`;
    this.title = make("h1", {}, jobId);
    this.badges = make("span", { class: "badges" });
    this.progress = make("span", { class: "note" });
    this.facts = make("dl", { class: "facts" });
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.notes = make("ul", { class: "notes", "aria-label": "Notes", hidden: true });
    /** @type {TimetableView | null} */
    this.timetable = null;
    this.asked = "";
    this.shown = "";
    this.question = new AbortController();
    setChildren(
      element,
      make("div", { class: "job-title" }, this.title, this.badges, this.progress),
      this.problem,
      this.facts,
      this.notes,
    );
    /** @type {JobPageState | null} */
    this.state = null;
    this.timer = setInterval(() => void this.ask(), NOTES_PERIOD_MS);
  }

  destroy() {
    this.question.abort();
    clearInterval(this.timer);
  }

  /** @param {JobPageState} state */
  update(state) {
    this.state = state;
    const { overview } = state;
    setText(this.progress, progressText(overview, new Date()));
    this.problem.hidden = overview.problem === null;
    setText(this.problem, overview.problem ?? "");
    this.showFacts();
    const {
      state: name,
      newest_version,
      active_version,
      num_registered,
      num_present,
      target,
    } = overview;
    const asked = JSON.stringify([
      name,
      newest_version,
      active_version,
      num_registered,
      num_present,
      target,
    ]);
    if (asked !== this.asked) {
      this.asked = asked;
      void this.ask();
    }
  }

  showFacts() {
    if (this.state === null) return;
    const entries = facts(this.state, this.timetable);
    const { overview } = this.state;
    const shown = JSON.stringify([entries, overview.state, overview.emulated]);
    if (shown === this.shown) return;
    this.shown = shown;
    setChildren(this.badges, stateBadge(overview), overview.emulated ? emulatedBadge() : null);
    setChildren(
      this.facts,
      ...entries.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))),
    );
  }

  /** What no event tells: the notes, and what the timetable does next. */
  async ask() {
    if (document.hidden) return;
    this.question.abort();
    this.question = new AbortController();
    const { signal } = this.question;
    /** @type {[JobView, TimetableView]} */
    let answers;
    try {
      answers = await Promise.all([
        this.api.get(this.path, { signal }),
        this.api.get(`${this.path}/timetable`, { signal }),
      ]);
    } catch (error) {
      if (signal.aborted || error instanceof ApiError) return; // the connection's sign tells it
      throw error;
    }
    if (signal.aborted) return;
    const [job, timetable] = answers;
    this.guard(() => {
      this.timetable = timetable;
      this.showNotes(job.notes ?? []);
      this.showFacts();
    });
  }

  /** @param {string[]} notes */
  showNotes(notes) {
    this.notes.hidden = notes.length === 0;
    if (notes.join("\n") === [...this.notes.children].map((line) => line.textContent).join("\n"))
      return;
    setChildren(this.notes, ...notes.map((note) => make("li", {}, note)));
  }
}

/**
 * @param {JobPageState} state
 * @param {TimetableView | null} timetable
 * @returns {[string, string][]}
 */
function facts(state, timetable) {
  const job = state.overview;
  /** @type {[string, string][]} */
  const found = [
    ["GPUs present", `${count(job.num_present)} of ${count(job.num_ranks)}`],
    [
      "Pipeline",
      `${job.num_stages} stages \u00d7 ${job.num_microbatches} microbatches, ${job.schedule}`,
    ],
    ["Policy", job.policy],
    ["Target", targetFact(job, timetable)],
    ["Plan", planText(job, state)],
    ["Steps measured", count(job.num_steps) + (job.is_caught_up ? "" : ", still counting")],
  ];
  if (state.profiling !== null && state.profiling.state !== "off") {
    found.push(["Online profiling", profilingText(state.profiling)]);
  }
  if (state.comparison !== null && state.comparison.state !== "none") {
    found.push(["Comparison", comparisonText(state.comparison)]);
  }
  return found;
}

/**
 * @param {JobOverview} job
 * @param {TimetableView | null} timetable
 * @returns {string}
 */
function targetFact(job, timetable) {
  const target = targetText(job.target);
  if (timetable === null || timetable.timetable === null) return target;
  if (timetable.next_change === null) return `${target} (timetable)`;
  return `${target} (timetable; may change at ${clockTime(new Date(timetable.next_change))})`;
}

/**
 * @param {JobOverview} job
 * @param {JobPageState} state
 * @returns {string}
 */
function planText(job, state) {
  if (job.newest_version === null) return "none yet";
  const active = state.history.find((plan) => plan.version === job.active_version);
  const since =
    active === undefined || active.first_step === null
      ? ""
      : ` from step ${count(active.first_step)}`;
  const wait = isOver(job) ? "never held" : "waits for its ranks";
  const next = job.newest_version === job.active_version ? "" : `v${job.newest_version} ${wait}`;
  if (job.active_version === null) return next;
  return `v${job.active_version}${since}${next && `; ${next}`}`;
}

/**
 * @param {import("./wire_types.js").ProfilingView} profiling
 * @returns {string}
 */
function profilingText(profiling) {
  const parts = [profiling.state, `${count(profiling.num_steps)} steps profiled`];
  if (profiling.problem !== null) parts.push(profiling.problem);
  if (profiling.largest_slowdown !== null) {
    parts.push(
      `at most ${percent(100 * profiling.largest_slowdown)} slower (limit ${percent(100 * profiling.slowdown_limit)})`,
    );
  }
  if (profiling.extra_time_s !== null)
    parts.push(`added ${seconds(profiling.extra_time_s)}, measured`);
  if (profiling.extra_energy_j !== null)
    parts.push(`${joules(profiling.extra_energy_j)}, measured`);
  return parts.join("; ");
}

/**
 * @param {import("./wire_types.js").ComparisonView} comparison
 * @returns {string}
 */
function comparisonText(comparison) {
  const { num_measured_pairs, num_pairs, state } = comparison;
  return `${state}, ${count(num_measured_pairs)} pairs measured, ${count(num_pairs)} asked for`;
}
