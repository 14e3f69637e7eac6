// Content of the frontier's chart: marks, range of the axes, figures as text.

import { joules, percent, percentAbove, seconds } from "./format.js";

/**
 * @import { JobPageState } from "./job_state.js"
 * @import { ComparedPlan, FrontierPoint, JobFrontier, JobOverview } from "./wire_types.js"
 */

/**
 * Plan in the chart that is not a point of the frontier.
 * @typedef {object} Mark
 * @property {"baseline" | "envpipe" | "current" | "measured"} kind
 * @property {string} label
 * @property {string} short label where there is little room; empty: none
 * @property {string} words label with figures
 * @property {number} time_s
 * @property {number} energy_j
 */

// A mark further away than this part of the range of plans and baseline would squeeze all others.
const FARTHEST_SHARE = 0.5;

export const NUM_POINTS = 30;

/** Number of instructions above which the frontier is only computed on request. */
export const MANY_INSTRUCTIONS = 1000;

/** Return the number of forwards and backwards of an iteration. @param {JobOverview} overview */
export function numInstructions({ num_stages, num_microbatches }) {
  return 2 * num_stages * num_microbatches;
}

/**
 * Return a key of what a frontier depends on, as far as the page has it.
 * @param {JobPageState} state
 */
export function frontierKey({ overview, history }) {
  const newest = history.filter(({ predicted }) => predicted !== null).at(-1);
  const { baseline_iteration_time_s, baseline_energy_j } =
    newest?.predicted ?? overview.predicted ?? {};
  const schedule = newest?.schedule ?? overview.schedule;
  return JSON.stringify([schedule, baseline_iteration_time_s ?? null, baseline_energy_j ?? null]);
}

/**
 * Return the marks of baseline, EnvPipe's plans, the job's plan and what was measured.
 * @param {JobFrontier} frontier
 * @param {JobPageState} state
 * @returns {Mark[]}
 */
export function marksOf(frontier, state) {
  const { baseline, envpipe } = frontier;
  /** @type {Mark[]} */
  const marks = [mark("baseline", ["baseline: highest clocks", ""], baseline, "predicted")];
  for (const group of alike(envpipe)) {
    const label = `EnvPipe: ${group.map(({ name }) => name).join("; ")}`;
    marks.push(mark("envpipe", [label, ""], group[0], "predicted"));
  }
  const { overview } = state;
  const version = overview.active_version ?? overview.newest_version;
  if (overview.predicted !== null && version !== null) {
    const isActive = version === overview.active_version;
    const label = `version ${version}, ${isActive ? "in force" : "newest"}`;
    marks.push(mark("current", [label, `v${version}`], overview.predicted, "predicted"));
  }
  const measured = measuredMark(overview);
  if (measured) marks.push(measured);
  return marks;
}

/** @param {JobOverview} overview @returns {Mark | null} */
function measuredMark({ measured, emulated }) {
  if (measured === null || measured.energy_j === null) return null;
  const { first_step, last_step, iteration_time_s, energy_j, version, clocks } = measured;
  const steps =
    first_step === last_step ? `step ${first_step}` : `steps ${first_step} to ${last_step}`;
  const ran = clocks === "plan" ? `version ${version}` : `${clocks} clocks`;
  const how = emulated ? "measured on emulated GPUs" : "measured";
  return mark("measured", [`${ran}, ${how}`, "measured"], { iteration_time_s, energy_j }, steps);
}

/**
 * @param {Mark["kind"]} kind
 * @param {[string, string]} labels long and short
 * @param {{iteration_time_s: number, energy_j: number}} plan
 * @param {string} origin
 * @returns {Mark}
 */
function mark(kind, [label, short], { iteration_time_s, energy_j }, origin) {
  const words = `${label}: ${seconds(iteration_time_s)}, ${joules(energy_j)}, ${origin}`;
  return { kind, label, short, words, time_s: iteration_time_s, energy_j };
}

/**
 * Group plans with the same time and energy: their marks would hide each other.
 * @param {ComparedPlan[]} plans
 * @returns {ComparedPlan[][]}
 */
