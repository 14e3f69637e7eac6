// One iteration on a canvas: row names to the left, boxes, both iterations' ends, the time axis.

import { rowHeight_px } from "./timeline_view.js";
import {
  across,
  boxOf,
  drawCriticalPath,
  drawHatching,
  drawLabels,
  drawTimeAxis,
} from "./timeline_marks.js";
import { createPalette } from "./timeline_columns.js";
import { rasterize } from "./timeline_raster.js";

/** @typedef {import("./timeline_layout.js").Layout} Layout */
/** @typedef {import("./timeline_marks.js").Projection} Projection */
/** @typedef {import("./timeline_view.js").View} View */
/** @typedef {import("./timeline_view.js").Bounds} Bounds */
/** @typedef {import("./clock_scale.js").ClockScale} ClockScale */

/**
 * Colours and font of the theme.
 *
 * @typedef {object} PaneStyle
 * @property {import("./clock_scale.js").Rgb} waiting
 * @property {string} text
 * @property {string} muted
 * @property {string} line
 * @property {string} critical
 * @property {string} halo
 * @property {string} family
 */

/** An iteration's end as it is marked. @typedef {{time_s: number, words: string}} EndMark */

/**
 * What a pane shows.
 *
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
    const context = canvas.getContext("2d", { alpha: true });
    if (!context) throw new Error("this browser draws on no canvas");
    this._context = context;
    /** @type {Shown | null} */
    this._shown = null;
    /** @type {PaneStyle | null} */
    this._style = null;
    /** @type {import("./timeline_columns.js").Palette | null} */
    this._palette = null;
    /** @type {ImageData | null} */
    this._pixels = null;
    this._size = { width: 0, plotHeight: 0, gutter: 0, ratio: 1 };
  }

  /** @param {Shown} shown @param {PaneStyle} style */
  show(shown, style) {
    this._shown = shown;
    this._style = style;
    this._palette = createPalette(shown.scale, style.waiting);
  }

  /**
   * @param {number} width of the canvas, CSS px.
   * @param {number} plotHeight of the rows alone, CSS px.
   * @param {number} ratio device pixels of a CSS px.
   */
  resize(width, plotHeight, ratio) {
    const hasPipelines = this._shown?.layout.rows.some((row) => row.dpRank > 0);
    const gutter = width < 560 ? 34 : hasPipelines ? 112 : 86;
    this._size = { width, plotHeight, gutter, ratio };
    const height = plotHeight + TOP + AXIS;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  /** Where rows and time are on the canvas, CSS px. */
  get plot() {
    const { width, plotHeight, gutter } = this._size;
    return {
      left: gutter,
      top: TOP,
      width: Math.max(1, width - gutter - RIGHT),
      height: plotHeight,
    };
  }

  /**
   * @param {View} view
   * @param {Bounds} bounds
   * @returns {Projection}
   */
  projection(view, bounds) {
    return {
      start_s: view.start_s,
      end_s: view.start_s + view.span_s,
      width: this.plot.width,
      height: this.plot.height,
      firstRow: view.firstRow,
      rowHeight: rowHeight_px(view, bounds),
    };
  }

  /**
   * Where an instruction is on the canvas, CSS px, cut to the plot.
   *
   * @param {number} row
   * @param {number} position
   * @param {View} view
   * @param {Bounds} bounds
   */
  placeOf(row, position, view, bounds) {
    if (!this._shown) return null;
    const { left, top, width, height } = boxOf(
      this._shown.layout,
      row,
      position,
      this.projection(view, bounds),
    );
    const upper = Math.max(0, top);
    const lower = Math.min(this.plot.height, top + height);
    if (width <= 0 || lower <= upper) return null;
    return {
      left: left + this.plot.left,
      top: upper + this.plot.top,
      width,
      height: lower - upper,
    };
  }

  /** @param {View} view @param {Bounds} bounds */
  draw(view, bounds) {
    const { _context: context, _shown: shown, _style: style } = this;
    if (!shown || !style || this.plot.width <= 1) return;
    const to = this.projection(view, bounds);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this._drawPixels(view, to);
    context.setTransform(this._size.ratio, 0, 0, this._size.ratio, 0, 0);
    this._drawRowNames(to);
    context.translate(this.plot.left, this.plot.top);
    context.save();
    context.beginPath();
    context.rect(0, 0, to.width, to.height);
    context.clip();
    drawHatching(context, shown.layout, to, shown.scale);
    drawLabels(context, shown.layout, to, shown.scale, style.family);
    drawCriticalPath(context, shown.layout, to, { line: style.critical, halo: style.halo });
    context.restore();
    this._drawEnds(to);
    drawTimeAxis(context, to, { text: style.muted, line: style.line, family: style.family });
  }

  /** @param {View} view @param {Projection} to */
  _drawPixels(view, to) {
    const { ratio } = this._size;
    const width = Math.round(to.width * ratio);
    const height = Math.round(to.height * ratio);
    if (!this._pixels || this._pixels.width !== width || this._pixels.height !== height) {
      this._pixels = new ImageData(width, height);
    }
    const shown = /** @type {Shown} */ (this._shown);
    rasterize(
      shown.layout,
      { start_s: view.start_s, span_s: view.span_s, count: width },
      { firstRow: to.firstRow, rowHeight: to.rowHeight * ratio },
      /** @type {import("./timeline_columns.js").Palette} */ (this._palette),
      new Uint32Array(this._pixels.data.buffer),
    );
    this._context.putImageData(
      this._pixels,
      Math.round(this.plot.left * ratio),
      Math.round(this.plot.top * ratio),
    );
  }

  /** @param {Projection} to */
  _drawRowNames(to) {
    const context = this._context;
    const { layout } = /** @type {Shown} */ (this._shown);
    const style = /** @type {PaneStyle} */ (this._style);
    const every = Math.max(1, Math.ceil((ROW_NAME_FONT + 2) / to.rowHeight));
    context.font = `${ROW_NAME_FONT}px ${style.family}`;
    context.fillStyle = style.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const isNarrow = this.plot.left < 60;
    for (let row = Math.floor(to.firstRow); row < layout.rows.length; row += 1) {
      if (row % every) continue;
      const y = (row + 0.5 - to.firstRow) * to.rowHeight;
      if (y > to.height) break;
      if (y < 0) continue;
      const { name, dpRank, stage } = layout.rows[row];
      const short = name.startsWith("dp") ? `${dpRank}.${stage}` : String(stage);
      context.fillText(isNarrow ? short : name, this.plot.left - 6, y + this.plot.top);
    }
  }

  /** @param {Projection} to */
  _drawEnds(to) {
    const { own, other } = /** @type {Shown} */ (this._shown);
    const style = /** @type {PaneStyle} */ (this._style);
    const context = this._context;
    context.font = `${ROW_NAME_FONT}px ${style.family}`;
    context.textBaseline = "bottom";
    /** @type {[number, number] | null} */
    let taken = null;
    for (const [mark, isOwn] of /** @type {[EndMark, boolean][]} */ ([
      [own, true],
      [other, false],
    ])) {
      const x = across(to, mark.time_s);
      if (x < 0 || x > to.width + 1) continue;
      context.strokeStyle = isOwn ? style.text : style.muted;
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
