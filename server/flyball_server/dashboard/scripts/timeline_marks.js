// Marks over the timeline's pixels: hatching, labels, the critical path, the axis.

import { roundTicks } from "./format.js";
import { instructionLabel, lastStartedBy, lookOf } from "./timeline_layout.js";
import { rowHeight_px } from "./timeline_view.js";

/**
 * @import { ClockScale } from "./clock_scale.js"
 * @import { Layout, RowLayout } from "./timeline_layout.js"
 * @import { PaneStyle } from "./timeline_pane.js"
 * @import { View } from "./timeline_view.js"
 */

/**
 * Box in the plot, px.
 * @typedef {{left: number, top: number, width: number, height: number}} Box
 */

/** Place of times and rows in the plot of a view; lengths are CSS px. */
export class Projection {
  /** @param {View} view @param {number} width @param {number} height */
  constructor(view, width, height) {
    this.start_s = view.start_s;
    this.end_s = view.start_s + view.span_s;
    this.width = width;
    this.height = height;
    this.firstRow = view.firstRow;
    this.rowHeight = rowHeight_px(view);
    this.lastRow = view.firstRow + height / this.rowHeight;
  }

  /** @param {number} time_s */
  x(time_s) {
    return ((time_s - this.start_s) / (this.end_s - this.start_s)) * this.width;
  }

  /** @param {number} row or a place in it, as a fraction */
  y(row) {
    return (row - this.firstRow) * this.rowHeight;
  }

  /**
   * Return the box of an instruction, cut at the left and right edge of the plot.
   * @param {Layout} layout
   * @param {number} row
   * @param {number} position
   * @returns {Box}
   */
  box(layout, row, position) {
    const { start_s, end_s, slot } = layout.rows[row];
    const { top, bottom } = layout.slots[slot[position]];
    const left = Math.max(0, this.x(start_s[position]));
    const width = Math.min(this.width, this.x(end_s[position])) - left;
    return { left, top: this.y(row + top), width, height: (bottom - top) * this.rowHeight };
  }
}

/**
 * Iteration that is drawn: where, in which colours.
 * @typedef {object} Drawing
 * @property {CanvasRenderingContext2D} context
 * @property {Layout} layout
 * @property {Projection} to
 * @property {ClockScale} scale
 * @property {PaneStyle} style
 */

const HATCHED_FROM = { width: 7, height: 12 };
const HATCH_STEP = 6;
const LABELLED_FROM = { width: 17, height: 13 };
const LABEL_FONT = 11;
// px between the texts of neighbouring boxes.
const PADDING = 4;
const CLOCK_FONT = 10;
// Of bold digits, which are the widest.
const CHARACTER_EM = 0.7;

/**
 * Visit the instructions in view that are at least this wide.
 * @param {Drawing} drawing
 * @param {number} leastWidth px
 * @param {(row: RowLayout, position: number, box: Box) => void} visit
 */
function visitBoxes({ layout, to }, leastWidth, visit) {
  const lastRow = Math.min(layout.rows.length, Math.ceil(to.lastRow));
  for (let index = Math.floor(to.firstRow); index < lastRow; index += 1) {
    const row = layout.rows[index];
    for (let at = Math.max(0, lastStartedBy(row, to.start_s)); at < row.count; at += 1) {
      if (row.start_s[at] >= to.end_s) break;
      if (row.end_s[at] <= to.start_s) continue;
      const box = to.box(layout, index, at);
      if (box.width >= leastWidth) visit(row, at, box);
    }
  }
}

/** @param {Drawing} drawing */
export function drawHatching(drawing) {
  const { context, layout, to, scale } = drawing;
  const hatches = layout.slots.map(({ kind }) => lookOf(kind).hatch);
  if (to.rowHeight < HATCHED_FROM.height || hatches.every((hatch) => hatch === "")) return;
  /** @type {Record<string, Path2D>} */
  const paths = {};
  visitBoxes(drawing, HATCHED_FROM.width, (row, position, box) => {
    const hatch = hatches[row.slot[position]];
    if (hatch === "") return;
    const color = scale.textOn(row.clock_mhz[position]);
    paths[color] ??= new Path2D();
    addHatching(paths[color], box, hatch === "/");
  });
  context.save();
  context.lineWidth = 1;
  context.globalAlpha = 0.4;
  for (const [color, path] of Object.entries(paths)) {
    context.strokeStyle = color;
    context.stroke(path);
  }
  context.restore();
}

/**
 * Add lines at 45 degrees, cut at the box's edges.
 * @param {Path2D} path
 * @param {Box} box
 * @param {boolean} isRising from left to right
 */
function addHatching(path, { left, top, width, height }, isRising) {
  const inner = width - 1;
  const y = (/** @type {number} */ down) => top + (isRising ? down : height - down);
  for (let at = HATCH_STEP / 2; at < inner + height; at += HATCH_STEP) {
    path.moveTo(left + Math.max(0, at - height), y(Math.min(at, height)));
    path.lineTo(left + Math.min(at, inner), y(Math.max(0, at - inner)));
  }
}

/**
 * Write `F3` and the MHz into boxes: one below the other, side by side, or only the first.
 * @param {Drawing} drawing
 */
