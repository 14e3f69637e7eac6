// One row of the table of jobs; each figure is marked as measured or predicted.

import { make, makeSvg } from "./elements.js";
import {
  count,
  interval,
  jobTarget,
  joules,
  percent,
  seconds,
  sureMean,
  wattHours,
} from "./format.js";
import { clocksText, emulatedBadge, gapWord, isOnPlan, progressText, shapeText, stateBadge, toDo } from "./job_words.js";

/** @import { Estimate, Headline, JobOverview } from "./wire_types.js" */

/**
 * Create the cells of a job in the order of the table's columns.
 * @param {JobOverview} job
 * @param {Date} now
 */
export function jobCells(job, now) {
  const action = toDo(job);
  return [
    nameCell(job),
    cell("State", stateBadge(job), note(action ?? progressText(job, now), action ? "to-do" : "")),
    cell("GPUs", figure(`${count(job.num_present)} of ${count(job.num_ranks)}`), note("present")),
    timeCell(job),
    energyCell(job),
    savedCell(job),
    gapCell(job),
  ];
}

/** @param {JobOverview} job */
function nameCell(job) {
  const { job_id, schedule, policy } = job;
  const pipeline = `${shapeText(job)}, ${schedule}`;
  return make(
    "th.job-name",
    { scope: "row" },
    make("a", { href: `#/jobs/${encodeURIComponent(job_id)}` }, job_id),
    job.emulated && emulatedBadge(),
    note(`${pipeline}; ${policy}, ${jobTarget(job)}`),
  );
}

/** @param {JobOverview} job */
function timeCell(job) {
  return iterationCell("Iteration time", job, {
    format: seconds,
    measured: job.measured?.iteration_time_s ?? null,
    baseline: job.measured_baseline_time_s,
    change: sureMean(job.slowdown_percent),
    predicted: job.predicted?.iteration_time_s,
    predictedBaseline: job.predicted?.baseline_iteration_time_s,
  });
}

/** @param {JobOverview} job */
function energyCell(job) {
  const saved = sureMean(job.saving_percent);
  return iterationCell("Energy", job, {
    format: joules,
    measured: job.measured?.energy_j ?? null,
    baseline: job.measured_baseline_energy_j,
    change: saved && -saved,
    predicted: job.predicted?.energy_j,
    predictedBaseline: job.predicted?.baseline_energy_j,
  });
}

/**
 * Create a cell of a figure beside its baseline: measured if any step was, else predicted.
 * @param {string} label
 * @param {JobOverview} job
 * @param {object} figures
 * @param {(value: number | null | undefined) => string} figures.format
 * @param {number | null} figures.measured null: not read by all ranks
 * @param {Estimate | null} figures.baseline
 * @param {number | null} figures.change against the measured baseline, in per cent
 * @param {number | undefined} figures.predicted
 * @param {number | undefined} figures.predictedBaseline
 */
function iterationCell(label, job, figures) {
  const { format, measured, baseline, change } = figures;
  if (job.measured !== null) {
    const { clocks } = job.measured;
    const isChangeShown = change !== null && isOnPlan(job);
    const changed = isChangeShown ? `, ${percent(change, { signed: true })}` : "";
    return cell(
      label,
      figure(format(measured)),
      clocks !== "plan" && note(clocksText(clocks)),
      measured === null && note("not read by all ranks"),
      note(baseline ? `baseline ${format(baseline.mean)}${changed}` : "no measured baseline"),
    );
  }
  if (job.predicted === null) return cell(label, nothing());
  return cell(
    label,
    predictedFigure(format(figures.predicted)),
    note(`baseline ${format(figures.predictedBaseline)}`),
  );
}

