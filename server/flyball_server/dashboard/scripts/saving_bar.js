// A saving as a small bar with its interval, so that jobs can be compared at a glance.

import { makeSvg } from "./svg_elements.js";

const WIDTH = 104;
const HEIGHT = 12;
// What the bar reaches over, per cent; a saving beyond it ends at the edge.
const LEAST = -5;
const MOST = 35;

/**
 * Hidden from screen readers: the figures stand beside it.
 * @param {import("./wire_types.js").Estimate} saving in per cent
 * @returns {Element}
 */
export function savingBar({ mean, low, high }) {
  const zero = place(0);
  const end = place(mean);
  const picture = makeSvg("svg", {
    class: mean < 0 ? "saving-bar loss" : "saving-bar",
    width: WIDTH,
    height: HEIGHT,
    "aria-hidden": "true",
  });
  picture.append(
    makeSvg("rect", { class: "bar-track", x: 0, y: 3, width: WIDTH, height: 6, rx: 1 }),
    makeSvg("rect", {
      class: "bar-value",
      x: Math.min(zero, end),
      y: 3,
      width: Math.abs(end - zero),
      height: 6,
    }),
    makeSvg("path", { class: "bar-zero", d: `M${zero} 0V${HEIGHT}` }),
  );
  if (low !== null && high !== null) {
    const [from, to] = [place(low), place(high)];
    picture.append(
      makeSvg("path", { class: "bar-interval", d: `M${from} 2V10M${to} 2V10M${from} 6H${to}` }),
    );
  }
  return picture;
}

/**
 * @param {number} percent
 * @returns {number} px from the left
 */
function place(percent) {
  const share = (Math.min(MOST, Math.max(LEAST, percent)) - LEAST) / (MOST - LEAST);
  return Math.round(10 * share * WIDTH) / 10;
}
