// A row of the timeline in pixel columns: each has the colour of what runs in its time.
//
// A box narrower than a column counts in it by its share, so that any number of boxes costs no
// more than going through them once: columns show the mean clock, mixed with the colour of waiting.

import { lastStartedBy } from "./timeline_layout.js";

/** @typedef {import("./timeline_layout.js").RowLayout} RowLayout */
/** @typedef {import("./clock_scale.js").ClockScale} ClockScale */

/** Boxes at least so wide, in columns, end one column early: that keeps neighbours apart. */
const WIDE_COLUMNS = 5;
/** A column so busy has no visible part of waiting. */
const ALL_BUSY = 0.997;

/**
 * The time that the columns of a picture stand for.
 *
 * @typedef {object} Columns
 * @property {number} start_s
 * @property {number} span_s
 * @property {number} count
 */

/**
 * What runs in each column of a row.
 *
 * @typedef {object} Aggregate
 * @property {Float32Array} busy share of the column, 0 to 1.
 * @property {Float32Array} clock sum of MHz times share: divided by `busy` it is the mean clock.
 */

/** @param {number} count @returns {Aggregate} */
export function emptyAggregate(count) {
  return { busy: new Float32Array(count), clock: new Float32Array(count) };
}

/**
 * Add the boxes of a row that are in view.
 *
 * @param {RowLayout} row
 * @param {Uint8Array} isAdded per slot of the layout, whether its boxes are.
 * @param {Columns} columns
 * @param {Aggregate} into as long as there are columns.
 */
export function addBoxes(row, isAdded, columns, into) {
  const perSecond = columns.count / columns.span_s;
  const until_s = columns.start_s + columns.span_s;
  const { start_s, end_s, slot, clock_mhz } = row;
  for (let at = Math.max(0, lastStartedBy(row, columns.start_s)); at < row.count; at += 1) {
    if (start_s[at] >= until_s) break;
    if (!isAdded[slot[at]]) continue;
    const left = (start_s[at] - columns.start_s) * perSecond;
    let right = (end_s[at] - columns.start_s) * perSecond;
    if (right - left >= WIDE_COLUMNS) right -= 1;
    cover(into, Math.max(0, left), Math.min(columns.count, right), clock_mhz[at]);
  }
}

/**
 * @param {Aggregate} into
 * @param {number} left
 * @param {number} right
 * @param {number} mhz
 */
function cover({ busy, clock }, left, right, mhz) {
  if (right <= left) return;
  const first = Math.floor(left);
  const last = Math.ceil(right) - 1;
  if (first === last) {
    busy[first] += right - left;
    clock[first] += (right - left) * mhz;
    return;
  }
  busy[first] += first + 1 - left;
  clock[first] += (first + 1 - left) * mhz;
  for (let column = first + 1; column < last; column += 1) {
    busy[column] += 1;
    clock[column] += mhz;
  }
  busy[last] += right - last;
  clock[last] += (right - last) * mhz;
}

/**
 * Colours as little-endian RGBA, as ImageData has them.
 *
 * @typedef {object} Palette
 * @property {Uint32Array} full the colour of a busy column by MHz above `slowest_mhz`
 * @property {Float32Array} red likewise
 * @property {Float32Array} green
 * @property {Float32Array} blue
 * @property {number} slowest_mhz
 * @property {[number, number, number]} waiting
 */

/**
 * @param {ClockScale} scale
 * @param {[number, number, number]} waiting colour of a row where nothing runs.
 * @returns {Palette}
 */
export function createPalette(scale, waiting) {
  const count = Math.round(scale.fastest_mhz - scale.slowest_mhz) + 1;
  const palette = {
    full: new Uint32Array(count),
    red: new Float32Array(count),
    green: new Float32Array(count),
    blue: new Float32Array(count),
    slowest_mhz: scale.slowest_mhz,
    waiting,
  };
  for (let at = 0; at < count; at += 1) {
    [palette.red[at], palette.green[at], palette.blue[at]] = scale.rgb(scale.slowest_mhz + at);
    palette.full[at] = packed(palette.red[at], palette.green[at], palette.blue[at]);
  }
  return palette;
}

/**
 * The pixels of one line of a row.
 *
 * @param {Aggregate} from
 * @param {Palette} palette
 * @param {Uint32Array} into
 */
export function colorLine(from, palette, into) {
  const [red, green, blue] = palette.waiting;
  const waiting = packed(red, green, blue);
  const last = palette.red.length - 1;
  for (let column = 0; column < into.length; column += 1) {
    const busy = from.busy[column];
    if (busy <= 0) {
      into[column] = waiting;
      continue;
    }
    const above = (from.clock[column] / busy - palette.slowest_mhz + 0.5) | 0;
    const at = above < 0 ? 0 : above > last ? last : above;
    if (busy > ALL_BUSY) into[column] = palette.full[at];
    else {
      into[column] = packed(
        red + busy * (palette.red[at] - red),
        green + busy * (palette.green[at] - green),
        blue + busy * (palette.blue[at] - blue),
      );
    }
  }
}

/** @param {number} red @param {number} green @param {number} blue */
export function packed(red, green, blue) {
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}