function alike(plans) {
  /** @type {ComparedPlan[][]} */
  const groups = [];
  for (const plan of plans) {
    const known = groups.find(
      ([first]) =>
        Math.abs(first.iteration_time_s / plan.iteration_time_s - 1) < 1e-6 &&
        Math.abs(first.energy_j / plan.energy_j - 1) < 1e-6,
    );
    if (known) known.push(plan);
    else groups.push([plan]);
  }
  return groups;
}

/**
 * Range of the axes.
 * @typedef {{fastest_s: number, slowest_s: number, least_j: number, most_j: number}} Extent
 */

/**
 * @param {JobFrontier} frontier
 * @param {Mark[]} marks
 * @returns {{extent: Extent, outside: Mark[]}} `outside`: marks too far away to be drawn
 */
export function extentOf(frontier, marks) {
  const { baseline, points } = frontier;
  const times = points.map((point) => point.iteration_time_s);
  const energies = points.map((point) => point.energy_j);
  const usual = [...points, baseline];
  const isFar = (/** @type {Mark} */ { kind, time_s, energy_j }) =>
    (kind === "measured" || kind === "envpipe") &&
    (isFarFrom(time_s, usual.map((plan) => plan.iteration_time_s)) ||
      isFarFrom(energy_j, usual.map((plan) => plan.energy_j)));
  const outside = marks.filter(isFar);
  const inside = marks.filter((each) => !isFar(each));
  const bounds = points.map((point) => point.lower_bound_j);
  const all_s = [...times, ...inside.map((each) => each.time_s)];
  const all_j = [...energies, ...bounds, ...inside.map((each) => each.energy_j)];
  const [fastest_s, slowest_s] = padded(all_s, 0.13, 0.05);
  const [least_j, most_j] = padded(all_j, 0.16, 0.08);
  return { extent: { fastest_s, slowest_s, least_j, most_j }, outside };
}

/** @param {number} value @param {number[]} values */
function isFarFrom(value, values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const reach = Math.max(FARTHEST_SHARE * (high - low), 0.1 * high);
  return value < low - reach || value > high + reach;
}

/**
 * Return the range of values with room on both sides.
 * @param {number[]} values
 * @param {number} below share of the range
 * @param {number} above
 * @returns {[number, number]}
 */
function padded(values, below, above) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const range = Math.max(high - low, 1e-3 * Math.abs(high), 1e-9);
  return [low - below * range, high + above * range];
}

/**
 * Return the figures of a point, with its saving and slowdown against the baseline.
 * @param {FrontierPoint} point
 * @param {ComparedPlan} baseline
 */
export function pointWords({ iteration_time_s, energy_j, gap_percent }, baseline) {
  const slowdown = percentAbove(iteration_time_s, baseline.iteration_time_s);
  return {
    time: seconds(iteration_time_s),
    energy: joules(energy_j),
    gap: percent(gap_percent, { digits: 2 }),
    saving: percent(-percentAbove(energy_j, baseline.energy_j)),
    slowdown: percent(slowdown, { signed: true, digits: 2 }),
  };
}

/** @param {FrontierPoint} point @param {ComparedPlan} baseline */
export function pointSentence(point, baseline) {
  const { time, energy, gap, saving, slowdown } = pointWords(point, baseline);
  return `${time}, ${energy}; saves ${saving}, ${slowdown} time; gap ${gap}; predicted`;
}

/** Slowdowns in % are rounded up to these digits, but for rounding errors: the point's plan fits. */
const SLOWDOWN_DIGITS = 7;

/**
 * Return the target that gives a point's plan, in time relative to the highest clocks: it can still
 * be met when a GPU becomes slower. A point that is faster than these has its deadline.
 * @param {FrontierPoint} point
 * @param {ComparedPlan} baseline
 */
export function targetOf({ deadline_s }, baseline) {
  const slowdown = 100 * (deadline_s / baseline.iteration_time_s - 1);
  if (slowdown < 0) return deadlineOf({ deadline_s });
  const scale = 10 ** SLOWDOWN_DIGITS;
  return `slowdown:${Math.ceil(slowdown * scale - 1e-3) / scale}%`;
}

/**
 * Return the target that keeps a point's deadline, whatever the highest clocks take.
 * @param {Pick<FrontierPoint, "deadline_s">} point
 */
export function deadlineOf({ deadline_s }) {
  return `deadline:${deadline_s}`;
}
