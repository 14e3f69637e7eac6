// What the shapes and lines of the frontier's chart mean, and the shapes themselves.

import { make, setChildren } from "./elements.js";
import { makeSvg } from "./svg_elements.js";

/** Shapes of marks around 0, 0. */
export const MARK_SHAPES = {
  baseline: "M-5.5 -5.5H5.5V5.5H-5.5Z",
  envpipe: "M0 -7L6.5 5H-6.5Z",
  current: "M0 -8L8 0L0 8L-8 0Z",
  measured: "M0 -8L8 0L0 8L-8 0Z",
};

const WORDS = {
  baseline: "baseline, predicted",
  envpipe: "EnvPipe's plans, predicted",
  current: "the job's plan, predicted",
  measured: "the job, measured",
};

/**
 * @param {HTMLElement} element
 * @param {import("./frontier_curve.js").Mark[]} marks
 * @param {boolean} emulated
 */
export function showFrontierLegend(element, marks, emulated) {
  const kinds = [...new Set(marks.map(({ kind }) => kind))];
  setChildren(
    element,
    entry(
      makeSvg("circle", { class: "frontier-key-point", r: 4 }),
      "plan on the frontier, predicted",
    ),
    entry(makeSvg("path", { class: "frontier-bound", d: "M-9 0H9" }), "lower bound, certified"),
    ...kinds.map((kind) => {
      const shape = makeSvg("path", {
        class: `frontier-mark frontier-mark-${kind}`,
        d: MARK_SHAPES[kind],
      });
      return entry(
        shape,
        WORDS[kind] + (kind === "measured" && emulated ? " on emulated GPUs" : ""),
      );
    }),
  );
}

/** @param {SVGElement} shape @param {string} words */
function entry(shape, words) {
  return make(
    "li",
    {},
    makeSvg(
      "svg",
      { width: 20, height: 18, viewBox: "-10 -9 20 18", "aria-hidden": "true" },
      shape,
    ),
    words,
  );
}
