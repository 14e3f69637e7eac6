// Colours of SM clocks, in both themes: dark is slow, light is fast.
//
// The stops are viridis from 0.12 to 0.98. Its lightness rises evenly: the order of clocks can be
// read with any colour vision and in grey.

const STOPS = [
  "#472a7a",
  "#424186",
  "#39558c",
  "#31688e",
  "#297a8e",
  "#228b8d",
  "#1e9c89",
  "#27ad81",
  "#40bd72",
  "#65cb5e",
  "#93d741",
  "#c2df23",
  "#f1e51d",
].map(channels);

/** @typedef {[number, number, number]} Rgb each 0 to 255 */

const BLACK = "#000000";
const WHITE = "#ffffff";

/**
 * Colours of clocks between the slowest and the fastest one that are shown.
 * @typedef {object} ClockScale
 * @property {number} slowest_mhz
 * @property {number} fastest_mhz
 * @property {(mhz: number) => Rgb} rgb
 * @property {(mhz: number) => string} color as `#rrggbb`
 * @property {(count: number) => string[]} samples evenly spaced colours, slowest first
 * @property {(mhz: number) => string} textOn black or white, with a contrast to `color` of at
 *   least 4.5 to 1
 */

/**
 * Create a scale; a single clock has the colour of the fastest.
 * @param {number} slowest_mhz
 * @param {number} fastest_mhz
 * @returns {ClockScale}
 */
export function createClockScale(slowest_mhz, fastest_mhz) {
  const span = fastest_mhz - slowest_mhz;
  /** @param {number} mhz */
  const rgb = (mhz) => interpolated(span > 0 ? (mhz - slowest_mhz) / span : 1);
  return {
    slowest_mhz,
    fastest_mhz,
    rgb,
    color: (mhz) => hex(rgb(mhz)),
    samples: (count) =>
      Array.from({ length: count }, (_, at) => hex(rgb(slowest_mhz + (at / (count - 1)) * span))),
    textOn: (mhz) => readableOn(rgb(mhz)),
  };
}

/** Return black or white, whichever has the higher contrast (WCAG) on a colour. @param {Rgb} rgb */
export function readableOn(rgb) {
  const luminance = relativeLuminance(rgb);
  return (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) ? BLACK : WHITE;
}

/** Return WCAG's relative luminance, 0 to 1. @param {Rgb} rgb */
export function relativeLuminance(rgb) {
  const [red, green, blue] = rgb.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** @param {number} position from 0 (slowest) to 1 (fastest); outside: the nearest @returns {Rgb} */
function interpolated(position) {
  const place = Math.min(1, Math.max(0, position)) * (STOPS.length - 1);
  const below = Math.min(Math.floor(place), STOPS.length - 2);
  const share = place - below;
  const [from, to] = [STOPS[below], STOPS[below + 1]];
  /** @param {number} at */
  const channel = (at) => Math.round(from[at] + share * (to[at] - from[at]));
  return [channel(0), channel(1), channel(2)];
}

/** @param {string} color `#rrggbb` @returns {Rgb} */
export function channels(color) {
  /** @param {number} at */
  const channel = (at) => Number.parseInt(color.slice(at, at + 2), 16);
  return [channel(1), channel(3), channel(5)];
}

/** Return a colour as `#rrggbb`. @param {number[]} rgb */
export function hex(rgb) {
  return `#${rgb.map((channel) => channel.toString(16).padStart(2, "0")).join("")}`;
}
