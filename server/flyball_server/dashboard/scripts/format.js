// Formatting of figures: SI units with a prefix, per cent, intervals, times of day.


/** @import { EnergyFactors, Estimate, JobOverview } from "./wire_types.js" */

const MINUS = "\u2212";
const GAP = "\u202f"; // narrow, and no line breaks there
const NONE = "\u2013";

/** @typedef {number | null | undefined} Figure null and undefined are shown as a dash */

/** @type {[number, string][]} */
const CO2_UNITS = [[1e6, "t"], [1e3, "kg"], [1, "g"]];
const PREFIXES = { G: 1e9, M: 1e6, k: 1e3, "": 1, m: 1e-3, "\u00b5": 1e-6 };

/**
 * Return multiples of a unit with their size, largest first.
 * @param {string} unit
 * @param {number} largest
 * @param {number} smallest
 * @returns {[number, string][]}
 */
export function unitsOf(unit, largest, smallest) {
  const sizes = Object.entries(PREFIXES).filter(([, size]) => size <= largest && size >= smallest);
  return sizes.map(([prefix, size]) => [size, prefix + unit]);
}

/**
 * Format a number with a fixed number of decimals, and a minus as wide as a plus.
 * @param {number} value
 * @param {number} digits
 */
export function fixed(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? MINUS + text : text;
}

/** Format a time to the millisecond; below 0.1 s in ms. @param {Figure} time_s */
export function seconds(time_s) {
  if (time_s == null) return NONE;
  if (Math.abs(time_s) < 0.1) return `${fixed(1e3 * time_s, 2)}${GAP}ms`;
  return `${fixed(time_s, Math.abs(time_s) < 1000 ? 3 : 1)}${GAP}s`;
}

/** Format an energy with four significant digits. @param {Figure} energy_j */
export function joules(energy_j) {
  return scaled(energy_j, unitsOf("J", 1e9, 1));
}

/** Format an energy in multiples of a Wh. @param {Figure} energy_j */
export function wattHours(energy_j) {
  return scaled(energy_j == null ? null : energy_j / 3600, unitsOf("Wh", 1e9, 1e-3));
}

/**
 * Return what a saved energy costs and emits, where the planner has factors for it.
 * @param {number} energy_j
 * @param {EnergyFactors} factors
 */
export function costs(energy_j, { price_per_kwh, currency, co2_g_per_kwh }) {
  const kwh = energy_j / 3.6e6;
  const found = [];
  if (price_per_kwh !== null)
    found.push({ name: "Cost saved", text: `${money(kwh * price_per_kwh)}${GAP}${currency}` });
  if (co2_g_per_kwh !== null) {
    const text = `${scaled(kwh * co2_g_per_kwh, CO2_UNITS)}${GAP}CO\u2082`;
    found.push({ name: "Emissions saved", text });
  }
  return found;
}

/** @param {number} amount */
function money(amount) {
  return fixed(amount, Math.abs(amount) < 1 ? 4 : Math.abs(amount) < 1000 ? 2 : 0);
}

/** Format a power with four significant digits. @param {Figure} power_w */
export function watts(power_w) {
  return scaled(power_w, unitsOf("W", 1e6, 1));
}

/** @param {Figure} clock_mhz */
export function megahertz(clock_mhz) {
  return clock_mhz == null ? NONE : `${fixed(clock_mhz, 0)}${GAP}MHz`;
}

/**
 * Format a share or, signed, a change.
 * @param {Figure} value in per cent
 * @param {{signed?: boolean, digits?: number}} [how]
 */
export function percent(value, { signed = false, digits = 1 } = {}) {
  if (value == null) return NONE;
  const text = fixed(value, digits);
  const sign = signed && value > 0 && Number(text) !== 0 ? "+" : "";
  return `${sign}${text}${GAP}%`;
}

/**
 * Format the interval of an estimate as `11.9 to 12.7 %`; empty: it has none.
 * @param {Estimate | null} estimate
 * @param {(value: number) => string} format
 */
