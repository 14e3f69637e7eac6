// A job's figures: what was saved, and time, energy and power against the baseline.

import { make, setAttribute, setChildren, setText } from "./elements.js";
import { counted, interval, joules, percent, percentAbove, seconds, watts } from "./format.js";
import { clocksText, isOnPlan } from "./job_words.js";

/**
 * @typedef {import("./wire_types.js").JobOverview} JobOverview
 * @typedef {{name: string, measured: string[], predicted: string[]}} FigureRow
 */

/**
 * @param {HTMLElement} element
 * @returns {import("./job_page.js").Panel}
 */
export function createFiguresPanel(element) {
  const heroes = make("div", { class: "heroes" });
  const head = make("tr");
  const kinds = make("tr");
  const body = make("tbody");
  const table = make(
    "table",
    { class: "figures" },
    make("caption", {}, ""),
    make("thead", {}, head, kinds),
    body,
  );
  const frame = make(
    "div",
    { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Figures of an iteration" },
    table,
  );
  setChildren(element, make("h2", { class: "visually-hidden" }, "Figures"), heroes, frame);
  let shown = "";
  return {
    update({ overview }) {
      const told = JSON.stringify(overview);
      if (told === shown) return;
      shown = told;
      const gpus = overview.emulated ? "emulated GPUs" : "GPUs";
      setText(
        /** @type {HTMLElement} */ (table.querySelector("caption")),
        captionOf(overview, gpus),
      );
      setChildren(heroes, ...heroFigures(overview));
      showHead(head, kinds, overview);
      setChildren(body, ...figureRows(overview).map(rowElement));
    },
    destroy() {},
  };
}

/**
 * @param {JobOverview} job
 * @param {string} gpus
 * @returns {string}
 */
function captionOf(job, gpus) {
  const { measured } = job;
  if (measured === null) return "One iteration; no complete step has been measured yet";
  const steps = `${counted(measured.num_steps, "step")} (${measured.first_step} to ${measured.last_step})`;
  return `One iteration; measured: mean of ${steps} on ${gpus}`;
}

/**
 * @param {JobOverview} job
 * @returns {HTMLElement[]}
 */
function heroFigures(job) {
  const { saving_percent: saving, saved_j: saved, predicted } = job;
  const gap = predicted?.gap_percent ?? null;
  const bySaving =
    saving === null
      ? hero(
          "Saving, predicted",
          predicted === null ? "\u2013" : percent(predicted.saving_percent),
          "no measured baseline yet",
          "predicted",
        )
      : hero(
          "Saving, measured",
          percent(saving.mean),
          intervalNote(saving, (value) => percent(value)),
          saving.mean < 0 ? "loss" : "gain",
        );
  return [
    bySaving,
    hero(
      "Energy saved, measured",
      saved === null ? "\u2013" : joules(saved.mean),
      saved === null ? "needs a measured baseline" : intervalNote(saved, joules),
      saved === null ? "" : saved.mean < 0 ? "loss" : "gain",
    ),
    hero(
      "Gap, predicted",
      gap === null ? "\u2013" : percent(gap, { digits: 2 }),
      "above the least energy that any plan could have",
    ),
  ];
}

/**
 * @param {import("./wire_types.js").Estimate} estimate
 * @param {(value: number) => string} format
 * @returns {string}
 */
function intervalNote(estimate, format) {
  const bounds = interval(estimate, format);
  const steps = counted(estimate.num_steps, "step");
  return bounds === "" ? `${steps}: too few for an interval` : `${bounds} (95\u202f%, ${steps})`;
}

/**
 * @param {string} name
 * @param {string} figure
 * @param {string} note
 * @param {string} [kind]
 * @returns {HTMLElement}
 */
function hero(name, figure, note, kind = "") {
  return make(
    "div",
    { class: `hero ${kind}` },
    make("span", { class: "hero-name" }, name),
    make("span", { class: "figure hero-figure" }, figure),
    make("span", { class: "note" }, note),
  );
}

/**
 * @param {HTMLElement} head
 * @param {HTMLElement} kinds
 * @param {JobOverview} job
 */
function showHead(head, kinds, job) {
  const { measured } = job;
  const groups = [
    ["", 1],
    [measured === null ? "On the plan" : `Newest steps, ${nowText(measured)}`, 2],
    ["Baseline, all at the highest clocks", 2],
    ["Change", 2],
  ];
  setChildren(
    head,
    ...groups.map(([text, span]) => {
      const cell = make(
        text === "" ? "td" : "th",
        text === "" ? {} : { scope: "colgroup" },
        String(text),
      );
      setAttribute(cell, "colspan", Number(span) === 1 ? null : span);
      return cell;
    }),
  );
  const pair = ["measured", "predicted"];
  setChildren(
    kinds,
    make("td"),
    ...[...pair, ...pair, ...pair].map((kind) =>
      make("th", { scope: "col", class: `kind ${kind}` }, kind),
    ),
  );
}

/**
 * @param {import("./wire_types.js").MeasuredIteration} measured
 * @returns {string}
 */
function nowText({ clocks, version }) {
  return version !== null && clocks === "plan" ? `on the plan v${version}` : clocksText(clocks);
}

/**
 * @param {JobOverview} job
 * @returns {FigureRow[]} each with now, baseline, change
 */
export function figureRows(job) {
  const { measured, predicted } = job;
  const time_s = measured?.iteration_time_s ?? null;
  const energy_j = measured?.energy_j ?? null;
  const baseTime_s = job.measured_baseline_time_s?.mean ?? null;
  const baseEnergy_j = job.measured_baseline_energy_j?.mean ?? null;
  const isPlans = isOnPlan(job);
  const slower = isPlans ? (job.slowdown_percent?.mean ?? null) : null;
  const saved = isPlans ? (job.saving_percent?.mean ?? null) : null;
  const signed = (/** @type {number | null} */ value) => percent(value, { signed: true });
  const planned =
    predicted === null
      ? null
      : {
          power_w: predicted.energy_j / predicted.iteration_time_s,
          base_w: predicted.baseline_energy_j / predicted.baseline_iteration_time_s,
        };
  const power_w = ratio(energy_j, time_s);
  const base_w = ratio(baseEnergy_j, baseTime_s);
  return [
    {
      name: "Iteration time",
      measured: [seconds(time_s), seconds(baseTime_s), signed(slower)],
      predicted:
        predicted === null
          ? none()
          : [
              seconds(predicted.iteration_time_s),
              seconds(predicted.baseline_iteration_time_s),
              signed(percentAbove(predicted.iteration_time_s, predicted.baseline_iteration_time_s)),
            ],
    },
    {
      name: "Energy",
      measured: [joules(energy_j), joules(baseEnergy_j), signed(saved === null ? null : -saved)],
      predicted:
        predicted === null
          ? none()
          : [
              joules(predicted.energy_j),
              joules(predicted.baseline_energy_j),
              signed(-predicted.saving_percent),
            ],
    },
    {
      name: "Mean power",
      measured: [
        watts(power_w),
        watts(base_w),
        signed(
          power_w === null || base_w === null || !isPlans ? null : percentAbove(power_w, base_w),
        ),
      ],
      predicted:
        planned === null
          ? none()
          : [
              watts(planned.power_w),
              watts(planned.base_w),
              signed(percentAbove(planned.power_w, planned.base_w)),
            ],
    },
  ];
}

/**
 * @param {FigureRow} row
 * @returns {HTMLElement}
 */
function rowElement({ name, measured, predicted }) {
  const cells = measured.flatMap((text, index) => [
    make("td", { class: "measured" }, text),
    make("td", { class: "predicted" }, predicted[index]),
  ]);
  return make("tr", {}, make("th", { scope: "row" }, name), ...cells);
}

/**
 * @param {number | null} energy_j
 * @param {number | null} time_s
 * @returns {number | null} W
 */
function ratio(energy_j, time_s) {
  return energy_j === null || time_s === null ? null : energy_j / time_s;
}

/** @returns {string[]} */
function none() {
  return ["\u2013", "\u2013", "\u2013"];
}
