// Measured steps as columns for charts: time, energy, and by stage power, clocks, held-back clocks.

import { sum } from "./format.js";

/** @import { PlanSummary, StageOfStep, StagesOfStep, Straggler } from "./wire_types.js" */

/**
 * @typedef {(number | null)[]} Column
 * @typedef {number | "mixed" | "unknown" | null} Version mixed: several in one step; unknown: the
 *   planner's database has no such plan; null: none
 * @typedef {object} StepSeries all columns as long as `step`
 * @property {number[]} step rising; one between two others stands for missing steps
 * @property {Version[]} version of the plan
 * @property {Column} time_s null where steps are missing
 * @property {Column} energy_j
 * @property {Column} predicted_time_s of the step's version, or of the highest clocks that it runs
 * @property {Column} predicted_energy_j
 * @property {Column[]} power_w by stage
 * @property {Column[]} clock_mhz by stage, measured
 * @property {Column[]} planned_mhz by stage, of the step's version
 * @property {HeldBack[]} heldBack
 * @typedef {object} HeldBack counts of clocks below those that were set
 * @property {number} power
 * @property {number} thermal
 * @property {number} other
 * @property {StageHeldBack[]} stages
 * @typedef {{stage: number, power: number, thermal: number, other: number}} StageHeldBack
 * @typedef {Omit<StagesOfStep, "time_s"> & {time_s: null}} Hole in the place of missing steps
 */

/** @type {Omit<Hole, "step" | "plan_versions" | "unknown_versions">} */
const NOTHING = { num_ranks: 0, time_s: null, energy_j: null, stages: [] };

/**
 * @param {StagesOfStep[]} known rising
 * @param {PlanSummary[]} history
 * @param {{num_stages: number, num_ranks: number}} job
 * @returns {StepSeries}
 */
export function stepSeries(known, history, { num_stages, num_ranks }) {
  const steps = withHoles(known);
  const plans = new Map(history.map((plan) => [plan.version, plan]));
  const version = steps.map(versionOf);
  const ran = version.map((each) => (typeof each === "number" ? plans.get(each) : undefined));
  const isBaseline = steps.map(({ step }, index) => runsHighest(ran[index], step));
  return {
    step: steps.map((each) => each.step),
    version,
    time_s: steps.map((each) => each.time_s),
    // The energy of some ranks is not the energy of an iteration.
    energy_j: steps.map((each) => (each.num_ranks < num_ranks ? null : each.energy_j)),
    predicted_time_s: ran.map((plan, at) => predictedOf(plan, isBaseline[at])?.time_s ?? null),
    predicted_energy_j: ran.map((plan, at) => predictedOf(plan, isBaseline[at])?.energy_j ?? null),
    power_w: byStage(steps, num_stages, ({ energy_j, time_s }) =>
      energy_j !== null && time_s > 0 ? energy_j / time_s : null,
    ),
    clock_mhz: byStage(steps, num_stages, ({ sm_clock_mhz }) => sm_clock_mhz ?? null),
    planned_mhz: Array.from({ length: num_stages }, (_, stage) =>
      ran.map((plan, at) =>
        (isBaseline[at] ? plan?.highest_mhz : plan?.stage_clock_mhz[stage]) ?? null,
      ),
    ),
    heldBack: steps.map(heldBackIn),
  };
}

/**
 * Add an empty step where some are missing: no line is drawn over it.
 * @param {StagesOfStep[]} steps rising
 * @returns {(StagesOfStep | Hole)[]}
 */
function withHoles(steps) {
  const distances = steps.slice(1).map(({ step }, index) => step - steps[index].step);
  // A job may measure every tenth step.
  const usual = [...distances].sort((one, other) => one - other)[(distances.length - 1) >> 1];
  return steps.flatMap((each, index) => {
    if (index === 0 || distances[index - 1] <= usual) return [each];
    const { step, plan_versions, unknown_versions } = steps[index - 1];
    const between = (step + each.step) / 2;
    return [{ ...NOTHING, step: between, plan_versions, unknown_versions }, each];
  });
}

/** @param {Pick<StagesOfStep, "plan_versions" | "unknown_versions">} step @returns {Version} */
export function versionOf({ plan_versions, unknown_versions }) {
  if (unknown_versions.length > 0) return "unknown";
  return plan_versions.length === 1 ? plan_versions[0] : "mixed";
}

/** @param {PlanSummary | undefined} plan @param {boolean} isBaseline */
function predictedOf(plan, isBaseline) {
  if (plan?.predicted == null) return null;
  const of = plan.predicted;
  if (isBaseline) return { time_s: of.baseline_iteration_time_s, energy_j: of.baseline_energy_j };
  return { time_s: of.iteration_time_s, energy_j: of.energy_j };
}

/**
 * Return whether a step runs at the highest clocks: in a comparison, some do.
 * @param {PlanSummary | undefined} plan of the step
 * @param {number} step
 */