export function drawLabels(drawing) {
  const { context, layout, to, scale, style } = drawing;
  if (to.rowHeight < LABELLED_FROM.height) return;
  context.textAlign = "center";
  context.textBaseline = "middle";
  /** @type {[string, number, number, string][]} */
  const clocks = [];
  context.font = `600 ${LABEL_FONT}px ${style.family}`;
  visitBoxes(drawing, LABELLED_FROM.width, (row, position, box) => {
    const label = instructionLabel(layout, row, position);
    const mhz = row.clock_mhz[position];
    const places = labelPlaces(label, String(mhz), box);
    if (!places) return;
    if (lookOf(layout.slots[row.slot[position]].kind).hatch) {
      const { middle, width, height } = places;
      context.fillStyle = scale.color(mhz);
      context.fillRect(middle[0] - width / 2 - 1, middle[1] - height / 2, width + 2, height);
    }
    context.fillStyle = scale.textOn(mhz);
    context.fillText(label, places.label[0], places.label[1]);
    if (places.clock) clocks.push([String(mhz), ...places.clock, scale.textOn(mhz)]);
  });
  // Changing the font for each text would be slow.
  context.font = `${CLOCK_FONT}px ${style.family}`;
  for (const [text, x, y, color] of clocks) {
    context.fillStyle = color;
    context.fillText(text, x, y);
  }
}

/**
 * Middles of the texts in a box, and of the ground that clears the hatching behind them.
 * @typedef {object} LabelPlaces
 * @property {[number, number]} label
 * @property {[number, number] | null} clock
 * @property {[number, number]} middle
 * @property {number} width
 * @property {number} height
 */

/**
 * Place the texts of a box; null: not even the label fits.
 * @param {string} label
 * @param {string} clock
 * @param {Box} box
 * @returns {LabelPlaces | null}
 */
function labelPlaces(label, clock, { left, top, width, height }) {
  const [x, y] = [left + width / 2, top + height / 2];
  const [labelWidth, clockWidth] = [textWidth(label, LABEL_FONT), textWidth(clock, CLOCK_FONT)];
  if (labelWidth + PADDING > width || height < LABEL_FONT) return null;
  const both = LABEL_FONT + CLOCK_FONT;
  if (clockWidth + PADDING <= width && height >= both) {
    const wider = Math.max(labelWidth, clockWidth);
    return {
      label: [x, y - 5],
      clock: [x, y + 6],
      middle: [x, y + 0.5],
      width: wider,
      height: both,
    };
  }
  const line = y + 0.5;
  const beside = labelWidth + 4 + clockWidth;
  const isAlone = beside + PADDING > width;
  return {
    label: [isAlone ? x : x - (4 + clockWidth) / 2, line],
    clock: isAlone ? null : [x + (labelWidth + 4) / 2, line],
    middle: [x, line],
    width: isAlone ? labelWidth : beside,
    height: LABEL_FONT,
  };
}

/** Estimate the width of a text in px. @param {string} text @param {number} font_px */
function textWidth(text, font_px) {
  return text.length * font_px * CHARACTER_EM;
}

/**
 * Draw a frame around consecutive instructions of a row, and a line from row to row.
 * @param {Drawing} drawing
 */
export function drawCriticalPath({ context, layout, to, style }) {
  const path = new Path2D();
  const margin = 0.07;
  for (const { row, start_s, end_s } of layout.criticalRuns) {
    if (end_s < to.start_s || start_s > to.end_s) continue;
    if (row + 1 < to.firstRow || row > to.lastRow) continue;
    const left = Math.max(-4, to.x(start_s));
    const right = Math.min(to.width + 4, to.x(end_s));
    const height = (1 - 2 * margin) * to.rowHeight;
    path.rect(left, to.y(row + margin), Math.max(1, right - left), height);
  }
  for (const { time_s, fromRow, toRow } of layout.criticalLinks) {
    if (time_s < to.start_s || time_s > to.end_s) continue;
    path.moveTo(to.x(time_s), to.y(fromRow + 0.5));
    path.lineTo(to.x(time_s), to.y(toRow + 0.5));
  }
  const isFine = to.rowHeight < 10;
  context.strokeStyle = style.surface;
  context.lineWidth = isFine ? 2.5 : 4;
  context.stroke(path);
  context.strokeStyle = style.critical;
  context.lineWidth = isFine ? 1 : 2;
  context.stroke(path);
}

/** Draw the time along the lower edge, in s or ms. @param {Drawing} drawing */
export function drawTimeAxis({ context, to, style }) {
  const isShort = to.end_s - to.start_s < 0.5;
  const unit = isShort ? 1e3 : 1;
  const most = Math.max(2, Math.floor(to.width / 90));
  const { values, decimals } = roundTicks(to.start_s * unit, to.end_s * unit, most);
  context.strokeStyle = style.border;
  context.fillStyle = style["text-muted"];
  context.lineWidth = 1;
  context.font = `${LABEL_FONT}px ${style.family}`;
  context.textAlign = "center";
  context.textBaseline = "top";
  context.beginPath();
  for (const value of values) {
    const x = Math.round(to.x(value / unit)) + 0.5;
    context.moveTo(x, to.height);
    context.lineTo(x, to.height + 4);
    const text = `${value.toFixed(decimals)} ${isShort ? "ms" : "s"}`;
    const half = textWidth(text, LABEL_FONT) / 2;
    context.fillText(text, Math.min(x, to.width + 8 - half), to.height + 6);
  }
  context.stroke();
}
