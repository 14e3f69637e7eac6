// Which part of an iteration the timeline shows: zoom and pan as arithmetic, nothing drawn.
//
// Plan and baseline share a view. Zooming in stretches time, and rows with it until a label fits
// into them; from then on time alone.

/**
 * What is shown of the iteration.
 *
 * @typedef {object} View
 * @property {number} start_s at the left edge.
 * @property {number} span_s from the left edge to the right one.
 * @property {number} firstRow at the upper edge; a fraction where a row is cut.
 */

/**
 * What there is to show, and in how much room.
 *
 * @typedef {object} Bounds
 * @property {number} end_s the right edge when all is shown.
 * @property {number} shortestSpan_s that is zoomed in to; at most `end_s`.
 * @property {number} numRows
 * @property {number} paneHeight_px of one pane, in which all rows fit when all is shown.
 * @property {number} readableRow_px height of a row in which labels fit.
 */

/**
 * All of it.
 *
 * @param {Bounds} bounds
 * @returns {View}
 */
export function fitted(bounds) {
  return { start_s: 0, span_s: bounds.end_s, firstRow: 0 };
}

/**
 * @param {View} view
 * @param {Bounds} bounds
 */
export function isFitted(view, bounds) {
  return view.span_s >= bounds.end_s;
}

/**
 * How high a row is drawn, px.
 *
 * @param {View} view
 * @param {Bounds} bounds
 */
export function rowHeight_px(view, bounds) {
  const fitted_px = bounds.paneHeight_px / bounds.numRows;
  return Math.min(
    Math.max(fitted_px, bounds.readableRow_px),
    (fitted_px * bounds.end_s) / view.span_s,
  );
}

/**
 * How many rows are seen, the cut ones by their share.
 *
 * @param {View} view
 * @param {Bounds} bounds
 */
export function rowsShown(view, bounds) {
  return Math.min(bounds.numRows, bounds.paneHeight_px / rowHeight_px(view, bounds));
}

/**
 * Nearer by `factor` (below 1: farther); what is at the given place stays there.
 *
 * @param {View} view
 * @param {Bounds} bounds
 * @param {number} factor
 * @param {number} [across] the place, 0 (left) to 1 (right).
 * @param {number} [down] likewise, 0 (upper edge) to 1.
 * @returns {View}
 */
export function zoomed(view, bounds, factor, across = 0.5, down = 0.5) {
  const span_s = clamp(view.span_s / factor, bounds.shortestSpan_s, bounds.end_s);
  const near = { start_s: view.start_s + across * (view.span_s - span_s), span_s, firstRow: 0 };
  const row = view.firstRow + down * rowsShown(view, bounds);
  return within({ ...near, firstRow: row - down * rowsShown(near, bounds) }, bounds);
}

/**
 * Moved along time and rows, as far as there is something.
 *
 * @param {View} view
 * @param {Bounds} bounds
 * @param {number} bySpans of the shown span, to the right; below zero to the left.
 * @param {number} [byRows] downwards.
 * @returns {View}
 */
export function panned(view, bounds, bySpans, byRows = 0) {
  const moved = {
    start_s: view.start_s + bySpans * view.span_s,
    span_s: view.span_s,
    firstRow: view.firstRow + byRows,
  };
  return within(moved, bounds);
}

/**
 * Moved by as little as it takes to see a box, its left end where it is longer than what is shown.
 *
 * @param {View} view
 * @param {Bounds} bounds
 * @param {{start_s: number, end_s: number, row: number}} box
 * @returns {View}
 */
export function showing(view, bounds, box) {
  const shown = rowsShown(view, bounds);
  let { start_s, firstRow } = view;
  start_s = Math.max(start_s, box.end_s - view.span_s);
  start_s = Math.min(start_s, box.start_s);
  firstRow = Math.max(firstRow, box.row + 1 - shown);
  firstRow = Math.min(firstRow, box.row);
  return within({ start_s, span_s: view.span_s, firstRow }, bounds);
}

/**
 * The same part after the room or the iteration has changed.
 *
 * @param {View} view
 * @param {Bounds} bounds
 * @returns {View}
 */
export function within(view, bounds) {
  const span_s = clamp(view.span_s, bounds.shortestSpan_s, bounds.end_s);
  const sized = { start_s: clamp(view.start_s, 0, bounds.end_s - span_s), span_s, firstRow: 0 };
  const lastFirstRow = bounds.numRows - rowsShown(sized, bounds);
  return { ...sized, firstRow: clamp(view.firstRow, 0, Math.max(0, lastFirstRow)) };
}

/**
 * @param {View} one
 * @param {View} other
 */
export function isSameView(one, other) {
  return (
    one.start_s === other.start_s && one.span_s === other.span_s && one.firstRow === other.firstRow
  );
}

/** @param {number} value @param {number} low @param {number} high */
function clamp(value, low, high) {
  return Math.min(Math.max(value, low), Math.max(low, high));
}
