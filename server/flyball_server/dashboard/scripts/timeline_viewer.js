// The timeline's two panes with one view: zoom, pan, and what is read of it.

import { make, setText } from "./elements.js";
import { seconds } from "./format.js";
import { channelsOf, themeColors } from "./theme_colors.js";
import { TimelineTip, makeTimelineElements } from "./timeline_elements.js";
import { bindGestures, moveByKey } from "./timeline_gestures.js";
import { TimelineMinimap } from "./timeline_minimap.js";
import { TimelinePane } from "./timeline_pane.js";
import { TimelineReader } from "./timeline_reader.js";
import { fitted, isSameView, rowHeight_px, rowsShown, within, zoomed } from "./timeline_view.js";

/** @typedef {import("./timeline_layout.js").Layout} Layout */
/** @typedef {import("./timeline_view.js").View} View */
/** @typedef {import("./timeline_view.js").Bounds} Bounds */
/** @typedef {import("./timeline_gestures.js").Place} Place */

/**
 * What is shown: the plan in the upper pane, the baseline in the lower one.
 *
 * @typedef {object} Iterations
 * @property {Layout} plan
 * @property {Layout} baseline
 * @property {import("./clock_scale.js").ClockScale} scale
 * @property {string} planTitle
 * @property {string} baselineTitle
 */

// Two lines of text fit into a forward's box.
const READABLE_ROW_PX = 36;
const PANE_PX = { least: 56, most: 384 };
const BUTTON_ZOOM = 1.6;
// Right of the longer iteration's end some room is left for its mark.
const END_ROOM = 1.01;

export class TimelineViewer {
  /**
   * @param {(text: string) => void} announce
   * @param {() => void} onView after the view has changed.
   */
  constructor(announce, onView) {
    this._announce = announce;
    this._onView = onView;
    /** @type {Iterations | null} */
    this._iterations = null;
    /** @type {Bounds} */
    this.bounds = { end_s: 1, shortestSpan_s: 1, numRows: 1, paneHeight_px: 1, readableRow_px: 1 };
    this.view = fitted(this.bounds);
    this._frame = 0;
    this._elements = makeTimelineElements({
      zoomOut: () => this.change(zoomed(this.view, this.bounds, 1 / BUTTON_ZOOM)),
      zoomIn: () => this.change(zoomed(this.view, this.bounds, BUTTON_ZOOM)),
      showAll: () => this.change(fitted(this.bounds)),
    });
    const { surface, canvases, tools, help } = this._elements;
    this._panes = canvases.map((canvas) => new TimelinePane(canvas));
    this._tip = new TimelineTip(surface);
    this._reader = new TimelineReader();
    this._minimap = new TimelineMinimap(
      (view) => this.change(view),
      () => this.view,
    );
    this.tools = tools;
    this.element = make("div", { class: "timeline-viewer" }, surface, this._minimap.element, help);
    this._letGo = this._listen(surface);
  }

  /** @param {HTMLElement} surface */
  _listen(surface) {
    /** @type {import("./timeline_gestures.js").Surface} */
    const gestures = {
      view: () => this.view,
      bounds: () => this.bounds,
      change: (view) => this.change(view),
      placeAt: (x, y) => this._placeAt(x, y),
      point: (place) => this._point(place),
      pick: (place) => this._pick(place),
    };
    const letGo = bindGestures(surface, gestures);
    surface.addEventListener("keydown", (event) => {
      if (this._readByKey(event) || moveByKey(event, gestures)) event.preventDefault();
    });
    surface.addEventListener("blur", () => this._read(null));
    const observer = new ResizeObserver(() => this._resize());
    observer.observe(this.element);
    const onTheme = () => this._restyle();
    document.addEventListener("themechange", onTheme);
    return () => {
      letGo();
      observer.disconnect();
      document.removeEventListener("themechange", onTheme);
      cancelAnimationFrame(this._frame);
    };
  }

  destroy() {
    this._letGo();
    this._minimap.destroy();
  }

  /** @param {Iterations} iterations */
  show(iterations) {
    const before = this.bounds;
    this._iterations = iterations;
    this.bounds = boundsOf(iterations);
    // Another version of the same job is looked at where the last one was.
    const isAlike =
      before.numRows === this.bounds.numRows &&
      Math.abs(before.end_s / this.bounds.end_s - 1) < 0.5;
    this.view = isAlike ? within(this.view, this.bounds) : fitted(this.bounds);
    this._reader.show([iterations.plan, iterations.baseline]);
    this._tip.hide();
    const { titles, surface } = this._elements;
    setText(titles[0], iterations.planTitle);
    setText(titles[1], iterations.baselineTitle);
    surface.setAttribute("aria-label", `${iterations.planTitle}. ${iterations.baselineTitle}`);
    this._restyle();
    this._resize();
  }

  /** @param {View} view */
  change(view) {
    if (!this._iterations || isSameView(view, this.view)) return;
    this.view = view;
    this._schedule();
    this._onView();
  }

  /** Rows that are seen: the first, and the one after the last. @returns {[number, number]} */
  visibleRows() {
    const first = Math.floor(this.view.firstRow + 1e-6);
    const last = Math.ceil(this.view.firstRow + rowsShown(this.view, this.bounds) - 1e-6);
    return [first, Math.min(this.bounds.numRows, last)];
  }

