// The timeline: two panes, minimap, tooltip and their view, moved by pointer and keys.

import { make, placeTip, setChildren, setText, watchLooks } from "./elements.js";
import { seconds } from "./format.js";
import { TimelineMinimap } from "./timeline_pane.js";
import { paneStyle, TimelinePane } from "./timeline_pane.js";
import { TimelineReader } from "./timeline_reader.js";
import {
  bindGestures,
  fitted,
  isSameView,
  moveByKey,
  rowsShown,
  within,
  zoomed,
} from "./timeline_view.js";

/**
 * @import { ClockScale } from "./clock_scale.js"
 * @import { Layout } from "./timeline_layout.js"
 * @import { Box } from "./timeline_marks.js"
 * @import { Spot } from "./timeline_reader.js"
 * @import { Bounds, Place, Surface, View } from "./timeline_view.js"
 */

/**
 * Iterations that are shown: the plan in the upper pane, the baseline in the lower one.
 * @typedef {object} Iterations
 * @property {Layout} plan
 * @property {Layout} baseline
 * @property {ClockScale} scale
 * @property {string} planTitle
 * @property {string} baselineTitle
 */

// Two lines of text fit into a forward's box.
const READABLE_ROW_PX = 36;
const PANE_PX = { least: 56, most: 384 };
const BUTTON_ZOOM = 1.6;
// Room right of the longer iteration's end, for its mark.
const END_ROOM = 1.01;

const HELP_ID = "timeline-help";
const HELP =
  "Wheel, pinch, + and \u2212 zoom; dragging and arrow keys pan; 0 shows all. Enter reads boxes:" +
  " then arrow keys go from box to box, and Escape ends it.";

export class TimelineViewer {
  /**
   * @param {(text: string) => void} announce
   * @param {() => void} onView gets called after a change of the view
   */
  constructor(announce, onView) {
    this._announce = announce;
    this._onView = onView;
    /** @type {Iterations | null} */
    this._iterations = null;
    const bounds = { end_s: 1, shortestSpan_s: 1, numRows: 1, paneHeight_px: 1, readableRow_px: 1 };
    this.view = fitted(bounds);
    this._frame = 0;
    this.tools = make(
      "div.timeline-tools",
      { role: "group", "aria-label": "Zoom" },
      this._button("\u2212", (view) => zoomed(view, 1 / BUTTON_ZOOM), "Zoom out"),
      this._button("+", (view) => zoomed(view, BUTTON_ZOOM), "Zoom in"),
      this._button("Show all", (view) => fitted(view.bounds)),
    );
    this._titles = [0, 1].map(() => make("h3.timeline-title"));
    this._panes = this._titles.map(() => new TimelinePane(make("canvas")));
    const role = { role: "application", "aria-roledescription": "timeline" };
    this._surface = make(
      "div.timeline-surface",
      { tabindex: 0, ...role, "aria-describedby": HELP_ID },
      ...this._panes.flatMap(({ canvas }, pane) => [this._titles[pane], canvas]),
    );
    this._tip = new TimelineTip(this._surface);
    this._reader = new TimelineReader();
    this._minimap = new TimelineMinimap((view) => this.change(view), () => this.view);
    const help = make("p.timeline-help", { id: HELP_ID }, HELP);
    this.element = make("div.timeline-viewer", this._surface, this._minimap.element, help);
    this._letGo = this._listen(this._surface);
  }

  /** @param {string} text @param {(view: View) => View} move @param {string} [label] */
  _button(text, move, label) {
    const onclick = () => this.change(move(this.view));
    return make("button", { onclick, "aria-label": label }, text);
  }

