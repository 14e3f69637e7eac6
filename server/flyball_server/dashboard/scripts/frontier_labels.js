// The names beside the marks of the frontier's chart, and the bound's.

import { leaderTo, placeLabels } from "./label_layout.js";
import { makeSvg, textWidth } from "./svg_elements.js";

/** @typedef {import("./wire_types.js").FrontierView} FrontierView */
/** @typedef {import("./frontier_curve.js").Mark} Mark */
/** @typedef {import("./frontier_axes.js").Frame} Frame */

const LABEL_FONT = 12;
// px across; below, names are short.
const ROOMY = 440;
const RADII = { point: 6, mark: 8 };

/**
 * The texts, and lines to those that are not beside their marks.
 *
 * @param {FrontierView} frontier
 * @param {Mark[]} marks
 * @param {Frame} frame
 */
export function frontierLabels(frontier, marks, frame) {
  const named = namedPlaces(frontier, marks, frame);
  const spots = frontier.points.map((point) => ({
    x: frame.x(point.iteration_time_s),
    y: frame.y(point.energy_j),
    radius: RADII.point,
  }));
  const room = {
    x: frame.left + 2,
    y: frame.top + 2,
    width: frame.right - frame.left - 4,
    height: frame.bottom - frame.top - 4,
  };
  const placed = placeLabels(named, spots, room);
  return named.flatMap(({ text, x, y, width, height }, index) => {
    const place = placed[index];
    const at = {
      class: "frontier-label",
      x: place.x + 1,
      y: place.y + LABEL_FONT,
      "aria-hidden": "true",
    };
    if (!place.isFar) return [makeSvg("text", at, text)];
    const [x1, y1, x2, y2] = leaderTo({ ...place, width, height }, x, y);
    return [
      makeSvg("line", { class: "frontier-leader", x1, y1, x2, y2 }),
      makeSvg("text", at, text),
    ];
  });
}

/**
 * What gets a name, the plan in force and the measured one first: they lie nearest to the points.
 *
 * @param {FrontierView} frontier
 * @param {Mark[]} marks
 * @param {Frame} frame
 */
function namedPlaces({ points }, marks, frame) {
  const isNarrow = frame.right - frame.left < ROOMY;
  const font = `${LABEL_FONT}px ${getComputedStyle(document.body).fontFamily}`;
  const at = points[Math.floor(points.length * 0.55)];
  /** @type {{text: string, x: number, y: number, radius: number, prefers?: [number, number]}[]} */
  const named = [...marks].reverse().map(({ label, short, time_s, energy_j }) => ({
    text: isNarrow ? short : label,
    x: frame.x(time_s),
    y: frame.y(energy_j),
    radius: RADII.mark,
  }));
  const bound = isNarrow ? "lower bound" : "lower bound: no plan is below";
  named.push({
    text: bound,
    x: frame.x(at.deadline_s),
    y: frame.y(at.lower_bound_j),
    radius: 2,
    prefers: [0, 1],
  });
  return named
    .filter(({ text }) => text !== "")
    .map((each) => ({ ...each, width: textWidth(each.text, font) + 2, height: LABEL_FONT + 4 }));
}
