// The frontier chart's axes: time and energy, and both in per cent against the baseline.

import { roundTicks } from "./axis_ticks.js";
import { fixed, joules } from "./format.js";
import { makeSvg } from "./svg_elements.js";

/**
 * Where time and energy lie in the picture.
 *
 * @typedef {object} Frame
 * @property {number} left px
 * @property {number} top
 * @property {number} right
 * @property {number} bottom
 * @property {(time_s: number) => number} x
 * @property {(energy_j: number) => number} y
 * @property {import("./frontier_curve.js").Extent} extent
 */

/** @typedef {import("./wire_types.js").ComparedPlanView} ComparedPlan */

const MARGIN = { left: 64, right: 58, top: 40, bottom: 44 };
const NARROW = { below: 420, left: 42, right: 52 };
const TICK_ROOM = { across: 84, down: 46 };

/**
 * @param {number} width px
 * @param {number} height px
 * @param {import("./frontier_curve.js").Extent} extent
 * @returns {Frame}
 */
export function frameOf(width, height, extent) {
  const sides = width < NARROW.below ? NARROW : MARGIN;
  const [left, right] = [sides.left, width - sides.right];
  const [top, bottom] = [MARGIN.top, height - MARGIN.bottom];
  const { fastest_s, slowest_s, least_j, most_j } = extent;
  return {
    left,
    right,
    top,
    bottom,
    extent,
    x: (time_s) => left + ((time_s - fastest_s) / (slowest_s - fastest_s)) * (right - left),
    y: (energy_j) => bottom - ((energy_j - least_j) / (most_j - least_j)) * (bottom - top),
  };
}

/**
 * @param {Frame} frame
 * @param {ComparedPlan} baseline
 * @returns {SVGElement}
 */
export function axes(frame, baseline) {
  const group = makeSvg("g", { class: "frontier-axes", "aria-hidden": "true" });
  group.append(
    ...timeAxis(frame),
    ...energyAxis(frame),
    ...slowdownAxis(frame, baseline),
    ...savingAxis(frame, baseline),
  );
  return group;
}

/** @param {Frame} frame */
function timeAxis({ left, right, top, bottom, x, extent }) {
  const { values, decimals } = roundTicks(
    extent.fastest_s,
    extent.slowest_s,
    most(right - left, TICK_ROOM.across),
  );
  return [
    ...values.flatMap((value) => [
      line("frontier-grid", x(value), top, x(value), bottom),
      text(fixed(value, decimals), x(value), bottom + 16, "middle"),
    ]),
    line("frontier-edge", left, bottom, right, bottom),
    text("iteration time, s", (left + right) / 2, bottom + 34, "middle", "frontier-axis-name"),
  ];
}

/** @param {Frame} frame */
function energyAxis({ left, right, top, bottom, y, extent }) {
  const [factor, unit] = energyUnit(extent.most_j);
  const { values, decimals } = roundTicks(
    extent.least_j / factor,
    extent.most_j / factor,
    most(bottom - top, TICK_ROOM.down),
  );
  return [
    ...values.flatMap((value) => [
      line("frontier-grid", left, y(value * factor), right, y(value * factor)),
      text(fixed(value, decimals), left - 6, y(value * factor) + 4, "end"),
    ]),
    line("frontier-edge", left, top, left, bottom),
    text(`energy, ${unit}`, 0, 12, "start", "frontier-axis-name"),
  ];
}

/** @param {Frame} frame @param {ComparedPlan} baseline */
function slowdownAxis({ left, right, top, x, extent }, { iteration_time_s }) {
  const share = (/** @type {number} */ time_s) => 100 * (time_s / iteration_time_s - 1);
  const { values, decimals } = roundTicks(
    share(extent.fastest_s),
    share(extent.slowest_s),
    most(right - left, TICK_ROOM.across),
  );
  return [
    ...values.flatMap((value) => {
      const at = x(iteration_time_s * (1 + value / 100));
      return [
        line("frontier-edge", at, top, at, top - 4),
        text(signed(value, decimals), at, top - 8, "middle"),
      ];
    }),
    line("frontier-edge", left, top, right, top),
    text("against the baseline", right, 12, "end", "frontier-axis-name"),
  ];
}

/** @param {Frame} frame @param {ComparedPlan} baseline */
function savingAxis({ right, top, bottom, y, extent }, { energy_j }) {
  const share = (/** @type {number} */ energy) => 100 * (energy / energy_j - 1);
  const { values, decimals } = roundTicks(
    share(extent.least_j),
    share(extent.most_j),
    most(bottom - top, TICK_ROOM.down),
  );
  return [
    ...values.flatMap((value) => {
      const at = y(energy_j * (1 + value / 100));
      return [
        line("frontier-edge", right, at, right + 4, at),
        text(signed(value, decimals), right + 8, at + 4, "start"),
      ];
    }),
    line("frontier-edge", right, top, right, bottom),
  ];
}

/** @param {number} value @param {number} decimals */
function signed(value, decimals) {
  return `${value > 0 ? "+" : ""}${fixed(value, decimals)}\u202f%`;
}

/**
 * The unit that `joules` gives an energy, and how many joules it is.
 *
 * @param {number} energy_j
 * @returns {[number, string]}
 */
function energyUnit(energy_j) {
  const unit = joules(energy_j).split("\u202f")[1];
  const factors = /** @type {Record<string, number>} */ ({ J: 1, kJ: 1e3, MJ: 1e6, GJ: 1e9 });
  return [factors[unit] ?? 1, unit];
}

/** @param {number} length px @param {number} room px */
function most(length, room) {
  return Math.max(2, Math.floor(length / room));
}

/** @param {string} name @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 */
function line(name, x1, y1, x2, y2) {
  return makeSvg("line", {
    class: name,
    x1: x1.toFixed(1),
    y1: y1.toFixed(1),
    x2: x2.toFixed(1),
    y2: y2.toFixed(1),
  });
}

/** @param {string} words @param {number} x @param {number} y @param {string} anchor @param {string} [name] */
function text(words, x, y, anchor, name = "frontier-tick") {
  return makeSvg(
    "text",
    { class: name, x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor },
    words,
  );
}