  /** @param {HTMLElement} surface */
  _listen(surface) {
    /** @type {Surface} */
    const gestures = {
      view: () => this.view,
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
    const unwatch = watchLooks(this.element, {
      onResize: () => this._resize(),
      onTheme: () => this._restyle(),
    });
    return () => {
      letGo();
      unwatch();
      cancelAnimationFrame(this._frame);
    };
  }

  get canvases() {
    return this._panes.map(({ canvas }) => canvas);
  }

  destroy() {
    this._letGo();
  }

  /** @param {Iterations} iterations */
  show(iterations) {
    const { bounds: before } = this.view;
    const { planTitle, baselineTitle } = iterations;
    const bounds = boundsOf(iterations);
    // The view stays where it was for another version of the same job.
    const isAlike =
      this._iterations !== null &&
      before.numRows === bounds.numRows && Math.abs(before.end_s / bounds.end_s - 1) < 0.5;
    this._iterations = iterations;
    this.view = isAlike ? within({ ...this.view, bounds }) : fitted(bounds);
    this._reader.show([iterations.plan, iterations.baseline]);
    this._tip.hide();
    setText(this._titles[0], planTitle);
    setText(this._titles[1], baselineTitle);
    this._surface.setAttribute("aria-label", `${planTitle}. ${baselineTitle}`);
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

  /** Return the first visible row, and the one after the last. @returns {[number, number]} */
  visibleRows() {
    const { firstRow, bounds } = this.view;
    const last = Math.ceil(firstRow + rowsShown(this.view) - 1e-6);
    return [Math.floor(firstRow + 1e-6), Math.min(bounds.numRows, last)];
  }

  _resize() {
    const width = this.element.clientWidth;
    if (!this._iterations || !width) return;
    for (const pane of this._panes) pane.resize(width, this.view.bounds.paneHeight_px);
    this._minimap.resize(this._panes[0].plot.left, this._panes[0].plot.width);
    this._draw();
    this._onView();
  }

  _restyle() {
    if (!this._iterations) return;
    const { plan, baseline, scale } = this._iterations;
    const style = paneStyle();
    const planEnd = endMark("plan", plan);
    const baselineEnd = endMark("baseline", baseline);
    this._panes[0].show({ layout: plan, scale, own: planEnd, other: baselineEnd }, style);
    this._panes[1].show({ layout: baseline, scale, own: baselineEnd, other: planEnd }, style);
    this._minimap.show(plan, scale, style.waiting, this.view.bounds.end_s);
    this._schedule();
  }

  _schedule() {
    this._frame ||= requestAnimationFrame(() => this._draw());
  }

  _draw() {
    cancelAnimationFrame(this._frame);
    this._frame = 0;
    for (const pane of this._panes) pane.draw(this.view);
    this._minimap.draw(this.view);
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
    const row = Math.floor(this.view.firstRow + down * rowsShown(this.view));
    return { pane, row, time_s: this.view.start_s + across * this.view.span_s };
  }

  /** @param {KeyboardEvent} event */
  _readByKey(event) {
    const before = this._reader.spot;
    if (!this._iterations || !this._reader.onKey(event, this.view, this.visibleRows()))
      return false;
    this.change(this._reader.viewFor(this.view));
    this._placeTip();
    if (this._reader.isReading && this._reader.spot !== before) {
      this._announce(this._reader.words().join(". "));
      this._panes[this._reader.spot?.pane ?? 0].canvas.scrollIntoView({ block: "nearest" });
    }
    return true;
  }

  _placeTip() {
    const { spot } = this._reader;
    const place = spot && this._placeOf(spot, this._panes[spot.pane]);
    if (place) this._tip.show(this._reader.words(), place, spot.position >= 0);
    else this._tip.hide();
  }

  /**
   * Return the place of a spot in the surface: of a wait, its row at that time; null: not in view.
   * @param {Spot} spot
   * @param {TimelinePane} pane
   */
  _placeOf({ row, position, time_s }, pane) {
    const to = pane.projection(this.view);
    const { left, top } = pane.plot;
    const place =
      position >= 0
        ? pane.placeOf(row, position, this.view)
        : {
            left: left + to.x(time_s),
            top: top + Math.max(0, to.y(row)),
            width: 0,
            height: to.rowHeight,
          };
    return place && { ...place, top: place.top + pane.canvas.offsetTop };
  }
}

/** @param {Iterations} iterations @returns {Bounds} */
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

/** @param {string} name @param {Layout} layout */
function endMark(name, { iterationTime_s: time_s }) {
  return { time_s, words: `${name} ends, ${seconds(time_s)}` };
}

/** Frame around a box, and its figures beside it. */
class TimelineTip {
  /** @param {HTMLElement} surface */
  constructor(surface) {
    this._frame = make("div.timeline-frame", { hidden: true });
    // Hidden from assistive technology: the same words are announced.
    this._words = make("div.timeline-tip", { hidden: true, "aria-hidden": "true" });
    surface.append(this._frame, this._words);
  }

  hide() {
    this._frame.hidden = true;
    this._words.hidden = true;
  }

  /** @param {string[]} lines @param {Box} place @param {boolean} isFramed */
  show(lines, place, isFramed) {
    this._frame.hidden = !isFramed;
    this._words.hidden = false;
    if (isFramed) {
      for (const [side, px] of Object.entries(place))
        this._frame.style.setProperty(side, `${px}px`);
    }
    if (this._words.textContent !== lines.join("")) {
      setChildren(this._words, ...lines.map((line) => make("div", line)));
    }
    placeTip(this._words, place, 6);
  }
}
