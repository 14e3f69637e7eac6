// Measured steps as text: a step's figures in a sentence, the newest steps as a table.

import { make } from "./elements.js";
import { count, joules, megahertz, seconds, watts } from "./format.js";
import { otherMisses, versionOf } from "./step_series.js";
import { DetailsTable, makeRow } from "./tables.js";

/**
 * @import { JobPageState } from "./job_state.js"
 * @import { StagesOfStep } from "./wire_types.js"
 */

const ROWS = 20;
const CELLS = ["td", "td.number", "td.number", "td.number", "td"];
/** @returns {{element: HTMLElement, update(state: JobPageState): void}} */
export function stepsTable() {
  const summary = `The newest ${ROWS} steps as a table, measured`;
  const table = new DetailsTable(make("details.steps-table"), summary, "Newest steps", {
    selector: "table.steps",
    heads: ["Step", "Plan", "Time", "Energy", "Mean power", "Held back"],
  });
  return {
    element: table.element,
    update(state) {
      table.element.hidden = state.steps.length === 0;
      const newest = state.steps.slice(-ROWS).reverse();
      table.show(() => newest.map((step) => makeRow(rowTexts(step, state), CELLS)));
    },
  };
}

/** @param {StagesOfStep} step @param {JobPageState} state */
function rowTexts(step, state) {
  // The energy of some ranks is not the energy of an iteration.
  const energy_j = step.num_ranks < state.overview.num_ranks ? null : step.energy_j;
  return [
    count(step.step),
    versionText(step, state),
    seconds(step.time_s),
    joules(energy_j),
    watts(energy_j === null ? null : energy_j / step.time_s),
    heldBackText(step) || "\u2013",
  ];
}

/** @param {StagesOfStep} step @param {JobPageState} state */
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

/** @param {StagesOfStep} step @param {JobPageState} state */
function versionText(step, { history }) {
  const unknown = step.unknown_versions.map((each) => `unknown v${each}`);
  if (unknown.length > 0) {
    const known = step.plan_versions.map((each) => (each === null ? "no plan" : `v${each}`));
    return `${[...known, ...unknown].join(" and ")}, not counted`;
  }
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
 * Return the stages whose clocks were held back, with count and reason; empty: none.
 * @param {StagesOfStep} step
 */
function heldBackText({ stages }) {
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
 * Return the figures of one stage in a step: power, planned and measured clock.
 * @param {StagesOfStep} step
 * @param {number} stage
 * @param {JobPageState} state
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
