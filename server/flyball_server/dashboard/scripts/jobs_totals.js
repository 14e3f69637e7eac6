// What all jobs come to together; jobs on emulated GPUs are never added to those on real ones.

import { make, setChildren } from "./elements.js";
import { count, counted, joules, watts } from "./format.js";
import { isRunning } from "./job_words.js";

/** @typedef {import("./wire_types.js").JobOverview} JobOverview */

/**
 * @typedef {object} Totals
 * @property {boolean} emulated
 * @property {number} num_jobs
 * @property {number} num_running
 * @property {number} num_present GPUs
 * @property {number} num_expected GPUs, of the jobs that run
 * @property {number} num_saving jobs with a measured saving
 * @property {number} saved_j
 * @property {number | null} saved_low_j null: not known of one of them
 * @property {number | null} saved_high_j
 * @property {number} num_powered running jobs whose power is measured
 * @property {number} power_w of these
 */

/**
 * @param {JobOverview[]} jobs
 * @returns {Totals[]} of real GPUs, then of emulated ones; one without jobs is left out
 */
export function totalsOf(jobs) {
  return [false, true].flatMap((emulated) => {
    const those = jobs.filter((job) => job.emulated === emulated);
    return those.length === 0 ? [] : [totals(those, emulated)];
  });
}

/**
 * @param {JobOverview[]} jobs
 * @param {boolean} emulated
 * @returns {Totals}
 */
function totals(jobs, emulated) {
  const running = jobs.filter(isRunning);
  const saved = jobs.flatMap((job) => (job.saved_j === null ? [] : [job.saved_j]));
  const powers_w = running.flatMap((job) => {
    const measured = job.measured;
    return measured === null || measured.energy_j === null
      ? []
      : [measured.energy_j / measured.iteration_time_s];
  });
  return {
    emulated,
    num_jobs: jobs.length,
    num_running: running.length,
    num_present: sum(running.map((job) => job.num_present)),
    num_expected: sum(running.map((job) => job.num_ranks)),
    num_saving: saved.length,
    saved_j: sum(saved.map((each) => each.mean)),
    saved_low_j: sumOrNull(saved.map((each) => each.low)),
    saved_high_j: sumOrNull(saved.map((each) => each.high)),
    num_powered: powers_w.length,
    power_w: sum(powers_w),
  };
}

/**
 * @param {HTMLElement} element
 * @param {JobOverview[]} jobs
 */
export function showTotals(element, jobs) {
  setChildren(element, ...totalsOf(jobs).map(strip));
}

/**
 * @param {Totals} all
 * @returns {HTMLElement}
 */
function strip(all) {
  const name = all.emulated ? "Emulated GPUs" : "Real GPUs";
  return make(
    "section",
    {
      class: all.emulated ? "totals emulated-totals" : "totals",
      "aria-label": `${name}, all jobs`,
    },
    make("p", { class: "totals-name" }, name),
    make(
      "dl",
      {},
      entry("Jobs running", count(all.num_running), `of ${counted(all.num_jobs, "job")}`),
      entry(
        "GPUs present",
        count(all.num_present),
        `of ${count(all.num_expected)} of the running jobs`,
      ),
      entry(
        "Energy saved, measured",
        all.num_saving === 0 ? "\u2013" : joules(all.saved_j),
        savedNote(all),
        "saved",
      ),
      entry(
        "Mean power now, measured",
        all.num_powered === 0 ? "\u2013" : watts(all.power_w),
        powerNote(all),
      ),
    ),
  );
}

/**
 * @param {Totals} all
 * @returns {string}
 */
function savedNote(all) {
  if (all.num_saving === 0) return "no job has a measured baseline";
  const jobs = `in ${counted(all.num_saving, "job")}`;
  if (all.saved_low_j === null || all.saved_high_j === null) return jobs;
  return `${joules(all.saved_low_j)} to ${joules(all.saved_high_j)} ${jobs}`;
}

/**
 * @param {Totals} all
 * @returns {string}
 */
function powerNote(all) {
  if (all.num_powered === 0) return "no running job has measured steps";
  if (all.num_powered === all.num_running) return "of the running jobs";
  return `of ${all.num_powered} of ${all.num_running} running jobs`;
}

/**
 * @param {string} name
 * @param {string} figure
 * @param {string} note
 * @param {string} [kind]
 * @returns {HTMLElement}
 */
function entry(name, figure, note, kind = "") {
  return make(
    "div",
    { class: `total ${kind}` },
    make("dt", {}, name),
    make("dd", { class: "figure" }, figure),
    make("dd", { class: "note" }, note),
  );
}

/**
 * @param {number[]} values
 * @returns {number}
 */
function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/**
 * @param {(number | null)[]} values
 * @returns {number | null}
 */
function sumOrNull(values) {
  return values.some((value) => value === null) ? null : sum(/** @type {number[]} */ (values));
}