/** @param {JobOverview} job */
function savedCell({ saving_percent: saving, headline, saved_j, predicted, is_caught_up }) {
  if (saving !== null && headline?.is_measured) {
    const bounds = interval(saving, percent);
    const sure_j = sureMean(saved_j);
    const total = sure_j !== null && `${wattHours(sure_j)} in all`;
    const mean = figure(percent(saving.mean), `tone-${headline.tone}`);
    return cell(
      "Saved",
      make("span.saving", mean, savingBar(saving, headline.tone)),
      make("span.note", { title: headline.caveats.join(" ") }, headline.time_text),
      note([bounds, total].filter(Boolean).join("; ")),
      make("span.caught-up.note", is_caught_up ? "" : "still counting"),
    );
  }
  if (predicted === null || headline === null) return cell("Saved", nothing());
  return cell(
    "Saved",
    predictedFigure(percent(predicted.saving_percent)),
    note(headline.time_text),
    note("no measured baseline"),
  );
}

/** @param {JobOverview} job */
function gapCell({ predicted }) {
  const gap = predicted?.gap_percent ?? null;
  if (gap === null) return cell("Gap", nothing());
  return cell("Gap", figure(gapWord(gap)), note(`at most ${percent(gap, { digits: 2 })} to gain`));
}

/**
 * @param {string} label shown on narrow screens, where the table has no head
 * @param {...(HTMLElement | false | "")} children
 */
function cell(label, ...children) {
  return make("td", { "data-label": label }, ...children);
}

/** @param {string} text @param {string} [kind] */
function figure(text, kind = "") {
  return make("span", { class: `figure ${kind}` }, text);
}

/** @param {string} text */
function predictedFigure(text) {
  return make("span.figure.predicted", text, make("small.tag", "predicted"));
}

/** @param {string} text @param {string} [kind] */
function note(text, kind = "") {
  return make("span", { class: `note ${kind}` }, text);
}

function nothing() {
  return make("span.figure.none", { "aria-label": "none yet" }, "\u2013");
}

const TONES = {
  gain: "saves, no more time",
  trade: "saves, takes longer",
  loss: "needs more",
  none: "no sure change",
};

/** Create the legend of the bars of savings. */
export function savingLegend() {
  const size = { width: 12, height: 12, "aria-hidden": "true" };
  return make(
    "ul.saving-legend",
    { "aria-label": "Colours of measured savings" },
    ...Object.entries(TONES).map(([tone, words]) =>
      make(
        "li",
        makeSvg(`svg.saving-bar.tone-${tone}`, size, makeSvg("rect.bar-value", { y: 3, width: 12, height: 6 })),
        words,
      ),
    ),
  );
}

const WIDTH = 104;
const HEIGHT = 12;
// Range of the bar in per cent; a saving beyond it ends at the edge.
const LEAST = -5;
const MOST = 35;

/**
 * Create a small bar of a saving with its interval, hidden from screen readers.
 * @param {Estimate} saving in per cent
 * @param {Headline["tone"]} tone
 */
function savingBar({ mean, low, high }, tone) {
  const [zero, end] = [place(0), place(mean)];
  const [x, width] = [Math.min(zero, end), Math.abs(end - zero)];
  const attributes = { width: WIDTH, height: HEIGHT, "aria-hidden": "true" };
  const picture = makeSvg(
    `svg.saving-bar.tone-${tone}`,
    attributes,
    makeSvg("rect.bar-track", { x: 0, y: 3, width: WIDTH, height: 6, rx: 1 }),
    makeSvg("rect.bar-value", { x, y: 3, width, height: 6 }),
    makeSvg("path.bar-zero", { d: `M${zero} 0V${HEIGHT}` }),
  );
  if (low !== null && high !== null) {
    const [from, to] = [place(low), place(high)];
    picture.append(makeSvg("path.bar-interval", { d: `M${from} 2V10M${to} 2V10M${from} 6H${to}` }));
  }
  return picture;
}

/** @param {number} percent @returns {number} px from the left */
function place(percent) {
  const share = (Math.min(MOST, Math.max(LEAST, percent)) - LEAST) / (MOST - LEAST);
  return Math.round(10 * share * WIDTH) / 10;
}
