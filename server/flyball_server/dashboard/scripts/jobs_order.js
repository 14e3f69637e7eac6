// Which jobs the table shows and in which order: searched by words, sorted by a column.

import { targetText } from "./format.js";
import { isRunning } from "./job_words.js";

/**
 * @typedef {import("./wire_types.js").JobOverview} JobOverview
 * @typedef {"name" | "state" | "gpus" | "time" | "energy" | "saving" | "gap"} Column
 * @typedef {{column: Column | null, falling: boolean}} Order
 *   `column` null: those on a plan first, then the newest
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
 * Those that have every word somewhere in what the table says of them.
 * @param {JobOverview[]} jobs
 * @param {string} words
 * @returns {JobOverview[]}
 */
export function searched(jobs, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return jobs.filter((job) => {
    const kind = job.emulated ? "emulated" : "real";
    // As it is written in the table, and as it is put.
    const targets = [targetText(job.target).replace("\u202f", " "), job.target];
    const text = [job.job_id, job.state, job.schedule, job.policy, ...targets, kind]
      .join(" ")
      .toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/**
 * In order; a job without a value of that column comes last, whichever way it is sorted.
 * @param {JobOverview[]} jobs
 * @param {Order} order
 * @returns {JobOverview[]}
 */
export function sorted(jobs, { column, falling }) {
  if (column === null) return [...jobs].sort(asTheyMatter);
  const key = KEYS[column];
  return [...jobs].sort((one, other) => {
    const a = key(one);
    const b = key(other);
    if (a === null || b === null) {
      return Number(a === null) - Number(b === null) || compareText(one.job_id, other.job_id);
    }
    const rising = typeof a === "string" ? compareText(a, String(b)) : a - Number(b);
    return (falling ? -rising : rising) || compareText(one.job_id, other.job_id);
  });
}

/**
 * Not by when they were heard of: rows of running jobs would change places all the time.
 * @param {JobOverview} one
 * @param {JobOverview} other
 * @returns {number}
 */
function asTheyMatter(one, other) {
  return (
    standing(one) - standing(other) ||
    compareText(other.created_at, one.created_at) ||
    compareText(one.job_id, other.job_id)
  );
}

/**
 * @param {JobOverview} job
 * @returns {number} lower: further up
 */
function standing(job) {
  if (!isRunning(job)) return 2;
  return job.active_version === null ? 1 : 0;
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

/**
 * @param {string} one
 * @param {string} other
 * @returns {number}
 */
function compareText(one, other) {
  return COLLATOR.compare(one, other);
}
