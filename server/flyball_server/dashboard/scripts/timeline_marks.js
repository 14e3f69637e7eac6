// What is drawn over the timeline's pixels: hatching, labels, the critical path, the axis.
//
// Positions are CSS px within the pane's plot; a Projection says where time and rows lie.

import { roundTicks } from "./axis_ticks.js";
import { instructionLabel, lastStartedBy, lookOf } from "./timeline_layout.js";

/** @typedef {import("./timeline_layout.js").Layout} Layout */
/** @typedef {import("./timeline_layout.js").RowLayout} RowLayout */
/** @typedef {import("./clock_scale.js").ClockScale} ClockScale */

/**
 * Where time and rows lie in the plot.
 *
 * @typedef {object} Projection
 * @property {number} start_s
 * @property {number} end_s at the right edge.
 * @property {number} width px
 * @property {number} height px
 * @property {number} firstRow
 * @property {number} rowHeight px
 */

/** A box in the plot, px. @typedef {{left: number, top: number, width: number, height: number}} Box */

const HATCHED_FROM = { width: 7, height: 12 };
const HATCH_STEP = 6;
const LABELLED_FROM = { width: 17, height: 13 };
const LABEL_FONT = 11;
const CLOCK_FONT = 10;
const CHARACTER_EM = 0.62;

/**
 * @param {Projection} to
 * @param {number} time_s
 */
export function across(to, time_s) {
  return ((time_s - to.start_s) / (to.end_s - to.start_s)) * to.width;
}

/**
 * The box of an instruction, as far as it is in the plot from left to right.
 *
 * @param {Layout} layout
 * @param {number} row
 * @param {number} position
 * @param {Projection} to
 * @returns {Box}
 */
export function boxOf(layout, row, position, to) {
  const { start_s, end_s, slot } = layout.rows[row];
  const { top, bottom } = layout.slots[slot[position]];
  const left = Math.max(0, across(to, start_s[position]));
  return {
    left,
    top: (row + top - to.firstRow) * to.rowHeight,
    width: Math.min(to.width, across(to, end_s[position])) - left,
    height: (bottom - top) * to.rowHeight,
  };
}

/**
 * Each instruction in view that is at least so wide.
 *
 * @param {Layout} layout
 * @param {Projection} to
 * @param {number} leastWidth px
 * @param {(row: RowLayout, position: number, box: Box) => void} visit
 */
