// Figures as people read them: SI units with a prefix, per cent, intervals, times of day.

const MINUS = "\u2212";
const GAP = "\u202f"; // narrow, and no line breaks there
const NONE = "\u2013";

/** @type {[number, string][]} */
const ENERGY_UNITS = [
  [1e9, "GJ"],
  [1e6, "MJ"],
  [1e3, "kJ"],
  [1, "J"],
];
/** @type {[number, string][]} */
const POWER_UNITS = [
  [1e6, "MW"],
  [1e3, "kW"],
  [1, "W"],
];

/**
 * With so many digits after the point, and a minus that is as wide as a plus.
 * @param {number} value
 * @param {number} digits
 * @returns {string}
 */
export function fixed(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? MINUS + text : text;
}

/**
 * An iteration's time, to the millisecond; below 0.1 s in ms.
 * @param {number | null | undefined} time_s
 * @returns {string}
 */
export function seconds(time_s) {
  if (time_s === null || time_s === undefined) return NONE;
  if (Math.abs(time_s) >= 1000) return `${fixed(time_s, 1)}${GAP}s`;
  return Math.abs(time_s) >= 0.1
    ? `${fixed(time_s, 3)}${GAP}s`
    : `${fixed(1e3 * time_s, 2)}${GAP}ms`;
}

/**
 * Energy with four digits that count.
 * @param {number | null | undefined} energy_j
 * @returns {string}
 */
export function joules(energy_j) {
  return scaled(energy_j, ENERGY_UNITS);
}

/**
 * @param {number | null | undefined} power_w
 * @returns {string}
 */
export function watts(power_w) {
  return scaled(power_w, POWER_UNITS);
}

/**
 * @param {number | null | undefined} clock_mhz
 * @returns {string}
 */
export function megahertz(clock_mhz) {
  return clock_mhz === null || clock_mhz === undefined ? NONE : `${fixed(clock_mhz, 0)}${GAP}MHz`;
}

/**
 * A share, `+` written where it is a change.
 * @param {number | null | undefined} value in per cent
 * @param {{signed?: boolean, digits?: number}} [how]
 * @returns {string}
 */
export function percent(value, { signed = false, digits = 1 } = {}) {
  if (value === null || value === undefined) return NONE;
  const text = fixed(value, digits);
  const sign = signed && Number(Math.abs(value).toFixed(digits)) !== 0 && value > 0 ? "+" : "";
  return `${sign}${text}${GAP}%`;
}

/**
 * The interval of an estimate, `11.9 to 12.7 %`; empty where there is none.
 * @param {import("./wire_types.js").Estimate | null} estimate
 * @param {(value: number) => string} format
 * @returns {string}
 */
export function interval(estimate, format) {
  if (estimate === null || estimate.low === null || estimate.high === null) return "";
  const low = format(estimate.low);
  const high = format(estimate.high);
  const unit = high.slice(high.lastIndexOf(GAP));
  return `${low.endsWith(unit) ? low.slice(0, -unit.length) : low} to ${high}`;
}

/**
 * By how many per cent `value` is above `reference`.
 * @param {number} value
 * @param {number} reference
 * @returns {number}
 */
export function percentAbove(value, reference) {
  return 100 * (value / reference - 1);
}

/**
 * A whole number with its digits in groups of three.
 * @param {number} value
 * @returns {string}
 */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, GAP);
}

/**
 * `1 step`, `2 steps`.
 * @param {number} number
 * @param {string} word
 * @returns {string}
 */
export function counted(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** What a target's figure is, by its name: its unit, and what it is multiplied with for that. */
const TARGET_UNITS = new Map([
  ["slowdown", { unit: "%", factor: 100 }],
  ["deadline", { unit: "s", factor: 1 }],
  ["power", { unit: "W", factor: 1 }],
]);

/**
 * A target as the API names it, `deadline:2.8837280000000014`, for people: `deadline 2.88373 s`.
 * @param {string} target
 * @returns {string}
 */
export function targetText(target) {
  const [name, figure] = target.split(":");
  const known = TARGET_UNITS.get(name);
  const value = Number(figure || Number.NaN);
  if (known === undefined || !Number.isFinite(value)) return target;
  return `${name} ${Number((known.factor * value).toPrecision(6))}${GAP}${known.unit}`;
}

/**
 * Time of day in the reader's zone; with the date where it is not today's.
 * @param {Date} moment
 * @param {Date} [now]
 * @returns {string}
 */
export function clockTime(moment, now = new Date()) {
  const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
  if (moment.toDateString() === now.toDateString()) return time;
  const date = [moment.getFullYear(), moment.getMonth() + 1, moment.getDate()]
    .map((part) => String(part).padStart(2, "0"))
    .join("-");
  return `${date} ${time}`;
}

/**
 * How long ago, in the largest unit: `3 min ago`.
 * @param {Date} moment
 * @param {Date} now
 * @returns {string}
 */
export function ago(moment, now) {
  const passed_s = Math.max(0, (now.getTime() - moment.getTime()) / 1e3);
  if (passed_s < 60) return "just now";
  if (passed_s < 3600) return `${Math.floor(passed_s / 60)} min ago`;
  if (passed_s < 172800) return `${Math.floor(passed_s / 3600)} h ago`;
  return `${Math.floor(passed_s / 86400)} days ago`;
}

/**
 * @param {number | null | undefined} value
 * @param {[number, string][]} units
 * @returns {string}
 */
function scaled(value, units) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  const [factor, unit] =
    units.find(([least]) => size >= 0.99995 * least) ?? units[units.length - 1];
  const shown = value / factor;
  const whole = Math.abs(shown) < 1 ? 0 : Math.floor(Math.log10(Math.abs(shown)) + 1e-9);
  return `${fixed(shown, Math.min(3, Math.max(0, 3 - whole)))}${GAP}${unit}`;
}
