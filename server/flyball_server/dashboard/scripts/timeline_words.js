// The timeline as text: a box, a wait, the figures of a stage, plan beside baseline.

import { fixed, joules, megahertz, percent, percentAbove, seconds, sum } from "./format.js";
import { lookOf } from "./timeline_layout.js";

/** @import { Layout } from "./timeline_layout.js" */

/** Relative difference below which times are called equal: they are rounded to 1 us. */
const SAME_TIME = 2e-5;

/**
 * Describe a box in lines; all figures are predicted.
 * @param {Layout} layout
 * @param {number} row
 * @param {number} position
 * @param {Layout | null} [highest] same order at the highest clocks
 */
export function instructionWords(layout, row, position, highest = null) {
  const at = layout.rows[row];
  const { kind, chunk } = layout.slots[at.slot[position]];
  const chunks = layout.numChunks > 1 ? `, chunk ${chunk}` : "";
  const float_s = at.float_s[position];
  const clock = megahertz(at.clock_mhz[position]);
  const lines = [
    `${at.name}: ${kind.replaceAll("_", " ")} of microbatch ${at.microbatches[position]}${chunks}`,
    `${clock}, ${milliseconds(at.duration_s[position])}, ${joules(at.energy_j[position])}`,
    `starts at ${moment(at.start_s[position])}; ${floatWords(float_s, at.isCritical[position])}`,
  ];
  const other = highest?.rows[row];
  if (other && other.clock_mhz[position] !== at.clock_mhz[position]) {
    const time = milliseconds(other.duration_s[position]);
    const otherClock = megahertz(other.clock_mhz[position]);
    lines.push(`at ${otherClock}: ${time}, ${joules(other.energy_j[position])}`);
  }
  return lines;
}

/**
 * Describe a wait in lines.
 * @param {Layout} layout
 * @param {number} row
 * @param {number} from_s
 * @param {number} until_s
 */
export function waitWords(layout, row, from_s, until_s) {
  const { name, blocking_power_w } = layout.rows[row];
  return [
    `${name} waits for ${milliseconds(until_s - from_s)}`,
    `its GPUs draw ${fixed(blocking_power_w, 1)}\u202fW together meanwhile`,
  ];
}

/** Compare plan and baseline. @param {Layout} plan @param {Layout} baseline */
export function comparisonWords(plan, baseline) {
  const longer_s = plan.iterationTime_s - baseline.iterationTime_s;
  const isSame = Math.abs(longer_s) <= SAME_TIME * baseline.iterationTime_s;
  const difference = `${milliseconds(Math.abs(longer_s))} ${longer_s > 0 ? "longer" : "less"}`;
  const above_percent = percentAbove(plan.iterationTime_s, baseline.iterationTime_s);
  const change = percent(above_percent, { signed: true, digits: 2 });
  const time = isSame
    ? `takes as long as at the highest clocks, ${seconds(baseline.iterationTime_s)},`
    : `takes ${difference} than at the highest clocks (${change})`;
  const saved_j = baseline.energy_j - plan.energy_j;
  const share = Math.abs(100 * (saved_j / baseline.energy_j));
  const energy =
    Math.abs(share) < 0.005
      ? "the same energy"
      : `${joules(Math.abs(saved_j))} ${saved_j > 0 ? "less" : "more"} energy (${percent(share)})`;
  return `Predicted: the plan ${time} and needs ${energy}.`;
}

/** @param {Layout} layout */
export function figuresWords(layout) {
  const bubbles = percent(100 * layout.bubbleFraction);
  const time = seconds(layout.iterationTime_s);
  return `${time}, ${joules(layout.energy_j)}, bubbles ${bubbles}, predicted`;
}

/**
 * Return the figures of a row: time and energy of computing, the mean clock by time, and the
 * share of waiting.
 * @param {Layout} layout
 * @param {number} row
 */
export function stageFigures(layout, row) {
  const { duration_s, clock_mhz, energy_j } = layout.rows[row];
  const busy_s = sum(duration_s);
  const cycles = sum(duration_s.map((time_s, at) => time_s * clock_mhz[at]));
  const bubble_percent = 100 * Math.max(0, 1 - busy_s / layout.iterationTime_s);
  const meanClock_mhz = busy_s > 0 ? cycles / busy_s : null;
  return { busy_s, meanClock_mhz, busyEnergy_j: sum(energy_j), bubble_percent };
}

/**
 * Describe the kinds of instructions in a timeline.
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

/** @param {number} time_s */
export function milliseconds(time_s) {
  const time_ms = 1e3 * time_s;
  const digits = Math.abs(time_ms) < 1 ? 3 : Math.abs(time_ms) < 10 ? 2 : 1;
  return `${fixed(time_ms, digits)}\u202fms`;
}

/** Format a moment of the iteration. @param {number} time_s */
function moment(time_s) {
  return time_s < 1 ? milliseconds(time_s) : `${fixed(time_s, 4)}\u202fs`;
}

/** @param {number} float_s @param {boolean} isCritical */
function floatWords(float_s, isCritical) {
  if (isCritical) return "on the critical path";
  return float_s < 1e-6 ? "no float" : `float ${milliseconds(float_s)}`;
}
