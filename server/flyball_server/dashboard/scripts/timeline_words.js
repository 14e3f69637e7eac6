// What the timeline shows, in words: a box, a wait, a stage's figures, plan beside baseline.

import { fixed, joules, megahertz, percent, percentAbove, seconds } from "./format.js";
import { lookOf } from "./timeline_layout.js";

/** @typedef {import("./timeline_layout.js").Layout} Layout */

/** Times that differ by less of the baseline's are called equal: they are rounded to 1 us. */
const SAME_TIME = 2e-5;

/**
 * A box in lines: what it is, then its figures. All of it is predicted.
 *
 * @param {Layout} layout
 * @param {number} row
 * @param {number} position
 * @param {Layout | null} [highest] the same order at the highest clocks.
 * @returns {string[]}
 */
export function instructionWords(layout, row, position, highest = null) {
  const at = layout.rows[row];
  const { kind, chunk } = layout.slots[at.slot[position]];
  const chunks = layout.numChunks > 1 ? `, chunk ${chunk}` : "";
  const duration_s = at.end_s[position] - at.start_s[position];
  const float_s = at.float_s[position];
  const lines = [
    `${at.name}: ${kind.replaceAll("_", " ")} of microbatch ${at.microbatch[position]}${chunks}`,
    `${megahertz(at.clock_mhz[position])}, ${milliseconds(duration_s)}, ${joules(at.energy_j[position])}`,
    `starts at ${moment(at.start_s[position])}; ${floatWords(float_s, at.isCritical[position] === 1)}`,
  ];
  const other = highest?.rows[row];
  if (other && other.clock_mhz[position] !== at.clock_mhz[position]) {
    lines.push(
      `at ${megahertz(other.clock_mhz[position])}: ` +
        `${milliseconds(other.end_s[position] - other.start_s[position])}, ` +
        `${joules(other.energy_j[position])}`,
    );
  }
  return lines;
}

/**
 * A wait in lines.
 *
 * @param {Layout} layout
 * @param {number} row
 * @param {number} from_s
 * @param {number} until_s
 * @returns {string[]}
 */
export function waitWords(layout, row, from_s, until_s) {
  const { name, blockingPower_w } = layout.rows[row];
  return [
    `${name} waits for ${milliseconds(until_s - from_s)}`,
    `its GPUs draw ${fixed(blockingPower_w, 1)}\u202fW together meanwhile`,
  ];
}

/**
 * Plan beside baseline.
 *
 * @param {Layout} plan
 * @param {Layout} baseline
 * @returns {string}
 */
export function comparisonWords(plan, baseline) {
  const longer_s = plan.iterationTime_s - baseline.iterationTime_s;
  const isSame = Math.abs(longer_s) <= SAME_TIME * baseline.iterationTime_s;
  const time = isSame
    ? `takes as long as at the highest clocks, ${seconds(baseline.iterationTime_s)},`
    : `takes ${milliseconds(Math.abs(longer_s))} ${longer_s > 0 ? "longer" : "less"} than at the highest clocks` +
      ` (${percent(percentAbove(plan.iterationTime_s, baseline.iterationTime_s), { signed: true, digits: 2 })})`;
  const saved_j = baseline.energy_j - plan.energy_j;
  const share = Math.abs(100 * (saved_j / baseline.energy_j));
  const energy =
    Math.abs(share) < 0.005
      ? "the same energy"
      : `${joules(Math.abs(saved_j))} ${saved_j > 0 ? "less" : "more"} energy (${percent(share)})`;
  return `Predicted: the plan ${time} and needs ${energy}.`;
}

/**
 * @param {Layout} layout
 * @returns {string}
 */
export function figuresWords(layout) {
  const bubbles = percent(100 * layout.bubbleFraction);
  return `${seconds(layout.iterationTime_s)}, ${joules(layout.energy_j)}, bubbles ${bubbles}, predicted`;
}

/**
 * A stage's iteration in figures.
 *
 * @typedef {object} StageFigures
 * @property {number} busy_s
 * @property {number} meanClock_mhz weighted by time; NaN where nothing runs.
 * @property {number} busyEnergy_j while it computes.
 * @property {number} bubble_percent share of the iteration in which it waits.
 */

/**
 * @param {Layout} layout
 * @param {number} row
 * @returns {StageFigures}
 */
export function stageFigures(layout, row) {
  const { count, start_s, end_s, clock_mhz, energy_j } = layout.rows[row];
  let [busy_s, cycles, busyEnergy_j] = [0, 0, 0];
  for (let at = 0; at < count; at += 1) {
    const duration_s = end_s[at] - start_s[at];
    busy_s += duration_s;
    cycles += duration_s * clock_mhz[at];
    busyEnergy_j += energy_j[at];
  }
  const bubble_percent = 100 * Math.max(0, 1 - busy_s / layout.iterationTime_s);
  return { busy_s, meanClock_mhz: cycles / busy_s, busyEnergy_j, bubble_percent };
}

/**
 * The kinds in a timeline, told as in its legend.
 *
 * @param {Layout} layout
 * @returns {{kind: string, words: string}[]}
 */
export function kindWords(layout) {
  const kinds = [...new Set(layout.slots.map(({ kind }) => kind))];
  return kinds.map((kind) => {
    const { letter, words } = lookOf(kind);
    return { kind, words: `${letter} ${kind.replaceAll("_", " ")}${words ? ` (${words})` : ""}` };
  });
}

/**
 * @param {number} time_s
 * @returns {string}
 */
export function milliseconds(time_s) {
  const time_ms = 1e3 * time_s;
  const digits = Math.abs(time_ms) < 1 ? 3 : Math.abs(time_ms) < 10 ? 2 : 1;
  return `${fixed(time_ms, digits)}\u202fms`;
}

/**
 * A moment of the iteration, to what boxes tell apart.
 *
 * @param {number} time_s
 */
function moment(time_s) {
  return time_s < 1 ? milliseconds(time_s) : `${fixed(time_s, 4)}\u202fs`;
}

/**
 * @param {number} float_s
 * @param {boolean} isCritical
 */
function floatWords(float_s, isCritical) {
  if (isCritical) return "on the critical path";
  return float_s < 1e-6 ? "no float" : `float ${milliseconds(float_s)}`;
}
