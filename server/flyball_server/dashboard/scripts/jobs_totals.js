// Totals of all jobs; jobs on emulated GPUs are never added to those on real ones.

import { make, setChildren } from "./elements.js";
import { costs, count, counted, percent, sum, wattHours, watts } from "./format.js";
import { isRunning } from "./job_words.js";

/** @import { JobOverview } from "./wire_types.js" */

/** @typedef {ReturnType<typeof totals>} Totals of jobs on real or on emulated GPUs */

/**
 * @param {JobOverview[]} jobs
 * @returns {Totals[]} of real GPUs, then of emulated ones, where there are jobs
 */
export function totalsOf(jobs) {
  return [false, true].flatMap((emulated) => {
    const those = jobs.filter((job) => job.emulated === emulated);
    return those.length === 0 ? [] : [totals(those, emulated)];
  });
}

/**
 * Add up jobs; a bound of the saving is null if one of them has none.
 * @param {JobOverview[]} jobs
 * @param {boolean} emulated
 */
function totals(jobs, emulated) {
  const running = jobs.filter(isRunning);
  const saved = jobs.flatMap((job) => (job.saved_j === null ? [] : [job.saved_j]));
  const powers_w = running.flatMap(({ measured }) =>
    measured?.energy_j == null ? [] : [measured.energy_j / measured.iteration_time_s],
  );
  return {
    emulated,
    num_jobs: jobs.length,
    num_running: running.length,
    num_present: sum(running.map((job) => job.num_present)),
    num_expected: sum(running.map((job) => job.num_ranks)),
    num_saving: saved.length,
    num_slower: jobs.filter(({ headline, saved_j }) => saved_j && headline?.tone === "trade").length,
    saved_of_j: sum(jobs.map((job) => job.saved_of_j ?? 0)),
    factors: jobs[0].factors,
    saved_j: sum(saved.map((each) => each.mean)),
    saved_low_j: sumOrNull(saved.map((each) => each.low)),
    saved_high_j: sumOrNull(saved.map((each) => each.high)),
    num_powered: powers_w.length,
    power_w: sum(powers_w),
  };
}

/** @param {HTMLElement} element @param {JobOverview[]} jobs */
export function showTotals(element, jobs) {
  setChildren(element, ...totalsOf(jobs).map(strip));
}

/** @param {Totals} all */
function strip(all) {
  const name = all.emulated ? "Emulated GPUs" : "Real GPUs";
  const expected = `of ${count(all.num_expected)} of the running jobs`;
  const saved = all.num_saving === 0 ? null : all.saved_j;
  const costly = saved === null ? [] : costs(saved, all.factors);
  const power_w = all.num_powered === 0 ? null : all.power_w;
  return make(
    all.emulated ? "section.totals.emulated-totals" : "section.totals",
    { "aria-label": `${name}, all jobs` },
    make("p.totals-name", name),
    make(
      "dl",
      entry("Jobs running", count(all.num_running), `of ${counted(all.num_jobs, "job")}`),
      entry("GPUs present", count(all.num_present), expected),
      entry("Saved, measured", wattHours(saved), savedNote(all)),
      ...costly.map(({ name, text }) => entry(name, text, "measured, at the planner's factors")),
      entry("Mean power now, measured", watts(power_w), powerNote(all)),
    ),
  );
}

/** @param {Totals} all */
function savedNote(all) {
  if (all.num_saving === 0) return "no job has a measured baseline";
  const slower = all.num_slower === 0 ? "" : `, ${count(all.num_slower)} of them slower for it`;
  const jobs = `in ${counted(all.num_saving, "job")}${slower}`;
  const share = all.saved_of_j > 0 ? `${percent((100 * all.saved_j) / all.saved_of_j)}; ` : "";
  if (all.saved_low_j === null || all.saved_high_j === null) return share + jobs;
  return `${share}${wattHours(all.saved_low_j)} to ${wattHours(all.saved_high_j)} ${jobs}`;
}

/** @param {Totals} all */
function powerNote(all) {
  if (all.num_powered === 0) return "no running job has measured steps";
  if (all.num_powered === all.num_running) return "of the running jobs";
  return `of ${all.num_powered} of ${all.num_running} running jobs`;
}

/** @param {string} name @param {string} figure @param {string} note */
function entry(name, figure, note) {
  return make(
    "div.total",
    make("dt", name),
    make("dd.figure", figure),
    make("dd.note", note),
  );
}

/** @param {(number | null)[]} values */
function sumOrNull(values) {
  return values.some((value) => value === null) ? null : sum(/** @type {number[]} */ (values));
}
