// The frontier as SVG layers: axes, curves, points, marks and labels.

import { fontFamily, lineThrough, make, makeSvg, setAttribute, textWidth } from "./elements.js";
import { fixed, joules, roundTicks, seconds } from "./format.js";
import { extentOf, pointSentence } from "./frontier_curve.js";
import { leaderTo, placeLabels } from "./label_layout.js";

/**
 * @import { Extent, Mark } from "./frontier_curve.js"
 * @import { ComparedPlan, JobFrontier } from "./wire_types.js"
 */

/**
 * @typedef {object} Shown
 * @property {JobFrontier} frontier
 * @property {Mark[]} marks
 * @property {boolean} canChoose points can be chosen
 */

const POINT_RADIUS = 4;
// Shapes are drawn around 0, 0.
const MARKS = {
  baseline: { shape: "M-5.5 -5.5H5.5V5.5H-5.5Z", words: "baseline" },
  envpipe: { shape: "M0 -7L6.5 5H-6.5Z", words: "EnvPipe" },
  current: { shape: "M0 -8L8 0L0 8L-8 0Z", words: "in force" },
  measured: { shape: "M0 -8L8 0L0 8L-8 0Z", words: "measured" },
};

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
    /** From the fastest plan. @type {SVGElement[]} */
    this.points = [];
  }

  /** @param {Shown} shown @param {number} width px @param {number} height px @returns {Frame} */
  draw({ frontier, marks, canChoose }, width, height) {
    const { extent, outside } = extentOf(frontier, marks);
    const frame = frameOf(width, height, extent);
    const drawn = marks.filter((mark) => !outside.includes(mark));
    setAttribute(this.element, "width", width);
    setAttribute(this.element, "height", height);
    setAttribute(this.element, "viewBox", `0 0 ${width} ${height}`);
    const room = { ...frame, top: frame.top + OUTSIDE_ROOM * outside.length };
    const named = frontierLabels(frontier, drawn, room);
    const lines = [...curves(frontier, frame), ...named.flatMap(({ leader }) => leader)];
    this._back.replaceChildren(axes(frame, frontier.baseline), ...lines);
    this._placePoints(frontier, frame, canChoose);
    this._front.replaceChildren(
      ...drawn.map((mark) => markShape(mark, frame)),
      ...named.map(({ label }) => label),
      ...outside.map((mark, index) => outsideLabel(mark, index, frame)),
    );
    return frame;
  }

  /** @param {JobFrontier} frontier @param {Frame} frame @param {boolean} canChoose */
  _placePoints({ points, baseline }, { x, y }, canChoose) {
    while (this.points.length > points.length) this.points.pop()?.remove();
    while (this.points.length < points.length) {
      const circle = makeSvg("circle", { r: POINT_RADIUS });
      const element = makeSvg("g.frontier-point", { role: "button", tabindex: -1 }, circle);
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

  /** Set the point that Tab reaches. @param {number} current */
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

  /** Mark the point whose figures are shown. @param {number | null} told */
  setTold(told) {
    this.points.forEach((element, index) => element.classList.toggle("told", index === told));
  }
}

/** @param {JobFrontier} frontier @param {Frame} frame */
function curves({ points, constant, global_clock }, { x, y, bottom }) {
  const fixedClocks = (/** @type {ComparedPlan[]} */ plans) =>
    lineThrough(plans.map((plan) => [x(plan.iteration_time_s), y(plan.energy_j)]));
  /** @type {[number, number][]} */
  const bound = points.map((point) => [x(point.deadline_s), y(point.lower_bound_j)]);
  const plans = lineThrough(points.map((point) => [x(point.iteration_time_s), y(point.energy_j)]));
  const [first, last] = [bound[0], bound[bound.length - 1]];
  const below = `${lineThrough([[first[0], bottom], ...bound, [last[0], bottom]])}Z`;
  return [
    makeSvg("path.frontier-impossible", { d: below }),
    makeSvg("path.frontier-global", { d: fixedClocks(global_clock) }),
    makeSvg("path.frontier-constant", { d: fixedClocks(constant) }),
    makeSvg("path.frontier-line", { d: plans }),
    makeSvg("path.frontier-bound", { d: lineThrough(bound) }),
  ];
}

/** @param {Mark} mark @param {Frame} frame */
function markShape({ kind, words, time_s, energy_j }, { x, y }) {
  return makeSvg(`path.frontier-mark.frontier-mark-${kind}`, {
    d: MARKS[kind].shape,
    transform: `translate(${x(time_s).toFixed(1)} ${y(energy_j).toFixed(1)})`,
    role: "img",
    "aria-label": words,
  });
}

// Height in px of the name of a mark beyond the axes.
const OUTSIDE_ROOM = 16;

/** Name a mark beyond the axes at the edge. @param {Mark} mark @param {number} index @param {Frame} frame */
function outsideLabel({ kind, label, time_s, energy_j }, index, { left, right, top, bottom, x, y }) {
  const isNarrow = right - left < ROOMY;
  const figures = `${seconds(time_s)}, ${joules(energy_j)}`;
  const words = isNarrow ? `${MARKS[kind].words}, ${figures}` : `${label}, ${figures}`;
  const name = "frontier-label";
  const at = top + OUTSIDE_ROOM * (index + 1);
  if (x(time_s) > right) return text(`${words} \u2192`, right - 6, at, "end", name);
  const away = y(energy_j) < top ? "\u2191" : y(energy_j) > bottom ? "\u2193" : "";
  return text(`${x(time_s) < left ? "\u2190" : away} ${words}`, left + 6, at, "start", name);
}

/** @typedef {ReturnType<typeof frameOf>} Frame plot area, and the place of a time and an energy */

const MARGIN = { left: 64, right: 58, top: 40, bottom: 44 };
const NARROW = { below: 420, left: 42, right: 52 };
const TICK_ROOM = { across: 64, down: 46 };

/** @param {number} width px @param {number} height px @param {Extent} extent */
function frameOf(width, height, extent) {
  const sides = width < NARROW.below ? NARROW : MARGIN;
  const [left, right] = [sides.left, width - sides.right];
  const [top, bottom] = [MARGIN.top, height - MARGIN.bottom];
  const { fastest_s, slowest_s, least_j, most_j } = extent;
  return {
    left,
    right,
    top,
    bottom,
    extent,
    x: (/** @type {number} */ time_s) =>
      left + ((time_s - fastest_s) / (slowest_s - fastest_s)) * (right - left),
    y: (/** @type {number} */ energy_j) =>
      bottom - ((energy_j - least_j) / (most_j - least_j)) * (bottom - top),
  };
}

/**
 * Create the axes: time and energy, and both in per cent against the baseline.
 * @param {Frame} frame
 * @param {ComparedPlan} baseline
 */
function axes(frame, { iteration_time_s, energy_j }) {
  const { left, right, top, bottom, x, y, extent } = frame;
  const { fastest_s, slowest_s, least_j, most_j } = extent;
  const [factor, unit] = energyUnit(most_j);
  const share = (/** @type {number} */ value, /** @type {number} */ of) => 100 * (value / of - 1);
  const numAcross = mostTicks(right - left, TICK_ROOM.across);
  const numDown = mostTicks(bottom - top, TICK_ROOM.down);
  const group = makeSvg("g.frontier-axes", { "aria-hidden": "true" });
  for (const [value, label] of ticks(fastest_s, slowest_s, numAcross)) {
    const at = x(value);
    group.append(line("frontier-grid", at, top, at, bottom), text(label, at, bottom + 16));
  }
  for (const [value, label] of ticks(least_j / factor, most_j / factor, numDown)) {
    const at = y(value * factor);
    group.append(line("frontier-grid", left, at, right, at), text(label, left - 6, at + 4, "end"));
  }
  const slowdowns = [share(fastest_s, iteration_time_s), share(slowest_s, iteration_time_s)];
  for (const [value, label] of ticks(slowdowns[0], slowdowns[1], numAcross)) {
    const at = x(iteration_time_s * (1 + value / 100));
    group.append(line("frontier-edge", at, top, at, top - 4));
    group.append(text(signed(value, label), at, top - 8));
  }
  const changes = [share(least_j, energy_j), share(most_j, energy_j)];
  for (const [value, label] of ticks(changes[0], changes[1], numDown)) {
    const at = y(energy_j * (1 + value / 100));
    group.append(line("frontier-edge", right, at, right + 4, at));
    group.append(text(signed(value, label), right + 8, at + 4, "start"));
  }
  const edges = `M${left} ${top}H${right}V${bottom}H${left}Z`;
  group.append(
    makeSvg("path.frontier-edge", { fill: "none", d: edges }),
    text("iteration time, s", (left + right) / 2, bottom + 34, "middle", "frontier-axis-name"),
    text(`energy, ${unit}`, 0, 12, "start", "frontier-axis-name"),
    text("against the baseline", right, 12, "end", "frontier-axis-name"),
  );
  return group;
}

/**
 * Return round values along an axis with their labels.
 * @param {number} low
 * @param {number} high
 * @param {number} most
 * @returns {[number, string][]}
 */
function ticks(low, high, most) {
  const { values, decimals } = roundTicks(low, high, most);
  return values.map((value) => [value, fixed(value, decimals)]);
}

/** @param {number} value @param {string} label */
function signed(value, label) {
  return `${value > 0 ? "+" : ""}${label}\u202f%`;
}

/**
 * Return the unit that `joules` gives an energy, with its size in J.
 * @param {number} energy_j
 * @returns {[number, string]}
 */
function energyUnit(energy_j) {
  const unit = joules(energy_j).split("\u202f")[1];
  const factors = /** @type {Record<string, number>} */ ({ J: 1, kJ: 1e3, MJ: 1e6, GJ: 1e9 });
  return [factors[unit] ?? 1, unit];
}

/** @param {number} length px @param {number} room px */
function mostTicks(length, room) {
  return Math.max(2, Math.floor(length / room));
}

/** @param {string} name @param {...number} ends x and y of both */
function line(name, ...ends) {
  const [x1, y1, x2, y2] = ends.map((end) => end.toFixed(1));
  return makeSvg(`line.${name}`, { x1, y1, x2, y2 });
}

/**
 * @param {string} words
 * @param {number} x
 * @param {number} y
 * @param {string} [anchor]
 * @param {string} [name] class
 */
function text(words, x, y, anchor = "middle", name = "frontier-tick") {
  const attributes = { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor };
  return makeSvg(`text.${name}`, attributes, words);
}

const LABEL_FONT = 12;
// Width in px below which names are short.
const ROOMY = 440;
const RADII = { point: 6, mark: 8 };

/**
 * Create the labels, with lines to those that are not beside their marks.
 * @param {JobFrontier} frontier
 * @param {Mark[]} marks
 * @param {Frame} frame
 */
function frontierLabels(frontier, marks, frame) {
  const places = labelPlaces(frontier, marks, frame);
  const named = places.filter(({ text }) => text !== "");
  const points = frontier.points.map((point) => ({
    x: frame.x(point.iteration_time_s),
    y: frame.y(point.energy_j),
    radius: RADII.point,
  }));
  const spots = [...points, ...places.filter(({ text }) => text === "")];
  const room = {
    x: frame.left + 2,
    y: frame.top + 2,
    width: frame.right - frame.left - 4,
    height: frame.bottom - frame.top - 4,
  };
  const placed = placeLabels(named, spots, room);
  return named.map(({ text, x, y, width, height }, index) => {
    const place = placed[index];
    const at = { x: place.x + 1, y: place.y + LABEL_FONT, "aria-hidden": "true" };
    const label = makeSvg("text.frontier-label", at, text);
    const [x1, y1, x2, y2] = leaderTo({ ...place, width, height }, x, y);
    const leader = makeSvg("line.frontier-leader", { x1, y1, x2, y2 });
    return { label, leader: place.isFar ? [leader] : [] };
  });
}

/**
 * Return the places of labels, the first nearest to its mark: what ran, the baseline, EnvPipe's
 * plans. `text` empty: a mark without a label of its own.
 * @param {JobFrontier} frontier
 * @param {Mark[]} marks
 * @param {Frame} frame
 */
function labelPlaces({ points }, marks, frame) {
  const isNarrow = frame.right - frame.left < ROOMY;
  const font = `${LABEL_FONT}px ${fontFamily()}`;
  const at = points[Math.floor(points.length * 0.55)];
  const rank = (/** @type {Mark} */ { kind }) => (kind === "envpipe" ? 1 : 0);
  const sorted = [...marks].reverse().sort((one, other) => rank(one) - rank(other));
  /** @type {{text: string, x: number, y: number, radius: number, prefers?: [number, number]}[]} */
  const named = sorted.map(({ label, short, time_s, energy_j }) => ({
    text: isNarrow ? short : label,
    x: frame.x(time_s),
    y: frame.y(energy_j),
    radius: RADII.mark,
  }));
  // Marks of a plan and its measurement that touch share a label.
  const [last, plan] = named;
  const isShared = sorted[1]?.kind === "current" && !isNarrow;
  if (isShared && Math.hypot(last.x - plan.x, last.y - plan.y) < 2 * RADII.mark) {
    last.text = `${plan.text}; ${last.text}`;
    plan.text = "";
  }
  named.push({
    text: isNarrow ? "lower bound" : "lower bound: no plan is predicted below",
    x: frame.x(at.deadline_s),
    y: frame.y(at.lower_bound_j),
    radius: 2,
    prefers: [0, 1],
  });
  const height = LABEL_FONT + 4;
  return named.map((each) => ({ ...each, height, width: textWidth(each.text, font) + 2 }));
}

/**
 * Create the entries of the legend: points, curves and the kinds of marks that are shown; the bound has a label.
 * @param {Mark[]} marks
 */
export function frontierLegend(marks) {
  const kinds = [...new Set(marks.map(({ kind }) => kind))];
  return [
    entry(makeSvg("circle.frontier-key-point", { r: 4 }), "plans"),
    entry(makeSvg("path.frontier-constant", { d: "M-9 0H9" }), "one clock per stage"),
    entry(makeSvg("path.frontier-global", { d: "M-9 0H9" }), "one for all"),
    ...kinds.map((kind) => {
      const { shape, words } = MARKS[kind];
      return entry(makeSvg(`path.frontier-mark.frontier-mark-${kind}`, { d: shape }), words);
    }),
  ];
}

/** @param {SVGElement} shape @param {string} words */
function entry(shape, words) {
  const attributes = { width: 20, height: 18, viewBox: "-10 -9 20 18", "aria-hidden": "true" };
  return make("li", makeSvg("svg", attributes, shape), words);
}
