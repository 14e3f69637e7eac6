// Measured steps as columns for charts: time, energy, power and clocks by stage, what was held back.

/**
 * @typedef {import("./wire_types.js").StagesOfStep} StagesOfStep
 * @typedef {import("./wire_types.js").PlanSummary} PlanSummary
 * @typedef {import("./wire_types.js").StragglerView} StragglerView
 * @typedef {(number | null)[]} Column
 *
 * @typedef {object} StepSeries all columns as long as `step`
 * @property {number[]} step rising; one between two others stands for steps that are missing there
 * @property {Column} version of the plan; null: none, or several in one step
 * @property {Column} time_s null where steps are missing
 * @property {Column} energy_j
 * @property {Column} predicted_time_s of the step's version
 * @property {Column} predicted_energy_j
 * @property {Column[]} power_w by stage
 * @property {Column[]} clock_mhz by stage, measured
 * @property {Column[]} planned_mhz by stage, of the step's version
 * @property {HeldBack[]} heldBack
 *
 * @typedef {object} HeldBack how often a step's clocks were below those that were set
 * @property {number} power because of power
 * @property {number} thermal because of heat
 * @property {number} other for another reason
 * @property {StageHeldBack[]} stages where
 *
 * @typedef {{stage: number, power: number, thermal: number, other: number}} StageHeldBack
 *
 * @typedef {Omit<StagesOfStep, "time_s"> & {time_s: null}} Hole in the place of missing steps
 */

/** @type {Omit<Hole, "step" | "plan_versions">} */
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
  const predicted = version.map((each) =>
    each === null ? null : (plans.get(each)?.predicted ?? null),
  );
  return {
    step: steps.map((each) => each.step),
    version,
    time_s: steps.map((each) => each.time_s),
    // What some ranks drew is no iteration's energy: the others' are still to come.
    energy_j: steps.map((each) => (each.num_ranks < num_ranks ? null : each.energy_j)),
    predicted_time_s: predicted.map((each) => each?.iteration_time_s ?? null),
    predicted_energy_j: predicted.map((each) => each?.energy_j ?? null),
    power_w: byStage(steps, num_stages, ({ energy_j, time_s }) =>
      energy_j !== null && time_s > 0 ? energy_j / time_s : null,
    ),
    clock_mhz: byStage(steps, num_stages, ({ sm_clock_mhz }) => sm_clock_mhz ?? null),
    planned_mhz: plannedClocks(version, plans, num_stages),
    heldBack: steps.map(heldBackIn),
  };
}

/**
 * With an empty step wherever some are missing, so that no line is drawn over what is not known.
 * @param {StagesOfStep[]} steps rising
 * @returns {(StagesOfStep | Hole)[]}
 */
function withHoles(steps) {
  const distances = steps.slice(1).map(({ step }, index) => step - steps[index].step);
  // Not each job numbers its steps one by one.
  const usual = [...distances].sort((one, other) => one - other)[(distances.length - 1) >> 1];
  return steps.flatMap((each, index) => {
    if (index === 0 || distances[index - 1] <= usual) return [each];
    const { step, plan_versions } = steps[index - 1];
    const between = (step + each.step) / 2;
    return [{ ...NOTHING, step: between, plan_versions }, each];
  });
}

/**
 * @param {{plan_versions: (number | null)[]}} step
 * @returns {number | null}
 */
export function versionOf({ plan_versions }) {
  return plan_versions.length === 1 ? plan_versions[0] : null;
}

/**
 * @param {(StagesOfStep | Hole)[]} steps
 * @param {number} num_stages
 * @param {(stage: import("./wire_types.js").StageOfStep) => number | null} valueOf
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

/**
 * @param {Column} version of each step
 * @param {Map<number, PlanSummary>} plans
 * @param {number} num_stages
 * @returns {Column[]}
 */
function plannedClocks(version, plans, num_stages) {
  const clocks_mhz = version.map((each) =>
    each === null ? undefined : plans.get(each)?.stage_clock_mhz,
  );
  return Array.from({ length: num_stages }, (_, stage) =>
    clocks_mhz.map((of_step) => of_step?.[stage] ?? null),
  );
}

/**
 * @param {StagesOfStep | Hole} step
 * @returns {HeldBack}
 */
