// What is written at the axes of charts: round figures, all with the prefix of the largest.

import { fixed } from "./format.js";

const MOST_DIGITS = 6;

/**
 * @param {number[]} times_s
 * @returns {string[]}
 */
export function secondTicks(times_s) {
  return labelled(times_s, [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "\u00b5s"],
  ]);
}

/**
 * @param {number[]} energies_j
 * @returns {string[]}
 */
export function jouleTicks(energies_j) {
  return labelled(energies_j, [
    [1e9, "GJ"],
    [1e6, "MJ"],
    [1e3, "kJ"],
    [1, "J"],
    [1e-3, "mJ"],
  ]);
}

/**
 * @param {number[]} powers_w
 * @returns {string[]}
 */
export function wattTicks(powers_w) {
  return labelled(powers_w, [
    [1e6, "MW"],
    [1e3, "kW"],
    [1, "W"],
  ]);
}

/**
 * @param {number[]} values rising
 * @param {[number, string][]} units falling
 * @returns {string[]}
 */
function labelled(values, units) {
  const largest = Math.max(...values.map(Math.abs));
  const [factor, unit] = units.find(([least]) => largest >= least) ?? units[units.length - 1];
  const shown = values.map((value) => value / factor);
  const digits = digitsOf(shown);
  return shown.map((value) => `${fixed(value, digits)}\u202f${unit}`);
}

/**
 * @param {number[]} values
 * @returns {number} after the point, that say each of them as it is
 */
function digitsOf(values) {
  const tolerance = 1e-6 * Math.max(...values.map(Math.abs), 1e-9);
  for (let digits = 0; digits < MOST_DIGITS; digits += 1) {
    if (values.every((value) => Math.abs(value - Number(value.toFixed(digits))) <= tolerance)) {
      return digits;
    }
  }
  return MOST_DIGITS;
}
