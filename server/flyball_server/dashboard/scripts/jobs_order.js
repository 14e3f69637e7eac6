// Search and order of the table of jobs.

import { jobTarget } from "./format.js";
import { isRunning } from "./job_words.js";

/** @import { JobOverview } from "./wire_types.js" */

/**
 * @typedef {"name" | "state" | "gpus" | "time" | "energy" | "saving" | "gap"} Column
 * @typedef {{column: Column | null, falling: boolean}} Order
 *   `column` null: jobs on a plan first, then the newest
 */

/** @type {Record<Column, (job: JobOverview) => string | number | null>} */
const KEYS = {
  name: (job) => job.job_id,
  state: (job) => job.state,
  gpus: (job) => job.num_present,
  time: (job) => job.measured?.iteration_time_s ?? job.predicted?.iteration_time_s ?? null,
  energy: (job) => job.measured?.energy_j ?? job.predicted?.energy_j ?? null,
  saving: (job) => job.saving_percent?.mean ?? null,
  gap: (job) => job.predicted?.gap_percent ?? null,
};

/**
 * Return the jobs whose row contains every word.
 * @param {JobOverview[]} jobs
 * @param {string} words
 * @returns {JobOverview[]}
 */
export function searched(jobs, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return jobs.filter((job) => {
    const kind = job.emulated ? "emulated" : "real";
    // As shown, and as in the API.
    const targets = [jobTarget(job).replaceAll("\u202f", " "), job.target];
    const texts = [job.job_id, job.state, job.schedule, job.policy, ...targets, kind];
    const text = texts.join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/**
 * Sort jobs; one without a value in the column comes last in both directions.
 * @param {JobOverview[]} jobs
 * @param {Order} order
 * @returns {JobOverview[]}
 */
export function sorted(jobs, { column, falling }) {
  const byName = [...jobs].sort((one, other) => compareText(one.job_id, other.job_id));
  if (column === null) {
    // Not by the last heartbeat: rows of running jobs would change places all the time.
    return byName.sort(
      (one, other) =>
        standing(one) - standing(other) || compareText(other.created_at, one.created_at),
    );
  }
  const key = KEYS[column];
  return byName.sort((one, other) => {
    const a = key(one);
    const b = key(other);
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    const rising = typeof a === "string" ? compareText(a, String(b)) : a - Number(b);
    return falling ? -rising : rising;
  });
}

/**
 * @param {JobOverview} job
 * @returns {number} lower: further up
 */
function standing(job) {
  if (!isRunning(job)) return 2;
  return job.active_version === null ? 1 : 0;
}

const compareText = new Intl.Collator("en", { numeric: true }).compare;
