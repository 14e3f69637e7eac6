// A job's state and what its figures are of, in words that the table and the job's page share.

import { make } from "./elements.js";
import { ago } from "./format.js";

/** @typedef {import("./wire_types.js").JobOverview} JobOverview */

/** @type {Map<string, {tone: string, sign: string}>} */
const STATES = new Map([
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

/**
 * @param {JobOverview} job
 * @returns {boolean} whether its ranks are there
 */
export function isRunning(job) {
  return job.num_present > 0 && !isOver(job);
}

/**
 * @param {JobOverview} job
 * @returns {boolean}
 */
export function isOver(job) {
  return job.state === "ended" || job.state === "expired";
}

/**
 * Whether the newest figures are of the plan, as its changes against the baseline are: not while it
 * runs at other clocks.
 * @param {JobOverview} job
 * @returns {boolean}
 */
export function isOnPlan({ measured }) {
  return measured === null || measured.clocks === "plan";
}

/**
 * The state with a sign of its own shape.
 * @param {JobOverview} job
 * @returns {HTMLElement}
 */
export function stateBadge(job) {
  const { tone, sign } = STATES.get(job.state) ?? { tone: "wait", sign: "?" };
  return make(
    "span",
    { class: `badge tone-${tone}` },
    make("span", { "aria-hidden": "true", class: "badge-sign" }, sign),
    job.state,
  );
}

/** @returns {HTMLElement} */
export function emulatedBadge() {
  return make(
    "span",
    { class: "badge emulated", title: "Its GPUs are emulated; no figure comes from a real GPU" },
    "emulated",
  );
}

/**
 * What a job does or waits for, beside its state; empty: nothing to add.
 * @param {JobOverview} job
 * @param {Date} now
 * @returns {string}
 */
export function progressText(job, now) {
  if (!isOver(job) && job.num_registered === 0) return "no rank has registered";
  if (isOver(job) || job.num_present === 0) return `heard of ${ago(new Date(job.heard_at), now)}`;
  if (job.num_registered < job.num_ranks) {
    return `${job.num_ranks - job.num_registered} of ${job.num_ranks} ranks to come`;
  }
  if (job.newest_version !== null && job.newest_version !== job.active_version) {
    return `v${job.newest_version} waits for its ranks`;
  }
  return job.active_version === null ? "" : `runs v${job.active_version}`;
}

/**
 * @param {string} clocks of MeasuredIteration
 * @returns {string}
 */
export function clocksText(clocks) {
  return CLOCKS.get(clocks) ?? clocks;
}
