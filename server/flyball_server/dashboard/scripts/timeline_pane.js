// One iteration on a canvas: row names, boxes, the ends of both iterations, the time axis.

import { channels } from "./clock_scale.js";
import { fontFamily, make } from "./elements.js";
import { themeColors } from "./theme.js";
import {
  drawCriticalPath,
  drawHatching,
  drawLabels,
  drawTimeAxis,
  Projection,
} from "./timeline_marks.js";
import { createPalette, rasterize } from "./timeline_raster.js";
import { isFitted, within } from "./timeline_view.js";

/**
 * @import { ClockScale, Rgb } from "./clock_scale.js"
 * @import { Layout } from "./timeline_layout.js"
 * @import { Drawing } from "./timeline_marks.js"
 * @import { Palette } from "./timeline_raster.js"
 * @import { View } from "./timeline_view.js"
 */

/** @typedef {ReturnType<typeof paneStyle>} PaneStyle */

/** Return the colours and the font of the theme. */
export function paneStyle() {
  const colors = themeColors("surface", "surface-2", "text", "text-muted", "border", "critical");
  return { ...colors, waiting: channels(colors["surface-2"]), family: fontFamily() };
}

/** Mark of an iteration's end. @typedef {{time_s: number, words: string}} EndMark */

/**
 * Content of a pane.
 * @typedef {object} Shown
 * @property {Layout} layout
 * @property {ClockScale} scale
 * @property {EndMark} own
 * @property {EndMark} other
 */

const TOP = 16;
const AXIS = 22;
const RIGHT = 8;
const ROW_NAME_FONT = 11;

export class TimelinePane {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this._context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    /** @type {(Shown & {style: PaneStyle, palette: Palette}) | null} */
    this._shown = null;
    /** @type {ImageData | null} */
    this._pixels = null;
    this._size = { width: 0, plotHeight: 0, gutter: 0, ratio: 1 };
  }

  /** @param {Shown} shown @param {PaneStyle} style */
  show(shown, style) {
    this._shown = { ...shown, style, palette: createPalette(shown.scale, style.waiting) };
  }

  /** @param {number} width of the canvas, CSS px @param {number} plotHeight of the rows, CSS px */
  resize(width, plotHeight) {
    const ratio = devicePixelRatio;
    const hasPipelines = this._shown?.layout.rows.some((row) => row.dp_rank > 0);
    const gutter = width < 560 ? 34 : hasPipelines ? 112 : 86;
    this._size = { width, plotHeight, gutter, ratio };
    const height = plotHeight + TOP + AXIS;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  /** Area of rows and times on the canvas, CSS px. */
  get plot() {
    const { width, plotHeight, gutter } = this._size;
    return {
      left: gutter,
      top: TOP,
      width: Math.max(1, width - gutter - RIGHT),
      height: plotHeight,
    };
  }

  /** @param {View} view */
  projection(view) {
    return new Projection(view, this.plot.width, this.plot.height);
  }

  /**
   * Return the visible part of an instruction's box on the canvas, CSS px.
   * @param {number} row
   * @param {number} position
   * @param {View} view
   */
  placeOf(row, position, view) {
    if (!this._shown) return null;
    const { plot } = this;
    const { left, top, width, height } = this.projection(view).box(
      this._shown.layout,
      row,
      position,
    );
    const upper = Math.max(0, top);
    const lower = Math.min(plot.height, top + height);
    if (width <= 0 || lower <= upper) return null;
    return { left: left + plot.left, top: upper + plot.top, width, height: lower - upper };
  }

  /** @param {View} view */
  draw(view) {
    const { _context: context, _shown: shown } = this;
    if (!shown || this.plot.width <= 1) return;
    const to = this.projection(view);
    const drawing = { ...shown, context, to };
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this._drawPixels(drawing);
    context.setTransform(this._size.ratio, 0, 0, this._size.ratio, 0, 0);
    this._drawRowNames(drawing);
    context.translate(this.plot.left, this.plot.top);
    context.save();
    context.beginPath();
    context.rect(0, 0, to.width, to.height);
    context.clip();
    drawHatching(drawing);
    drawLabels(drawing);
    drawCriticalPath(drawing);
    context.restore();
    this._drawEnds(drawing);
    drawTimeAxis(drawing);
  }

  /** @param {Drawing & {palette: Palette}} drawing */
  _drawPixels({ context, layout, to, palette }) {
    const { ratio } = this._size;
    const width = Math.round(to.width * ratio);
    const height = Math.round(to.height * ratio);
    if (!this._pixels || this._pixels.width !== width || this._pixels.height !== height) {
      this._pixels = new ImageData(width, height);
    }
    const columns = { start_s: to.start_s, span_s: to.end_s - to.start_s, count: width };
    const rows = { firstRow: to.firstRow, rowHeight: to.rowHeight * ratio };
    rasterize(layout, columns, rows, palette, new Uint32Array(this._pixels.data.buffer));
    const { left, top } = this.plot;
    context.putImageData(this._pixels, Math.round(left * ratio), Math.round(top * ratio));
  }

  /** @param {Drawing} drawing */
  _drawRowNames({ context, layout, to, style }) {
    const every = Math.max(1, Math.ceil((ROW_NAME_FONT + 2) / to.rowHeight));
    context.font = `${ROW_NAME_FONT}px ${style.family}`;
    context.fillStyle = style["text-muted"];
    context.textAlign = "right";
    context.textBaseline = "middle";
    const isNarrow = this.plot.left < 60;
    for (let row = Math.floor(to.firstRow); row < layout.rows.length; row += 1) {
      if (row % every) continue;
      const y = to.y(row + 0.5);
      if (y > to.height) break;
      if (y < 0) continue;
      const { name, dp_rank, stage } = layout.rows[row];
      const short = name.startsWith("dp") ? `${dp_rank}.${stage}` : String(stage);
      context.fillText(isNarrow ? short : name, this.plot.left - 6, y + this.plot.top);
    }
  }

  /** @param {Drawing & Shown} drawing */
  _drawEnds({ context, to, style, own, other }) {
    context.font = `${ROW_NAME_FONT}px ${style.family}`;
    context.textBaseline = "bottom";
    /** @type {[number, number] | null} */
    let taken = null;
    for (const mark of [own, other]) {
      const isOwn = mark === own;
      const x = to.x(mark.time_s);
      if (x < 0 || x > to.width + 1) continue;
      context.strokeStyle = isOwn ? style.text : style["text-muted"];
      context.fillStyle = context.strokeStyle;
      context.lineWidth = isOwn ? 1.5 : 1;
      context.setLineDash(isOwn ? [] : [4, 3]);
      context.beginPath();
      context.moveTo(x, -2);
      context.lineTo(x, to.height + 4);
      context.stroke();
      const width = context.measureText(mark.words).width;
      const left = Math.max(0, Math.min(x - width / 2, to.width + RIGHT - width));
      if (!taken || left > taken[1] + 8 || left + width < taken[0] - 8) {
        context.textAlign = "left";
        context.fillText(mark.words, left, -3);
        taken = [left, left + width];
      }
    }
    context.setLineDash([]);
  }
}

