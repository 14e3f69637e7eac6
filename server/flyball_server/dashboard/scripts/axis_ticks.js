// Round values along an axis, and their labels with a common unit prefix.

import { fixed, unitsOf } from "./format.js";

/**
 * Return multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `most` of them.
 * @param {number} low
 * @param {number} high above `low`
 * @param {number} most at least 1
 * @returns {{values: number[], decimals: number}} `decimals` tell neighbouring values apart
 */
export function roundTicks(low, high, most) {
  if (!(high > low) || !(most >= 1)) return { values: [], decimals: 0 };
  const rough = (high - low) / most;
  const power = Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 5, 10, 20]) {
    const exponent = factor < 10 ? power : power + 1;
    const ticks = multiples(low, high, factor * 10 ** power, Math.max(0, -exponent));
    if (ticks.length <= most) return { values: ticks, decimals: Math.max(0, -exponent) };
  }
  return { values: [], decimals: 0 };
}

/**
 * @param {number} low
 * @param {number} high
 * @param {number} step
 * @param {number} decimals
 */
function multiples(low, high, step, decimals) {
  const tolerance = (high - low) * 1e-9;
  const first = Math.ceil((low - tolerance) / step);
  const last = Math.floor((high + tolerance) / step);
  // Through text: 3 times 0.1 is 0.3.
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) =>
    Number(((first + index) * step).toFixed(decimals)),
  );
}

/** @param {number[]} times_s */
export function secondTicks(times_s) {
  return labelled(times_s, unitsOf("s", 1, 1e-6));
}

/** @param {number[]} energies_j */
export function jouleTicks(energies_j) {
  return labelled(energies_j, unitsOf("J", 1e9, 1e-3));
}

/** @param {number[]} powers_w */
export function wattTicks(powers_w) {
  return labelled(powers_w, unitsOf("W", 1e6, 1));
}

/**
 * @param {number[]} values rising
 * @param {[number, string][]} units falling
 */
function labelled(values, units) {
  const largest = Math.max(...values.map(Math.abs));
  const [factor, unit] = units.find(([least]) => largest >= least) ?? units[units.length - 1];
  const shown = values.map((value) => value / factor);
  const digits = digitsOf(shown);
  return shown.map((value) => `${fixed(value, digits)}\u202f${unit}`);
}

/** Return the number of decimals that all values need. @param {number[]} values */
function digitsOf(values) {
  const tolerance = 1e-6 * Math.max(...values.map(Math.abs), 1e-9);
  const isExact = (/** @type {number} */ digits) =>
    values.every((value) => Math.abs(value - Number(value.toFixed(digits))) <= tolerance);
  return [0, 1, 2, 3, 4, 5].find(isExact) ?? 6;
}
