// Timeline rows as pixels: the height of a box encodes the kind of its instruction.

import { lastStartedBy, ROW_FILL } from "./timeline_layout.js";

/**
 * @import { ClockScale, Rgb } from "./clock_scale.js"
 * @import { Layout, RowLayout } from "./timeline_layout.js"
 */

/** Heights in lines below which rows show no kinds, have no gaps, have no margins. */
const FEW_LINES = { kinds: 4, apart: 5, margins: 8 };

/**
 * Range of heights in a row whose lines cross the same slots; it begins where the last one ends.
 * @typedef {object} Band
 * @property {number} until from 0 (top of the row) to 1
 * @property {Uint8Array | null} isShown by slot; null: nothing, between rows
 */

/**
 * Draw rows into the pixels of a picture.
 * @param {Layout} layout
 * @param {Columns} columns
 * @param {{firstRow: number, rowHeight: number}} rows first row and height of a row in lines, both
 *   perhaps fractions
 * @param {Palette} palette
 * @param {Uint32Array} pixels by line, `columns.count` each
 */
export function rasterize(layout, columns, rows, palette, pixels) {
  pixels.fill(0);
  const numLines = pixels.length / columns.count;
  const bands = bandsOf(layout, rows.rowHeight);
  const painter = new RowPainter(columns, palette, layout.iterationTime_s);
  for (let index = Math.max(0, Math.floor(rows.firstRow)); index < layout.rows.length; index += 1) {
    const top = (index - rows.firstRow) * rows.rowHeight;
    if (top >= numLines) break;
    painter.begin(layout.rows[index]);
    for (const [line, isShown] of linesOf(bands, top, rows.rowHeight, numLines)) {
      painter.paint(isShown, pixels.subarray(line * columns.count, (line + 1) * columns.count));
    }
  }
}

/** Painter of one row after the other; lines that cross the same slots are copied. */
class RowPainter {
  /** @param {Columns} columns @param {Palette} palette @param {number} iterationTime_s */
  constructor(columns, palette, iterationTime_s) {
    this._columns = columns;
    this._palette = palette;
    const { start_s, span_s, count } = columns;
    this._end = Math.max(0, Math.round(((iterationTime_s - start_s) / span_s) * count));
    this._aggregate = emptyAggregate(count);
    /** @type {RowLayout | null} */
    this._row = null;
    /** Slots in the aggregate. @type {Uint8Array | null} */
    this._held = null;
    /** @type {Map<Uint8Array, Uint32Array>} */
    this._painted = new Map();
  }

  /** @param {RowLayout} row */
  begin(row) {
    this._row = row;
    this._held = null;
    this._painted.clear();
  }

  /** @param {Uint8Array} isShown @param {Uint32Array} line */
  paint(isShown, line) {
    const alike = this._painted.get(isShown);
    if (alike) line.set(alike);
    else {
      this._hold(isShown);
      colorLine(this._aggregate, this._palette, line);
      if (this._end < line.length) line.fill(0, this._end);
      this._painted.set(isShown, line);
    }
  }

  /** @param {Uint8Array} isShown */
  _hold(isShown) {
    const held = this._held;
    // Lower lines often have only more boxes: these are added.
    const isMore = held !== null && held.every((each, slot) => !each || isShown[slot] === 1);
    if (!isMore) {
      this._aggregate.busy.fill(0);
      this._aggregate.clock.fill(0);
    }
    const added = isMore ? isShown.map((each, slot) => each && 1 - held[slot]) : isShown;
    addBoxes(/** @type {RowLayout} */ (this._row), added, this._columns, this._aggregate);
    this._held = isShown;
  }
}

/**
 * Return the lines of a row in the picture, with the slots that they cross.
 * @param {Band[]} bands
 * @param {number} top of the row in lines
 * @param {number} height of the row in lines
 * @param {number} numLines of the picture
 * @returns {[number, Uint8Array][]}
 */
function linesOf(bands, top, height, numLines) {
  const begin = Math.round(top);
  const end = Math.max(begin + 1, Math.round(top + height));
  const isApart = height >= FEW_LINES.apart && height < FEW_LINES.margins;
  /** @type {[number, Uint8Array][]} */
  const lines = [];
  let band = 0;
  for (let line = begin; line < Math.min(numLines, isApart ? end - 1 : end); line += 1) {
    const at = (line + 0.5 - top) / height;
    while (band < bands.length - 1 && at > bands[band].until) band += 1;
    const { isShown } = bands[band];
    if (isShown && line >= 0) lines.push([line, isShown]);
  }
  return lines;
}