const HEIGHT_PX = 32;

export class TimelineMinimap {
  /** @param {(view: View) => void} change @param {() => View} view */
  constructor(change, view) {
    this._canvas = make("canvas.timeline-map-canvas");
    this._frame = make("div.timeline-map-frame");
    // Hidden from assistive technology: the timeline's keys do the same.
    this.element = make("div.timeline-map", { "aria-hidden": "true" }, this._canvas, this._frame);
    this._width = 0;
    /** @type {{layout: Layout, palette: Palette, end_s: number} | null} */
    this._shown = null;
    /** @param {PointerEvent} event */
    const onMove = ({ pointerId, clientX }) => {
      if (!this.element.hasPointerCapture(pointerId)) return;
      const { left, width } = this.element.getBoundingClientRect();
      const now = view();
      const middle_s = ((clientX - left) / width) * now.bounds.end_s;
      change(within({ ...now, start_s: middle_s - now.span_s / 2 }));
    };
    this.element.addEventListener("pointermove", onMove);
    this.element.addEventListener("pointerdown", (event) => {
      this.element.setPointerCapture(event.pointerId);
      onMove(event);
    });
  }

  /**
   * @param {Layout} layout
   * @param {ClockScale} scale
   * @param {Rgb} waiting
   * @param {number} end_s right edge
   */
  show(layout, scale, waiting, end_s) {
    this._shown = { layout, palette: createPalette(scale, waiting), end_s };
    this._paint();
  }

  /** @param {number} left px @param {number} width px, of the timeline's plot. */
  resize(left, width) {
    this._width = Math.max(1, Math.round(width));
    this.element.style.marginLeft = `${left}px`;
    this.element.style.width = `${this._width}px`;
    this._paint();
  }

  /** @param {View} view */
  draw(view) {
    const { end_s } = view.bounds;
    this._frame.hidden = isFitted(view);
    this._frame.style.left = `${(100 * view.start_s) / end_s}%`;
    this._frame.style.width = `${(100 * view.span_s) / end_s}%`;
  }

  _paint() {
    const context = this._canvas.getContext("2d");
    if (!this._shown || !this._width || !context) return;
    const { layout, palette, end_s } = this._shown;
    const height = Math.round(HEIGHT_PX * devicePixelRatio);
    const pixels = new ImageData(Math.round(this._width * devicePixelRatio), height);
    this._canvas.width = pixels.width;
    this._canvas.height = height;
    const columns = { start_s: 0, span_s: end_s, count: pixels.width };
    const rows = { firstRow: 0, rowHeight: height / layout.rows.length };
    rasterize(layout, columns, rows, palette, new Uint32Array(pixels.data.buffer));
    context.putImageData(pixels, 0, 0);
  }
}
