// @ts-check
// Measured steps as columns for charts: time, energy, power by stage, what was held back.

/**
 * @typedef {import("./wire_types.js").StagesOfStep} StagesOfStep
 * @typedef {import("./wire_types.js").PlanSummary} PlanSummary
 * @typedef {import("./wire_types.js").StragglerView} StragglerView
 * @typedef {(number | null)[]} Column
 *
 * @typedef {object} StepSeries all columns as long as `step`
 * @property {number[]} step rising
 * @property {Column} version of the plan; null: none, or several in one step
 * @property {number[]} time_s
 * @property {Column} energy_j
 * @property {Column} predicted_time_s of the step's version
 * @property {Column} predicted_energy_j
 * @property {Column[]} power_w by stage
 * @property {HeldBack[]} heldBack
 *
 * @typedef {object} HeldBack how often a step's clocks were below those that were set
 * @property {number} power because of power
 * @property {number} thermal because of heat
 * @property {number} other for another reason
 * @property {StageHeldBack[]} stages where
 *
 * @typedef {{stage: number, power: number, thermal: number, other: number}} StageHeldBack
 */

/**
 * @param {StagesOfStep[]} steps rising
 * @param {PlanSummary[]} history
 * @param {{num_stages: number, num_ranks: number}} job
 * @returns {StepSeries}
 */
export function stepSeries(steps, history, { num_stages, num_ranks }) {
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
    power_w: powersByStage(steps, num_stages),
    heldBack: steps.map(heldBackIn),
  };
}

/**
 * @param {StagesOfStep} step
 * @returns {number | null}
 */
export function versionOf({ plan_versions }) {
  return plan_versions.length === 1 ? plan_versions[0] : null;
}

/**
 * @param {StagesOfStep[]} steps
 * @param {number} num_stages
 * @returns {Column[]}
 */
function powersByStage(steps, num_stages) {
  /** @type {Column[]} */
  const powers_w = Array.from({ length: num_stages }, () => new Array(steps.length).fill(null));
  steps.forEach((step, index) => {
    for (const { stage, energy_j, time_s } of step.stages) {
      if (stage < num_stages && energy_j !== null && time_s > 0)
        powers_w[stage][index] = energy_j / time_s;
    }
  });
  return powers_w;
}

/**
 * @param {StagesOfStep} step
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
        other: Math.max(0, each.num_clock_misses - power - thermal),
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
    const since = Date.parse(straggler.from_time);
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