export function interval(estimate, format) {
  if (estimate === null || estimate.low === null || estimate.high === null) return "";
  const low = format(estimate.low);
  const high = format(estimate.high);
  const unit = high.slice(high.lastIndexOf(GAP));
  return `${low.endsWith(unit) ? low.slice(0, -unit.length) : low} to ${high}`;
}

/**
 * Return the mean of a change that was measured; null: its interval includes zero, or it has none.
 * @param {import("./wire_types.js").Estimate | null | undefined} estimate
 */
export function sureMean(estimate) {
  if (estimate == null || estimate.low === null || estimate.high === null) return null;
  return estimate.low > 0 || estimate.high < 0 ? estimate.mean : null;
}

/**
 * Return the difference of a value to a reference in per cent.
 * @param {number} value
 * @param {number} reference
 */
export function percentAbove(value, reference) {
  return 100 * (value / reference - 1);
}

/** Format an integer with its digits in groups of three. @param {number} value */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, GAP);
}

/**
 * Return a count with its noun: `1 step`, `2 steps`.
 * @param {number} number
 * @param {string} word
 */
export function counted(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** Units of targets, and the factor from the API's unit. */
const TARGET_UNITS = new Map([
  ["slowdown", { unit: "%", factor: 100 }],
  ["deadline", { unit: "s", factor: 1 }],
  ["power", { unit: "W", factor: 1 }],
]);

/**
 * Format a target of the API, `deadline:2.8837280000000014`, as `deadline 2.88373 s`.
 * @param {string} target
 */
export function targetText(target) {
  const [name, figure = ""] = target.split(":");
  const known = TARGET_UNITS.get(name);
  const isPercent = name === "slowdown" && figure.endsWith("%");
  const value = isPercent ? Number(figure.slice(0, -1)) / 100 : Number(figure || Number.NaN);
  if (known === undefined || !Number.isFinite(value)) return target;
  return `${name} ${Number((known.factor * value).toPrecision(6))}${GAP}${known.unit}`;
}

/**
 * Format a job's target: that of the plan that runs, and the one that it misses.
 * @param {JobOverview} job
 */
export function jobTarget({ target, missed }) {
  const runs = targetText(target);
  // Until all ranks have the nearest plan, the one before runs.
  return missed?.nearest !== target ? runs : `${runs}, nearest to ${targetText(missed.target)}`;
}

/**
 * Format a time of day in the local zone, with the date if it is another day.
 * @param {Date} moment
 * @param {Date} [now]
 */
export function clockTime(moment, now = new Date()) {
  const isToday = moment.toDateString() === now.toDateString();
  // The Swedish format is ISO 8601 with a space.
  return isToday ? moment.toLocaleTimeString("sv") : moment.toLocaleString("sv");
}

/** Format a past time in its largest unit: `3 min ago`. @param {Date} moment @param {Date} now */
export function ago(moment, now) {
  const passed_s = Math.max(0, (now.getTime() - moment.getTime()) / 1e3);
  if (passed_s < 60) return "just now";
  if (passed_s < 3600) return `${Math.floor(passed_s / 60)} min ago`;
  if (passed_s < 172800) return `${Math.floor(passed_s / 3600)} h ago`;
  return `${Math.floor(passed_s / 86400)} days ago`;
}

/** @param {Figure} value @param {[number, string][]} units */
function scaled(value, units) {
  if (value == null) return NONE;
  const size = Math.abs(value);
  const [factor, unit] =
    units.find(([least]) => size >= 0.99995 * least) ?? units[units.length - 1];
  const shown = value / factor;
  const whole = Math.abs(shown) < 1 ? 0 : Math.floor(Math.log10(Math.abs(shown)) + 1e-9);
  return `${fixed(shown, Math.min(3, Math.max(0, 3 - whole)))}${GAP}${unit}`;
}

/** @param {number[]} values */
export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

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

/** @param {number} low @param {number} high @param {number} step @param {number} decimals */
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

/** @param {number[]} values rising @param {[number, string][]} units falling */
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