  _resize() {
    const width = this.element.clientWidth;
    if (!this._iterations || !width) return;
    const ratio = window.devicePixelRatio || 1;
    for (const pane of this._panes) pane.resize(width, this.bounds.paneHeight_px, ratio);
    this._minimap.resize(this._panes[0].plot.left, this._panes[0].plot.width);
    this._draw();
    this._onView();
  }

  _restyle() {
    if (!this._iterations) return;
    const { plan, baseline, scale } = this._iterations;
    const style = paneStyle(this.element);
    const ends = [
      { time_s: plan.iterationTime_s, words: `plan ends, ${seconds(plan.iterationTime_s)}` },
      {
        time_s: baseline.iterationTime_s,
        words: `baseline ends, ${seconds(baseline.iterationTime_s)}`,
      },
    ];
    this._panes[0].show({ layout: plan, scale, own: ends[0], other: ends[1] }, style);
    this._panes[1].show({ layout: baseline, scale, own: ends[1], other: ends[0] }, style);
    this._minimap.show(plan, scale, style.waiting, this.bounds);
    this._schedule();
  }

  _schedule() {
    this._frame ||= requestAnimationFrame(() => this._draw());
  }

  _draw() {
    cancelAnimationFrame(this._frame);
    this._frame = 0;
    for (const pane of this._panes) pane.draw(this.view, this.bounds);
    this._minimap.draw(this.view, this.bounds);
    this._placeTip();
  }

  /** @param {number} x @param {number} y @returns {Place} */
  _placeAt(x, y) {
    const boxes = this._panes.map(({ canvas }) => canvas.getBoundingClientRect());
    const pane = y < boxes[1].top ? 0 : 1;
    const { left, top, width, height } = this._panes[pane].plot;
    return {
      across: (x - boxes[pane].left - left) / width,
      down: (y - boxes[pane].top - top) / height,
      width,
      height,
      pane,
    };
  }

  /** @param {Place | null} place */
  _point(place) {
    if (!this._reader.isReading) this._read(place);
  }

  /** @param {Place} place */
  _pick(place) {
    this._read(place);
    if (this._reader.spot) this._announce(this._reader.words().join(". "));
  }

  /** @param {Place | null} place */
  _read(place) {
    this._reader.stop();
    this._reader.pointAt(place && this._spotAt(place));
    this._placeTip();
  }

  /** @param {Place} place */
  _spotAt({ across, down, pane }) {
    if (across < 0 || across > 1 || down < 0 || down > 1) return null;
    const row = Math.floor(this.view.firstRow + down * rowsShown(this.view, this.bounds));
    return { pane, row, time_s: this.view.start_s + across * this.view.span_s };
  }

  /** @param {KeyboardEvent} event */
  _readByKey(event) {
    const before = this._reader.spot;
    if (!this._iterations || !this._reader.onKey(event, this.view, this.visibleRows()))
      return false;
    this.change(this._reader.viewFor(this.view, this.bounds));
    this._placeTip();
    if (this._reader.isReading && this._reader.spot !== before) {
      this._announce(this._reader.words().join(". "));
      this._showPane(this._reader.spot?.pane ?? 0);
    }
    return true;
  }

  /** @param {number} pane */
  _showPane(pane) {
    this._panes[pane].canvas.scrollIntoView({ block: "nearest" });
  }

  _placeTip() {
    const { spot } = this._reader;
    const pane = spot && this._panes[spot.pane];
    const place =
      pane && this._placeOf(/** @type {import("./timeline_reader.js").Spot} */ (spot), pane);
    if (!spot || !place) {
      this._tip.hide();
      return;
    }
    const top = place.top + pane.canvas.offsetTop;
    this._tip.show(this._reader.words(), { ...place, top }, spot.position >= 0);
  }

  /**
   * Of an instruction its box, of a wait the row at that time; null: it is not in view.
   *
   * @param {import("./timeline_reader.js").Spot} spot
   * @param {TimelinePane} pane
   */
  _placeOf(spot, pane) {
    if (spot.position >= 0) return pane.placeOf(spot.row, spot.position, this.view, this.bounds);
    const height = rowHeight_px(this.view, this.bounds);
    const left = ((spot.time_s - this.view.start_s) / this.view.span_s) * pane.plot.width;
    const top = (spot.row - this.view.firstRow) * height;
    return { left: left + pane.plot.left, top: Math.max(0, top) + pane.plot.top, width: 0, height };
  }
}

/**
 * @param {Iterations} iterations
 * @returns {Bounds}
 */
function boundsOf({ plan, baseline }) {
  const numRows = Math.max(1, plan.rows.length);
  const end_s = END_ROOM * Math.max(plan.iterationTime_s, baseline.iterationTime_s, 1e-9);
  return {
    end_s,
    shortestSpan_s: Math.min(end_s, 3 * Math.max(plan.shortest_s, 1e-6 * end_s)),
    numRows,
    paneHeight_px: Math.max(PANE_PX.least, Math.min(PANE_PX.most, numRows * READABLE_ROW_PX)),
    readableRow_px: READABLE_ROW_PX,
  };
}

/**
 * @param {HTMLElement} element
 * @returns {import("./timeline_pane.js").PaneStyle}
 */
function paneStyle(element) {
  const colors = themeColors("surface", "surface-2", "text", "text-muted", "border", "critical");
  return {
    waiting: channelsOf(colors["surface-2"]),
    text: colors.text,
    muted: colors["text-muted"],
    line: colors.border,
    critical: colors.critical,
    halo: colors.surface,
    family: getComputedStyle(element).fontFamily || "sans-serif",
  };
}