export function visitBoxes(layout, to, leastWidth, visit) {
  const lastRow = Math.min(layout.rows.length, Math.ceil(to.firstRow + to.height / to.rowHeight));
  for (let index = Math.floor(to.firstRow); index < lastRow; index += 1) {
    const row = layout.rows[index];
    for (let at = Math.max(0, lastStartedBy(row, to.start_s)); at < row.count; at += 1) {
      if (row.start_s[at] >= to.end_s) break;
      if (row.end_s[at] <= to.start_s) continue;
      const box = boxOf(layout, index, at, to);
      if (box.width >= leastWidth) visit(row, at, box);
    }
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Layout} layout
 * @param {Projection} to
 * @param {ClockScale} scale
 */
export function drawHatching(context, layout, to, scale) {
  const isHatched = layout.slots.map(({ kind }) => lookOf(kind).hatch !== "");
  if (to.rowHeight < HATCHED_FROM.height || !isHatched.includes(true)) return;
  /** @type {Record<string, Path2D>} */
  const paths = {};
  visitBoxes(layout, to, HATCHED_FROM.width, (row, position, box) => {
    if (!isHatched[row.slot[position]]) return;
    const color = scale.textOn(row.clock_mhz[position]);
    paths[color] ??= new Path2D();
    addHatching(paths[color], box, lookOf(layout.slots[row.slot[position]].kind).hatch === "/");
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
 * Lines at 45 degrees, cut at the box's edges.
 *
 * @param {Path2D} path
 * @param {Box} box
 * @param {boolean} isRising from left to right
 */
function addHatching(path, { left, top, width, height }, isRising) {
  const inner = width - 1;
  for (let at = HATCH_STEP / 2; at < inner + height; at += HATCH_STEP) {
    const [fromX, fromY] = at <= height ? [0, at] : [at - height, height];
    const [toX, toY] = at <= inner ? [at, 0] : [inner, at - inner];
    const mirror = isRising
      ? (/** @type {number} */ y) => y
      : (/** @type {number} */ y) => height - y;
    path.moveTo(left + fromX, top + mirror(fromY));
    path.lineTo(left + toX, top + mirror(toY));
  }
}

/**
 * `F3` and the MHz: below each other, beside each other, or the first alone, as there is room.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Layout} layout
 * @param {Projection} to
 * @param {ClockScale} scale
 * @param {string} family of the font
 */
export function drawLabels(context, layout, to, scale, family) {
  if (to.rowHeight < LABELLED_FROM.height) return;
  context.textAlign = "center";
  context.textBaseline = "middle";
  /** @type {[string, number, number, string][]} */
  const clocks = [];
  context.font = `600 ${LABEL_FONT}px ${family}`;
  visitBoxes(layout, to, LABELLED_FROM.width, (row, position, box) => {
    const label = instructionLabel(layout, row, position);
    const mhz = row.clock_mhz[position];
    const places = labelPlaces(label, String(mhz), box);
    if (!places) return;
    if (lookOf(layout.slots[row.slot[position]].kind).hatch)
      clearBehind(context, places, scale.color(mhz));
    context.fillStyle = scale.textOn(mhz);
    context.fillText(label, places.label[0], places.label[1]);
    if (places.clock) clocks.push([String(mhz), ...places.clock, scale.textOn(mhz)]);
  });
  context.font = `${CLOCK_FONT}px ${family}`;
  for (const [text, x, y, color] of clocks) {
    context.fillStyle = color;
    context.fillText(text, x, y);
  }
}

/**
 * The middles of both texts in a box; null: not even the label fits.
 *
 * @param {string} label
 * @param {string} clock
 * @param {Box} box
 * @returns {{label: [number, number], clock: [number, number] | null, width: number, height: number} | null}
 */
function labelPlaces(label, clock, { left, top, width, height }) {
  const [x, y] = [left + width / 2, top + height / 2];
  const [labelWidth, clockWidth] = [textWidth(label, LABEL_FONT), textWidth(clock, CLOCK_FONT)];
  if (labelWidth + 2 > width || height < LABEL_FONT) return null;
  if (clockWidth + 2 <= width && height >= LABEL_FONT + CLOCK_FONT) {
    const wider = Math.max(labelWidth, clockWidth);
    return { label: [x, y - 5], clock: [x, y + 6], width: wider, height: LABEL_FONT + CLOCK_FONT };
  }
  const both = labelWidth + 4 + clockWidth;
  if (both + 2 > width)
    return { label: [x, y + 0.5], clock: null, width: labelWidth, height: LABEL_FONT };
  const begin = x - both / 2;
  return {
    label: [begin + labelWidth / 2, y + 0.5],
    clock: [begin + labelWidth + 4 + clockWidth / 2, y + 0.5],
    width: both,
    height: LABEL_FONT,
  };
}

/**
 * Take the hatching away behind a box's texts.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {NonNullable<ReturnType<typeof labelPlaces>>} places
 * @param {string} color
 */
function clearBehind(context, { label, clock, width, height }, color) {
  const x = clock ? (Math.min(label[0], clock[0]) + Math.max(label[0], clock[0])) / 2 : label[0];
  const middle = clock && clock[1] !== label[1] ? (label[1] + clock[1]) / 2 : label[1];
  context.fillStyle = color;
  context.fillRect(x - width / 2 - 1, middle - height / 2, width + 2, height);
}

/** About how wide a text is, px. @param {string} text @param {number} font_px */
function textWidth(text, font_px) {
  return text.length * font_px * CHARACTER_EM;
}

/**
 * A frame around what runs on end in a row, and a line from row to row.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Layout} layout
 * @param {Projection} to
 * @param {{line: string, halo: string}} colors
 */
export function drawCriticalPath(context, layout, to, colors) {
  const path = new Path2D();
  const margin = 0.07;
  const lastRow = to.firstRow + to.height / to.rowHeight;
  for (const { row, start_s, end_s } of layout.criticalRuns) {
    if (end_s < to.start_s || start_s > to.end_s || row + 1 < to.firstRow || row > lastRow)
      continue;
    const left = Math.max(-4, across(to, start_s));
    const right = Math.min(to.width + 4, across(to, end_s));
    const top = (row + margin - to.firstRow) * to.rowHeight;
    path.rect(left, top, Math.max(1, right - left), (1 - 2 * margin) * to.rowHeight);
  }
  for (const { time_s, fromRow, toRow } of layout.criticalLinks) {
    if (time_s < to.start_s || time_s > to.end_s) continue;
    const x = across(to, time_s);
    path.moveTo(x, (fromRow + 0.5 - to.firstRow) * to.rowHeight);
    path.lineTo(x, (toRow + 0.5 - to.firstRow) * to.rowHeight);
  }
  const isFine = to.rowHeight < 10;
  for (const [color, width] of /** @type {[string, number][]} */ ([
    [colors.halo, isFine ? 2.5 : 4],
    [colors.line, isFine ? 1 : 2],
  ])) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.stroke(path);
  }
}

/**
 * Time along the lower edge, in s or ms.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Projection} to
 * @param {{text: string, line: string, family: string}} style
 */
export function drawTimeAxis(context, to, style) {
  const isShort = to.end_s - to.start_s < 0.5;
  const unit = isShort ? 1e3 : 1;
  const most = Math.max(2, Math.floor(to.width / 90));
  const { values, decimals } = roundTicks(to.start_s * unit, to.end_s * unit, most);
  context.strokeStyle = style.line;
  context.fillStyle = style.text;
  context.lineWidth = 1;
  context.font = `${LABEL_FONT}px ${style.family}`;
  context.textAlign = "center";
  context.textBaseline = "top";
  context.beginPath();
  for (const value of values) {
    const x = Math.round(across(to, value / unit)) + 0.5;
    context.moveTo(x, to.height);
    context.lineTo(x, to.height + 4);
    const text = `${value.toFixed(decimals)} ${isShort ? "ms" : "s"}`;
    const half = (text.length * LABEL_FONT * CHARACTER_EM) / 2;
    context.fillText(text, Math.min(x, to.width + 8 - half), to.height + 6);
  }
  context.stroke();
}
