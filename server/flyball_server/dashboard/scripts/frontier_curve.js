// What the frontier's chart shows: its marks, its axes, its figures in words; nothing drawn.

import { joules, percent, percentAbove, seconds } from "./format.js";

/** @typedef {import("./wire_types.js").FrontierPointView} FrontierPoint */
/** @typedef {import("./wire_types.js").ComparedPlanView} ComparedPlan */
/** @typedef {import("./wire_types.js").FrontierView} FrontierView */
/** @typedef {import("./job_state.js").JobPageState} JobPageState */

/**
 * A plan in the chart beside the frontier's points.
 *
 * @typedef {object} Mark
 * @property {"baseline" | "envpipe" | "current" | "measured"} kind
 * @property {string} label beside the mark.
 * @property {string} short likewise where there is little room; empty: none.
 * @property {string} words whole.
 * @property {number} time_s
 * @property {number} energy_j
 */

// What was measured is drawn where it is, unless that would squeeze everything else.
const FARTHEST_SHARE = 0.4;

/** Points asked for. */
export const NUM_POINTS = 30;

/** Above so many instructions the planner may take minutes: it is not asked uninvited. */
export const MANY_INSTRUCTIONS = 20000;

/**
 * At least so many instructions has an iteration: forwards and backwards.
 *
 * @param {import("./wire_types.js").JobOverview} overview
 */
export function numInstructions({ num_stages, num_microbatches }) {
  return 2 * num_stages * num_microbatches;
}

/**
 * What a frontier is found for, as far as it can be seen: while this stays, it stays.
 *
 * @param {JobPageState} state
 * @returns {string}
 */
export function frontierKey({ overview, history }) {
  const newest = history.filter(({ predicted }) => predicted !== null).at(-1);
  const { baseline_iteration_time_s, baseline_energy_j } =
    newest?.predicted ?? overview.predicted ?? {};
  const schedule = newest?.schedule ?? overview.schedule;
  return JSON.stringify([schedule, baseline_iteration_time_s ?? null, baseline_energy_j ?? null]);
}

/**
 * Everything in the chart but the frontier's points.
 *
 * @param {FrontierView} frontier
 * @param {JobPageState} state
 * @returns {Mark[]}
 */
export function marksOf(frontier, state) {
  const { baseline, envpipe } = frontier;
  /** @type {Mark[]} */
  const marks = [mark("baseline", ["baseline: highest clocks", "baseline"], baseline, "predicted")];
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

/**
 * @param {import("./wire_types.js").JobOverview} overview
 * @returns {Mark | null}
 */
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
 * @param {[string, string]} labels long and short.
 * @param {{iteration_time_s: number, energy_j: number}} plan
 * @param {string} origin
 * @returns {Mark}
 */
function mark(kind, [label, short], { iteration_time_s, energy_j }, origin) {
  const words = `${label}: ${seconds(iteration_time_s)}, ${joules(energy_j)}, ${origin}`;
  return { kind, label, short, words, time_s: iteration_time_s, energy_j };
}

/**
 * Plans with the same time and energy together: their marks would hide each other.
 *
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
 * What the axes span.
 *
 * @typedef {object} Extent
 * @property {number} fastest_s
 * @property {number} slowest_s
 * @property {number} least_j
 * @property {number} most_j
 */

/**
 * @param {FrontierView} frontier
 * @param {Mark[]} marks
 * @returns {{extent: Extent, outside: Mark[]}} `outside`: marks that are too far off to be drawn.
 */
export function extentOf(frontier, marks) {
  const { baseline, points } = frontier;
  const isFar = (/** @type {Mark} */ { kind, time_s, energy_j }) =>
    kind === "measured" &&
    (Math.abs(percentAbove(time_s, baseline.iteration_time_s)) > 100 * FARTHEST_SHARE ||
      Math.abs(percentAbove(energy_j, baseline.energy_j)) > 100 * FARTHEST_SHARE) &&
    !isWithin({ time_s, energy_j }, frontier);
  const outside = marks.filter(isFar);
  const inside = marks.filter((each) => !isFar(each));
  const times = [
    ...points.map((point) => point.iteration_time_s),
    ...inside.map((each) => each.time_s),
  ];
  const energies = [
    ...points.flatMap((point) => [point.energy_j, point.lower_bound_j]),
    ...inside.map((each) => each.energy_j),
  ];
  const [fastest_s, slowest_s] = padded(times, 0.13, 0.05);
  const [least_j, most_j] = padded(energies, 0.16, 0.08);
  return { extent: { fastest_s, slowest_s, least_j, most_j }, outside };
}

/**
 * @param {{time_s: number, energy_j: number}} place
 * @param {FrontierView} frontier
 */
function isWithin({ time_s, energy_j }, { points, baseline }) {
  const times = [...points.map((point) => point.iteration_time_s), baseline.iteration_time_s];
  const energies = [...points.map((point) => point.energy_j), baseline.energy_j];
  return (
    time_s >= Math.min(...times) &&
    time_s <= Math.max(...times) &&
    energy_j >= Math.min(...energies) &&
    energy_j <= Math.max(...energies)
  );
}

/**
 * Where values lie, with some of their range as room on either side.
 *
 * @param {number[]} values
 * @param {number} below share of the range.
 * @param {number} above
 * @returns {[number, number]}
 */
function padded(values, below, above) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const range = Math.max(high - low, 1e-3 * Math.abs(high), 1e-9);
  return [low - below * range, high + above * range];
}

/**
 * The figures of a point, in parts.
 *
 * @typedef {object} PointWords
 * @property {string} time
 * @property {string} energy
 * @property {string} gap
 * @property {string} saving against the baseline.
 * @property {string} slowdown likewise.
 */

/**
 * @param {FrontierPoint} point
 * @param {ComparedPlan} baseline
 * @returns {PointWords}
 */
export function pointWords(point, baseline) {
  return {
    time: seconds(point.iteration_time_s),
    energy: joules(point.energy_j),
    gap: percent(point.gap_percent, { digits: 2 }),
    saving: percent(-percentAbove(point.energy_j, baseline.energy_j)),
    slowdown: percent(percentAbove(point.iteration_time_s, baseline.iteration_time_s), {
      signed: true,
      digits: 2,
    }),
  };
}

/**
 * @param {FrontierPoint} point
 * @param {ComparedPlan} baseline
 * @returns {string}
 */
export function pointSentence(point, baseline) {
  const { time, energy, gap, saving, slowdown } = pointWords(point, baseline);
  return `${time}, ${energy}; saves ${saving}, ${slowdown} time; gap ${gap}; predicted`;
}

/**
 * The target that gives a point's plan.
 *
 * @param {FrontierPoint} point
 */
export function targetOf({ deadline_s }) {
  return `deadline:${deadline_s}`;
}
