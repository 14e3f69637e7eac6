// The frontier's picture in layers: what is drawn anew leaves the points, and with them the focus.

import { setAttribute } from "./elements.js";
import { axes, frameOf } from "./frontier_axes.js";
import { extentOf, pointSentence } from "./frontier_curve.js";
import { frontierLabels } from "./frontier_labels.js";
import { MARK_SHAPES } from "./frontier_legend.js";
import { lineThrough, makeSvg } from "./svg_elements.js";

/** @typedef {import("./wire_types.js").FrontierView} FrontierView */
/** @typedef {import("./wire_types.js").FrontierPointView} FrontierPoint */
/** @typedef {import("./frontier_curve.js").Mark} Mark */
/** @typedef {import("./frontier_axes.js").Frame} Frame */

/**
 * @typedef {object} Shown
 * @property {FrontierView} frontier
 * @property {Mark[]} marks
 * @property {boolean} canChoose whether a point may be chosen.
 */

const POINT_RADIUS = 4;

export class FrontierPicture {
  constructor() {
    this._back = makeSvg("g", { "aria-hidden": "true" });
    this._pointLayer = makeSvg("g", {
      role: "group",
      "aria-label": "Plans on the frontier, from the fastest to the cheapest",
    });
    this._front = makeSvg("g");
    this.element = makeSvg(
      "svg",
      { role: "group", "aria-label": "Iteration time against energy" },
      this._back,
      this._pointLayer,
      this._front,
    );
    /** Of the points, from the fastest. @type {SVGElement[]} */
    this.points = [];
  }

  /**
   * @param {Shown} shown
   * @param {number} width px
   * @param {number} height px
   * @returns {Frame}
   */
  draw({ frontier, marks, canChoose }, width, height) {
    const { extent, outside } = extentOf(frontier, marks);
    const frame = frameOf(width, height, extent);
    const drawn = marks.filter((mark) => !outside.includes(mark));
    for (const [name, value] of Object.entries({
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
    })) {
      setAttribute(this.element, name, value);
    }
    this._back.replaceChildren(axes(frame, frontier.baseline), ...curves(frontier, frame));
    this._placePoints(frontier, frame, canChoose);
    this._front.replaceChildren(
      ...drawn.map((mark) => markShape(mark, frame)),
      ...frontierLabels(frontier, drawn, frame),
    );
    return frame;
  }

  /**
   * @param {FrontierView} frontier
   * @param {Frame} frame
   * @param {boolean} canChoose
   */
  _placePoints({ points, baseline }, { x, y }, canChoose) {
    while (this.points.length > points.length) this.points.pop()?.remove();
    while (this.points.length < points.length) {
      const circle = makeSvg("circle", { r: POINT_RADIUS });
      const element = makeSvg(
        "g",
        { class: "frontier-point", role: "button", tabindex: -1 },
        circle,
      );
      this._pointLayer.append(element);
      this.points.push(element);
    }
    points.forEach((point, index) => {
      const element = this.points[index];
      const words = `Plan ${index + 1} of ${points.length}: ${pointSentence(point, baseline)}`;
      setAttribute(element, "aria-label", words);
      setAttribute(element, "aria-disabled", canChoose ? null : "true");
      const circle = /** @type {Element} */ (element.firstElementChild);
      setAttribute(circle, "cx", x(point.iteration_time_s).toFixed(1));
      setAttribute(circle, "cy", y(point.energy_j).toFixed(1));
    });
  }

  /** The one point that Tab reaches. @param {number} current */
  setCurrent(current) {
    this.points.forEach((element, index) =>
      setAttribute(element, "tabindex", index === current ? 0 : -1),
    );
  }

  /** @param {number | null} chosen */
  setChosen(chosen) {
    this.points.forEach((element, index) => {
      element.classList.toggle("chosen", index === chosen);
      setAttribute(element, "aria-pressed", String(index === chosen));
    });
  }

  /** The point whose figures are told. @param {number | null} told */
  setTold(told) {
    this.points.forEach((element, index) => element.classList.toggle("told", index === told));
  }
}

/** @param {FrontierView} frontier @param {Frame} frame */
function curves({ points }, { x, y, bottom }) {
  /** @type {[number, number][]} */
  const bound = points.map((point) => [x(point.deadline_s), y(point.lower_bound_j)]);
  const plans = lineThrough(points.map((point) => [x(point.iteration_time_s), y(point.energy_j)]));
  const [first, last] = [bound[0], bound[bound.length - 1]];
  const below = `${lineThrough([[first[0], bottom], ...bound, [last[0], bottom]])}Z`;
  return [
    makeSvg("path", { class: "frontier-impossible", d: below }),
    makeSvg("path", { class: "frontier-line", d: plans }),
    makeSvg("path", { class: "frontier-bound", d: lineThrough(bound) }),
  ];
}

/** @param {Mark} mark @param {Frame} frame */
function markShape({ kind, words, time_s, energy_j }, { x, y }) {
  return makeSvg("path", {
    class: `frontier-mark frontier-mark-${kind}`,
    d: MARK_SHAPES[kind],
    transform: `translate(${x(time_s).toFixed(1)} ${y(energy_j).toFixed(1)})`,
    role: "img",
    "aria-label": words,
  });
}
