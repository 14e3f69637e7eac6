// One measured step in words, for the readout, screen readers and the table of steps.

import { count, joules, megahertz, seconds, watts } from "./format.js";
import { otherMisses, versionOf } from "./step_series.js";

/**
 * @typedef {import("./wire_types.js").StagesOfStep} StagesOfStep
 * @typedef {import("./job_state.js").JobPageState} JobPageState
 */

/**
 * @param {StagesOfStep} step
 * @param {JobPageState} state
 * @returns {string}
 */
export function stepText(step, state) {
  const parts = [`${count(step.step)}: ${versionText(step, state)}`, seconds(step.time_s)];
  if (step.num_ranks < state.overview.num_ranks) {
    parts.push(`${step.num_ranks} of ${state.overview.num_ranks} ranks so far`);
  } else if (step.energy_j === null) parts.push("energy not read");
  else parts.push(joules(step.energy_j), watts(step.energy_j / step.time_s));
  const held = heldBackText(step);
  if (held !== "") parts.push(held);
  return parts.join("; ");
}

/**
 * @param {StagesOfStep} step
 * @param {JobPageState} state
 * @returns {string}
 */
export function versionText(step, { history }) {
  if (step.plan_versions.length > 1) {
    const names = step.plan_versions.map((each) => (each === null ? "no plan" : `v${each}`));
    return `mixed, ${names.join(" and ")}`;
  }
  const version = versionOf(step);
  if (version === null) return "default clocks";
  const kind = history.find((plan) => plan.version === version)?.kind ?? "plan";
  return kind === "plan" ? `v${version}` : `v${version}, ${kind}`;
}

/**
 * Which stages' clocks were held back, how often and why; empty: none.
 * @param {StagesOfStep} step
 * @returns {string}
 */
export function heldBackText({ stages }) {
  return stages
    .flatMap((each) => {
      const { stage, num_power_capped, num_thermally_capped } = each;
      const other = otherMisses(each);
      const reasons = [
        num_power_capped > 0 ? `${num_power_capped}\u00d7 by power` : "",
        num_thermally_capped > 0 ? `${num_thermally_capped}\u00d7 by heat` : "",
        other > 0 ? `${other}\u00d7 cause unknown` : "",
      ].filter(Boolean);
      return reasons.length === 0 ? [] : [`stage ${stage} held back ${reasons.join(", ")}`];
    })
    .join("; ");
}

/**
 * One stage in a step: power, and its clock as it was read back and as the plan asks for it.
 * @param {StagesOfStep} step
 * @param {number} stage
 * @param {JobPageState} state
 * @returns {string}
 */
export function stageText(step, stage, { history }) {
  const measured = step.stages.find((each) => each.stage === stage);
  if (measured === undefined) return `stage ${stage}: not posted`;
  const power =
    measured.energy_j === null ? "energy not read" : watts(measured.energy_j / measured.time_s);
  const plan = history.find((each) => each.version === versionOf(step));
  const clock = plan?.stage_clock_mhz[stage];
  const clocks = [
    clock === undefined ? "" : `planned ${megahertz(clock)} on average`,
    measured.sm_clock_mhz === null ? "" : `measured ${megahertz(measured.sm_clock_mhz)}`,
  ].filter(Boolean);
  return [`stage ${stage}: ${power}`, ...clocks].join(", ");
}