export function runsHighest(plan, step) {
  const { baseline_cycle: cycle = [], first_step = 0 } = plan ?? {};
  return cycle[(step - (first_step ?? 0)) % cycle.length] === true;
}

/**
 * @param {(StagesOfStep | Hole)[]} steps
 * @param {number} num_stages
 * @param {(stage: StageOfStep) => number | null} valueOf
 * @returns {Column[]}
 */
function byStage(steps, num_stages, valueOf) {
  /** @type {Column[]} */
  const columns = Array.from({ length: num_stages }, () => new Array(steps.length).fill(null));
  steps.forEach((step, index) => {
    for (const each of step.stages) {
      if (each.stage < num_stages) columns[each.stage][index] = valueOf(each);
    }
  });
  return columns;
}

/** @param {StagesOfStep | Hole} step @returns {HeldBack} */
function heldBackIn(step) {
  const missed = step.stages.filter(({ num_clock_misses }) => num_clock_misses > 0);
  const stages = missed.map((each) => ({
    stage: each.stage,
    power: each.num_power_capped,
    thermal: each.num_thermally_capped,
    other: otherMisses(each),
  }));
  return {
    power: sum(stages.map((each) => each.power)),
    thermal: sum(stages.map((each) => each.thermal)),
    other: sum(stages.map((each) => each.other)),
    stages,
  };
}

/**
 * Return how often a stage's clocks were held back for no known reason.
 * @param {StageOfStep} stage
 */
export function otherMisses({ num_clock_misses, num_power_capped, num_thermally_capped }) {
  return Math.max(0, num_clock_misses - num_power_capped - num_thermally_capped);
}

/**
 * Neighbouring steps that ran the same version; both indices included.
 * @typedef {{from: number, to: number, version: Version}} VersionRun
 */

/** @param {StepSeries} series @returns {VersionRun[]} */
export function versionRuns({ version }) {
  /** @type {VersionRun[]} */
  const runs = [];
  version.forEach((each, index) => {
    const last = runs[runs.length - 1];
    if (last !== undefined && last.version === each) last.to = index;
    else runs.push({ from: index, to: index, version: each });
  });
  return runs;
}

/**
 * Return the range of a vertical axis without outliers: they do not press the rest flat.
 * @param {Column[]} columns
 * @returns {[number, number]} low below high
 */
export function usualRange(columns) {
  const values = risingValues(columns);
  if (values.length === 0) return [0, 1];
  const at = (/** @type {number} */ share) => values[Math.round(share * (values.length - 1))];
  const reach = Math.max(0.75 * (at(0.95) - at(0.05)), 0.03 * Math.abs(at(0.5)), 1e-12);
  const low = Math.max(values[0], at(0.05) - reach);
  const high = Math.min(values[values.length - 1], at(0.95) + reach);
  return widened(low, high);
}

/**
 * Return the range of a vertical axis over all values.
 * @param {Column[]} columns
 * @returns {[number, number]} low below high
 */
export function wholeRange(columns) {
  const values = risingValues(columns);
  return values.length === 0 ? [0, 1] : widened(values[0], values[values.length - 1]);
}

/** @param {Column[]} columns */
function risingValues(columns) {
  const values = /** @type {number[]} */ (columns.flat().filter((value) => value !== null));
  return values.sort((one, other) => one - other);
}

/**
 * @param {number} low
 * @param {number} high
 * @returns {[number, number]} with room for the lines' width
 */
function widened(low, high) {
  const margin = Math.max(0.08 * (high - low), 0.004 * Math.abs(high), 1e-9);
  return [low - margin, high + margin];
}

/** @typedef {{straggler: Straggler, first_step: number}} PlannedStraggler */

/**
 * Return the first step that ran a plan made for each straggler: of the first version after it.
 * @param {Straggler[]} stragglers
 * @param {PlanSummary[]} history rising
 * @returns {PlannedStraggler[]}
 */
export function plannedStragglers(stragglers, history) {
  return stragglers.flatMap((straggler) => {
    if (!straggler.is_planned) return [];
    const { from_time } = straggler;
    const since = from_time === null ? 0 : Date.parse(from_time);
    const later = history.filter(({ created_at }) => Date.parse(created_at) >= since);
    const first_step = later.map((plan) => plan.first_step).find((step) => step !== null);
    return first_step == null ? [] : [{ straggler, first_step }];
  });
}

/**
 * Return the figures of all stages by step, for a file.
 * @param {number[]} steps
 * @param {Column[]} columns by stage
 * @param {string} unit
 */
export function stageRows(steps, columns, unit) {
  const heads = ["step", ...columns.map((_, stage) => `stage ${stage}, ${unit}`)];
  return [heads, ...steps.map((step, index) => [step, ...columns.map((each) => each[index])])];
}