/** @param {Layout} layout @param {number} rowHeight lines @returns {Band[]} from the top */
function bandsOf({ slots }, rowHeight) {
  if (rowHeight < FEW_LINES.kinds)
    return [{ until: 1, isShown: new Uint8Array(slots.length).fill(1) }];
  const margin = (1 - ROW_FILL) / 2;
  const edges = [...slots.flatMap(({ top, bottom }) => [top, bottom]), 1 - margin];
  const rising = [...new Set(edges)]
    .filter((edge) => edge > margin)
    .sort((one, other) => one - other);
  /** @type {Band[]} */
  const bands = rising.map((until, index) => {
    const middle = ((rising[index - 1] ?? margin) + until) / 2;
    const isShown = slots.map(({ top, bottom }) => Number(middle > top && middle < bottom));
    return { until, isShown: Uint8Array.from(isShown) };
  });
  if (rowHeight < FEW_LINES.margins) return bands;
  return [{ until: margin, isShown: null }, ...bands, { until: 1, isShown: null }];
}

/** Width in columns from which boxes end one column early, to keep neighbours apart. */
const WIDE_COLUMNS = 5;
/** Share above which waiting in a column is invisible. */
const ALL_BUSY = 0.997;

/**
 * Time range of the columns of a picture.
 * @typedef {object} Columns
 * @property {number} start_s
 * @property {number} span_s
 * @property {number} count
 */

/**
 * Content of the columns of a row.
 * @typedef {object} Aggregate
 * @property {Float32Array} busy share, 0 to 1
 * @property {Float32Array} clock sum of MHz times share
 */

/** @param {number} count @returns {Aggregate} */
export function emptyAggregate(count) {
  return { busy: new Float32Array(count), clock: new Float32Array(count) };
}

/**
 * Add the boxes of a row that are in view.
 * @param {RowLayout} row
 * @param {Uint8Array} isAdded by slot
 * @param {Columns} columns
 * @param {Aggregate} into
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

/** @param {Aggregate} into @param {number} left @param {number} right @param {number} mhz */
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
 * Colours of columns.
 * @typedef {object} Palette
 * @property {Rgb[]} colors of busy columns, by MHz above `slowest_mhz`
 * @property {Uint32Array} full the same as pixels
 * @property {number} slowest_mhz
 * @property {Rgb} waiting
 */

/** @param {ClockScale} scale @param {Rgb} waiting colour of waiting @returns {Palette} */
export function createPalette(scale, waiting) {
  const count = Math.round(scale.fastest_mhz - scale.slowest_mhz) + 1;
  const colors = Array.from({ length: count }, (_, above) => scale.rgb(scale.slowest_mhz + above));
  return {
    colors,
    full: Uint32Array.from(colors, packed),
    slowest_mhz: scale.slowest_mhz,
    waiting,
  };
}

/**
 * Set the pixels of one line of a row.
 * @param {Aggregate} from
 * @param {Palette} palette
 * @param {Uint32Array} into
 */
export function colorLine(from, palette, into) {
  const { colors, full, slowest_mhz } = palette;
  const [red, green, blue] = palette.waiting;
  const waiting = packed(palette.waiting);
  const last = colors.length - 1;
  for (let column = 0; column < into.length; column += 1) {
    const busy = from.busy[column];
    if (busy <= 0) {
      into[column] = waiting;
      continue;
    }
    const above = (from.clock[column] / busy - slowest_mhz + 0.5) | 0;
    const at = above < 0 ? 0 : above > last ? last : above;
    if (busy > ALL_BUSY) into[column] = full[at];
    else {
      const [r, g, b] = colors[at];
      const mixed = [red + busy * (r - red), green + busy * (g - green), blue + busy * (b - blue)];
      into[column] = packed(mixed);
    }
  }
}

/** Return a colour as a pixel of ImageData: RGBA, little-endian. @param {number[]} rgb */
function packed([red, green, blue]) {
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}
