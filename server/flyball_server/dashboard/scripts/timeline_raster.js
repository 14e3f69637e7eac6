// The rows of the timeline as pixels: a box's height tells its kind, and nothing is after the end.

import { addBoxes, colorLine, emptyAggregate } from "./timeline_columns.js";
import { ROW_FILL } from "./timeline_layout.js";

/** @typedef {import("./timeline_layout.js").Layout} Layout */
/** @typedef {import("./timeline_layout.js").RowLayout} RowLayout */
/** @typedef {import("./timeline_columns.js").Columns} Columns */
/** @typedef {import("./timeline_columns.js").Palette} Palette */
/** @typedef {import("./timeline_columns.js").Aggregate} Aggregate */

/** Rows of fewer lines tell no kinds; of fewer than the others, they have no margins. */
const FEW_LINES = { kinds: 4, apart: 5, margins: 8 };

/**
 * Heights of a row between which lines cross the same slots.
 *
 * @typedef {object} Band
 * @property {number} until 0 is the row's upper edge, 1 the lower one; it begins where the last ends.
 * @property {Uint8Array | null} isShown per slot; null: between rows, nothing is drawn.
 */

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

/** Paints the lines of one row after the other; those that cross the same slots are alike. */
class RowPainter {
  /**
   * @param {Columns} columns
   * @param {Palette} palette
   * @param {number} iterationTime_s
   */
  constructor(columns, palette, iterationTime_s) {
    this._columns = columns;
    this._palette = palette;
    const { start_s, span_s, count } = columns;
    this._end = Math.max(0, Math.round(((iterationTime_s - start_s) / span_s) * count));
    this._aggregate = emptyAggregate(count);
    /** @type {RowLayout | null} */
    this._row = null;
    /** What the aggregate holds of the row. @type {Uint8Array | null} */
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
    // Where lower lines only have more boxes, these are added to those that are there.
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
 * The lines of a row that are in the picture, and which slots they cross.
 *
 * @param {Band[]} bands
 * @param {number} top of the row, in lines.
 * @param {number} height likewise.
 * @param {number} numLines of the picture.
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

/**
 * @param {Layout} layout
 * @param {number} rowHeight lines
 * @returns {Band[]} from the upper edge down.
 */
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