function heldBackIn(step) {
  const stages = step.stages.flatMap((each) => {
    if (each.num_clock_misses === 0) return [];
    const power = each.num_power_capped;
    const thermal = each.num_thermally_capped;
    return [
      {
        stage: each.stage,
        power,
        thermal,
        other: otherMisses(each),
      },
    ];
  });
  return {
    power: sum(stages.map((each) => each.power)),
    thermal: sum(stages.map((each) => each.thermal)),
    other: sum(stages.map((each) => each.other)),
    stages,
  };
}

/**
 * How often a stage's clocks were held back and nobody knows why.
 * @param {import("./wire_types.js").StageOfStep} stage
 * @returns {number}
 */
export function otherMisses({ num_clock_misses, num_power_capped, num_thermally_capped }) {
  return Math.max(0, num_clock_misses - num_power_capped - num_thermally_capped);
}

/**
 * Neighbouring steps that ran the same version.
 * @param {StepSeries} series
 * @returns {{from: number, to: number, version: number | null}[]} indices, both included
 */
export function versionRuns({ version }) {
  /** @type {{from: number, to: number, version: number | null}[]} */
  const runs = [];
  version.forEach((each, index) => {
    const last = runs[runs.length - 1];
    if (last !== undefined && last.version === each) last.to = index;
    else runs.push({ from: index, to: index, version: each });
  });
  return runs;
}

/**
 * Lowest, middle and highest of all stages, step by step; null where no stage has a value.
 * @param {Column[]} byStage
 * @param {number} length of the columns
 * @returns {{lowest: Column, middle: Column, highest: Column}}
 */
export function spread(byStage, length) {
  /** @type {{lowest: Column, middle: Column, highest: Column}} */
  const found = { lowest: [], middle: [], highest: [] };
  // Sorted as numbers, which is many times as fast as with a function that compares.
  const room = new Float64Array(byStage.length);
  for (let index = 0; index < length; index += 1) {
    let filled = 0;
    for (const column of byStage) {
      const value = column[index];
      if (value !== null) room[filled++] = value;
    }
    const values = room.subarray(0, filled).sort();
    const last = filled - 1;
    found.lowest.push(values[0] ?? null);
    found.middle.push(
      last < 0 ? null : (values[Math.floor(last / 2)] + values[Math.ceil(last / 2)]) / 2,
    );
    found.highest.push(values[last] ?? null);
  }
  return found;
}

/**
 * What a vertical axis shows: all that is usual; a few steps far out do not press the rest flat.
 * @param {Column[]} columns
 * @returns {[number, number]} low below high
 */
export function usualRange(columns) {
  const values = /** @type {number[]} */ (columns.flat().filter((value) => value !== null));
  if (values.length === 0) return [0, 1];
  values.sort((one, other) => one - other);
  const at = (/** @type {number} */ share) => values[Math.round(share * (values.length - 1))];
  const reach = Math.max(0.75 * (at(0.95) - at(0.05)), 0.03 * Math.abs(at(0.5)), 1e-12);
  const low = Math.max(values[0], at(0.05) - reach);
  const high = Math.min(values[values.length - 1], at(0.95) + reach);
  return widened(low, high);
}

/**
 * What a vertical axis shows of values that have bounds of their own: all of them.
 * @param {Column[]} columns
 * @returns {[number, number]} low below high
 */
export function wholeRange(columns) {
  const values = /** @type {number[]} */ (columns.flat().filter((value) => value !== null));
  if (values.length === 0) return [0, 1];
  const low = values.reduce((one, other) => Math.min(one, other));
  const high = values.reduce((one, other) => Math.max(one, other));
  return widened(low, high);
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

/**
 * From which step on a plan made for each straggler ran: that of the first version after it began.
 * @param {StragglerView[]} stragglers
 * @param {PlanSummary[]} history rising
 * @returns {{straggler: StragglerView, first_step: number}[]}
 */
export function plannedStragglers(stragglers, history) {
  return stragglers.flatMap((straggler) => {
    if (!straggler.is_in_force) return [];
    const { from_time } = straggler;
    const since = from_time === null ? 0 : Date.parse(from_time);
    const plan = history.find(
      (each) => each.first_step !== null && Date.parse(each.created_at) >= since,
    );
    return plan === undefined || plan.first_step === null
      ? []
      : [{ straggler, first_step: plan.first_step }];
  });
}

/**
 * @param {number[]} values
 * @returns {number}
 */
function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
