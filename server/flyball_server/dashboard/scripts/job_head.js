// Head of a job's page: name, state, target, plan and notes.

import { make, setChildren, setText } from "./elements.js";
import { clockTime, count, counted, jobTarget, joules, percent, seconds } from "./format.js";
import { emulatedBadge, isOver, progressText, shapeText, stateBadge, stateText, toDo } from "./job_words.js";

/**
 * @import { PanelContext } from "./job_page.js"
 * @import { JobPageState } from "./job_state.js"
 * @import { ComparisonStatus, JobOverview, ProfilingStatus, TimetableStatus } from "./wire_types.js"
 */

export class JobHead {
  /** @param {HTMLElement} element @param {PanelContext} context */
  constructor(element, { jobId }) {
    this.title = make("h1", jobId);
    this.badges = make("span.badges");
    this.progress = make("span.note");
    this.facts = make("dl.facts");
    this.problem = make("p.problem", { role: "alert", hidden: true });
    this.notes = make("details.notes", { hidden: true });
    this.shown = "";
    setChildren(
      element,
      make("div.job-title", this.title, this.badges, this.progress),
      this.problem,
      this.facts,
      this.notes,
    );
  }

  /** @param {JobPageState} state */
  update(state) {
    const { overview, notes } = state;
    setText(this.progress, progressText(overview, new Date()));
    const action = toDo(overview);
    this.problem.hidden = action === null;
    setText(this.problem, action ?? "");
    const entries = facts(state);
    const shown = JSON.stringify([entries, notes, stateText(overview), overview.emulated]);
    if (shown === this.shown) return;
    this.shown = shown;
    setChildren(this.badges, stateBadge(overview), overview.emulated ? emulatedBadge() : null);
    setChildren(
      this.facts,
      ...entries.map(([name, text]) => make("div", make("dt", name), make("dd", text))),
    );
    this.notes.hidden = notes.length === 0;
    const summary = make("summary", counted(notes.length, "note"));
    const items = notes.map((note) => make("li", note));
    setChildren(this.notes, summary, make("ul", { "aria-label": "Notes" }, ...items));
  }
}

/** @param {JobPageState} state @returns {[string, string][]} */
function facts(state) {
  const job = state.overview;
  /** @type {[string, string][]} */
  const found = [
    ["GPUs present", `${count(job.num_present)} of ${count(job.num_ranks)}`],
    ["Pipeline", `${shapeText(job)}, ${job.schedule}`],
    ["Policy", job.policy],
    ["Target", targetFact(job, state.timetable)],
    ["Plan", planText(job, state)],
    ["Steps measured", count(job.num_steps) + (job.is_caught_up ? "" : ", still counting")],
  ];
  if (job.num_unknown_steps > 0) {
    found.push(["Not counted", `${count(job.num_unknown_steps)} steps on unknown plans`]);
  }
  if (state.profiling !== null && state.profiling.state !== "off") {
    found.push(["Online profiling", profilingText(state.profiling)]);
  }
  if (state.comparison !== null && state.comparison.state !== "none") {
    found.push(["Comparison", comparisonText(state.comparison)]);
  }
  return found;
}

/** @param {JobOverview} job @param {TimetableStatus | null} timetable */
function targetFact(job, timetable) {
  const target = jobTarget(job);
  if (timetable === null || timetable.timetable === null) return target;
  if (timetable.next_change === null) return `${target} (timetable)`;
  return `${target} (timetable; may change at ${clockTime(new Date(timetable.next_change))})`;
}

/** @param {JobOverview} job @param {JobPageState} state */
function planText(job, state) {
  if (job.newest_version === null) return "none yet";
  const active = state.history.find((plan) => plan.version === job.active_version);
  const first = active?.first_step ?? null;
  const since = first === null ? "" : ` from step ${count(first)}`;
  const wait = isOver(job) ? "never held" : "waits for its ranks";
  const next = job.newest_version === job.active_version ? "" : `v${job.newest_version} ${wait}`;
  if (job.active_version === null) return next;
  return `v${job.active_version}${since}${next && `; ${next}`}`;
}

/** @param {ProfilingStatus} profiling */
function profilingText(profiling) {
  const parts = [profiling.state, `${count(profiling.num_steps)} steps profiled`];
  if (profiling.problem !== null) parts.push(profiling.problem);
  if (profiling.largest_slowdown !== null) {
    const limit = percent(100 * profiling.slowdown_limit);
    parts.push(`at most ${percent(100 * profiling.largest_slowdown)} slower (limit ${limit})`);
  }
  if (profiling.extra_time_s !== null)
    parts.push(`added ${seconds(profiling.extra_time_s)}, measured`);
  if (profiling.extra_energy_j !== null)
    parts.push(`${joules(profiling.extra_energy_j)}, measured`);
  return parts.join("; ");
}

/** @param {ComparisonStatus} comparison */
function comparisonText(comparison) {
  const { num_measured_pairs, num_pairs, state } = comparison;
  return `${state}, ${count(num_measured_pairs)} pairs measured, ${count(num_pairs)} asked for`;
}
