// @ts-check
// The timeline's boxes as pixels: each column of a row has the colour of what runs in it.
//
// A box narrower than a column counts in it by its share, so that any number of boxes costs no
// more than going through them once: columns show the mean clock, mixed with the colour of waiting.

import { ROW_FILL, lastStartedBy } from "./timeline_layout.js";

/** @typedef {import("./timeline_layout.js").RowLayout} RowLayout */
/** @typedef {import("./timeline_layout.js").Layout} Layout */
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
 * Fill `into` from the boxes of a row that are in view.
 *
 * @param {RowLayout} row
 * @param {Uint8Array} isShown per slot of the layout, whether its boxes count.
 * @param {Columns} columns
 * @param {Aggregate} into as long as there are columns.
 */
export function aggregate(row, isShown, columns, into) {
  into.busy.fill(0);
  into.clock.fill(0);
  const perSecond = columns.count / columns.span_s;
  const until_s = columns.start_s + columns.span_s;
  const { start_s, end_s, slot, clock_mhz } = row;
  for (let at = Math.max(0, lastStartedBy(row, columns.start_s)); at < row.count; at += 1) {
    if (start_s[at] >= until_s) break;
    if (!isShown[slot[at]]) continue;
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
function cover(into, left, right, mhz) {
  if (right <= left) return;
  const { busy, clock } = into;
  const first = Math.floor(left);
  const last = Math.ceil(right) - 1;
  for (let column = first; column <= last; column += 1) {
    const share = Math.min(right, column + 1) - Math.max(left, column);
    busy[column] += share;
    clock[column] += share * mhz;
  }
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
function packed(red, green, blue) {
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

/**
 * Draw rows into the pixels of a picture.
 *
 * @param {Layout} layout
 * @param {Columns} columns
 * @param {{firstRow: number, rowHeight: number}} rows the row at the upper edge, and how many lines
 *   a row has; both may be fractions.
 * @param {Palette} palette
 * @param {Uint32Array} pixels line after line, `columns.count` each.
 */
export function rasterize(layout, columns, rows, palette, pixels) {
  pixels.fill(0);
  const numLines = pixels.length / columns.count;
  const scratch = emptyAggregate(columns.count);
  for (let index = Math.max(0, Math.floor(rows.firstRow)); index < layout.rows.length; index += 1) {
    const top = (index - rows.firstRow) * rows.rowHeight;
    if (top >= numLines) break;
    /** @param {Uint8Array} isShown @param {Uint32Array} line */
    const drawLine = (isShown, line) => {
      aggregate(layout.rows[index], isShown, columns, scratch);
      colorLine(scratch, palette, line);
      keepToIteration(line, columns, layout.iterationTime_s);
    };
    rasterizeRow(layout, columns, { top, height: rows.rowHeight }, drawLine, pixels);
  }
}

/**
 * The lines of one row; those that cross the same slots are alike and drawn once.
 *
 * @param {Layout} layout
 * @param {Columns} columns
 * @param {{top: number, height: number}} place in lines.
 * @param {(isShown: Uint8Array, line: Uint32Array) => void} drawLine
 * @param {Uint32Array} pixels
 */
function rasterizeRow(layout, columns, place, drawLine, pixels) {
  /** @type {Map<string, Uint32Array>} */
  const drawn = new Map();
  const begin = Math.round(place.top);
  const end = Math.max(begin + 1, Math.round(place.top + place.height));
  // Rows of a few lines have no margin of their own: the last line keeps them apart.
  const last = place.height >= 5 && place.height < 8 ? end - 1 : end;
  const lastLine = Math.min(last, pixels.length / columns.count);
  for (let line = Math.max(0, begin); line < lastLine; line += 1) {
    const isShown = slotsAt(layout, (line + 0.5 - place.top) / place.height, place.height);
    if (!isShown) continue;
    const pixelsOfLine = pixels.subarray(line * columns.count, (line + 1) * columns.count);
    const name = isShown.join("");
    const alike = drawn.get(name);
    if (alike) pixelsOfLine.set(alike);
    else drawLine(isShown, pixelsOfLine);
    drawn.set(name, pixelsOfLine);
  }
}

/**
 * Which slots have boxes at a height of the row, 0 (top) to 1; null between rows.
 *
 * @param {Layout} layout
 * @param {number} height
 * @param {number} rowHeight lines; in the lowest rows heights cannot be told, and all slots count.
 */
function slotsAt(layout, height, rowHeight) {
  const isLow = rowHeight < 4;
  const margin = (1 - ROW_FILL) / 2;
  if (!isLow && rowHeight >= 8 && (height < margin || height > 1 - margin)) return null;
  return Uint8Array.from(layout.slots, ({ top, bottom }) =>
    Number(isLow || (Math.max(height, margin) >= top && Math.min(height, 1 - margin) <= bottom)),
  );
}

/**
 * Nothing is drawn after the iteration's end.
 *
 * @param {Uint32Array} line
 * @param {Columns} columns
 * @param {number} iterationTime_s
 */
function keepToIteration(line, columns, iterationTime_s) {
  const end = Math.round(((iterationTime_s - columns.start_s) / columns.span_s) * columns.count);
  if (end < line.length) line.fill(0, Math.max(0, end));
}
