// What the timeline's colours, heights, hatchings and lines mean.

import { make, setChildren } from "./elements.js";
import { megahertz } from "./format.js";
import { kindWords } from "./timeline_words.js";

const NUM_STOPS = 24;

/**
 * @param {HTMLElement} element
 * @param {import("./timeline_viewer.js").Iterations} iterations
 */
export function showLegend(element, { plan, scale }) {
  const isData = plan.rows.some((row) => row.dpRank > 0);
  const kinds = kindWords(plan).map(({ kind, words }) =>
    entry(`timeline-key timeline-key-${kind}`, words),
  );
  const chunks =
    plan.numChunks > 1 ? make("li", {}, "F3.1 is of chunk 1; later chunks stand higher") : null;
  const path = isData ? "each pipeline's longest path" : "critical path";
  setChildren(
    element,
    clockBar(scale),
    make(
      "ul",
      { class: "timeline-keys" },
      ...kinds,
      chunks,
      entry("timeline-key timeline-key-critical", path),
      entry("timeline-key timeline-key-waiting", "waiting"),
    ),
  );
}

/**
 * @param {string} classes
 * @param {string} words
 */
function entry(classes, words) {
  return make("li", {}, make("span", { class: classes, "aria-hidden": "true" }), words);
}

/** @param {import("./clock_scale.js").ClockScale} scale */
function clockBar(scale) {
  const { slowest_mhz, fastest_mhz, color } = scale;
  const bar = make("span", { class: "timeline-clock-bar", "aria-hidden": "true" });
  const stops = Array.from({ length: NUM_STOPS }, (_, index) =>
    color(slowest_mhz + (index / (NUM_STOPS - 1)) * (fastest_mhz - slowest_mhz)),
  );
  bar.style.setProperty("background-image", `linear-gradient(to right, ${stops.join(", ")})`);
  return make(
    "p",
    { class: "timeline-clocks" },
    "Planned SM clock ",
    make("span", {}, megahertz(slowest_mhz)),
    bar,
    make("span", {}, megahertz(fastest_mhz)),
  );
}
