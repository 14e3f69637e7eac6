// A job's state, progress and clocks as text, for the table and the job's page.

import { make } from "./elements.js";
import { ago, count, counted } from "./format.js";

/** @import { JobOverview } from "./wire_types.js" */

// Of a state, or of the trouble that hides behind it.
/** @type {Map<string, {tone: string, sign: string}>} */
const STATES = new Map([
  ["no ranks", { tone: "bad", sign: "\u25c7" }],
  ["ranks missing", { tone: "bad", sign: "\u25c8" }],
  ["refused", { tone: "bad", sign: "\u2715" }],
  ["no clocks", { tone: "bad", sign: "\u25b3" }],
  ["slow GPU", { tone: "wait", sign: "\u25bc" }],
  ["steps differ", { tone: "work", sign: "\u2248" }],
  ["awaiting-profile", { tone: "wait", sign: "\u25cb" }],
  ["profiling", { tone: "work", sign: "\u25d0" }],
  ["planned", { tone: "good", sign: "\u25cf" }],
  ["planning-failed", { tone: "bad", sign: "\u25b2" }],
  ["ended", { tone: "over", sign: "\u25a0" }],
  ["expired", { tone: "over", sign: "\u25a1" }],
]);

const CLOCKS = new Map([
  ["plan", "on the plan"],
  ["highest", "at the highest clocks"],
  ["default", "at default clocks"],
  ["profiling", "while profiling"],
]);

/** Return whether ranks of a job are present. @param {JobOverview} job */
export function isRunning(job) {
  return job.num_present > 0 && !isOver(job);
}

/** @param {JobOverview} job */
export function isOver(job) {
  return job.state === "ended" || job.state === "expired";
}

/**
 * Return whether the newest figures are of the plan: only these are compared with the baseline.
 * @param {JobOverview} job
 */
export function isOnPlan({ measured }) {
  return measured === null || measured.clocks === "plan";
}

/** Return the trouble that a job's state does not say, or else its state. @param {JobOverview} job */
export function stateText({ state, condition }) {
  return condition?.name ?? state;
}

/** Return the line for someone who has to act; null: nobody has to. @param {JobOverview} job */
export function toDo({ problem, condition }) {
  return problem ?? condition?.action ?? null;
}

/** Create the badge of a state, each with a sign of its own shape. @param {JobOverview} job */
export function stateBadge(job) {
  const { tone, sign } = STATES.get(stateText(job)) ?? { tone: "wait", sign: "?" };
  return make(
    "span",
    { class: `badge tone-${tone}` },
    make("span.badge-sign", { "aria-hidden": "true" }, sign),
    stateText(job),
  );
}

export function emulatedBadge() {
  return make(
    "span.badge.emulated",
    { title: "Its GPUs are emulated; no figure comes from a real GPU" },
    "emulated",
  );
}

/**
 * Return what a job does or waits for, beside its state.
 * @param {JobOverview} job
 * @param {Date} now
 */
export function progressText(job, now) {
  if (!isOver(job) && job.num_registered === 0) return "no rank has registered";
  if (isOver(job) || job.num_present === 0) {
    return `last heartbeat ${ago(new Date(job.last_seen_at), now)}`;
  }
  if (job.num_registered < job.num_ranks) {
    return `${job.num_ranks - job.num_registered} of ${job.num_ranks} ranks to come`;
  }
  if (job.newest_version !== null && job.newest_version !== job.active_version) {
    return `v${job.newest_version} waits for its ranks`;
  }
  return job.active_version === null ? "" : `runs v${job.active_version}`;
}

/** Return the size of a job's iteration. @param {JobOverview} job */
export function shapeText({ num_stages, num_microbatches }) {
  return `${counted(num_stages, "stage")} \u00d7 ${count(num_microbatches)} microbatches`;
}

/** Return how near a plan is to the least energy. @param {number | null} gap_percent */
export function gapWord(gap_percent) {
  if (gap_percent === null) return "unproven";
  return gap_percent < 1 ? "near-optimal" : gap_percent < 5 ? "good" : "improvable";
}

/** @param {string} clocks of MeasuredIteration */
export function clocksText(clocks) {
  return CLOCKS.get(clocks) ?? clocks;
}
