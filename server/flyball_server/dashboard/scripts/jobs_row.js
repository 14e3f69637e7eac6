// One row of the table of jobs: each figure says whether it was measured or is predicted.

import { make } from "./elements.js";
import { count, interval, joules, percent, seconds, targetText } from "./format.js";
import { clocksText, emulatedBadge, isOnPlan, progressText, stateBadge } from "./job_words.js";
import { savingBar } from "./saving_bar.js";

/** @typedef {import("./wire_types.js").JobOverview} JobOverview */

/**
 * The cells in the order of the table's columns.
 * @param {JobOverview} job
 * @param {Date} now
 * @returns {HTMLElement[]}
 */
export function jobCells(job, now) {
  return [
    nameCell(job),
    cell(
      "State",
      stateBadge(job),
      note(job.problem ?? progressText(job, now), job.problem ? "problem" : ""),
    ),
    cell("GPUs", figure(`${count(job.num_present)} of ${count(job.num_ranks)}`), note("present")),
    timeCell(job),
    energyCell(job),
    savedCell(job),
    gapCell(job),
  ];
}

/**
 * @param {JobOverview} job
 * @returns {HTMLElement}
 */
function nameCell(job) {
  const href = `#/jobs/${encodeURIComponent(job.job_id)}`;
  return make(
    "th",
    { scope: "row", class: "job-name" },
    make("a", { href }, job.job_id),
    job.emulated ? emulatedBadge() : null,
    note(
      `${job.num_stages} stages \u00d7 ${job.num_microbatches} microbatches, ${job.schedule}; ` +
        `${job.policy}, ${targetText(job.target)}`,
    ),
  );
}

/**
 * @param {JobOverview} job
 * @returns {HTMLElement}
 */
function timeCell(job) {
  const { measured, predicted } = job;
  if (measured !== null) {
    return cell(
      "Iteration time",
      figure(seconds(measured.iteration_time_s)),
      clocksNote(measured),
      baselineNote(
        job.measured_baseline_time_s,
        isOnPlan(job) ? job.slowdown_percent : null,
        seconds,
      ),
    );
  }
  if (predicted === null) return cell("Iteration time", nothing());
  return cell(
    "Iteration time",
    predictedFigure(seconds(predicted.iteration_time_s)),
    note(`baseline ${seconds(predicted.baseline_iteration_time_s)}`),
  );
}

/**
 * @param {JobOverview} job
 * @returns {HTMLElement}
 */
function energyCell(job) {
  const { measured, predicted } = job;
  if (measured !== null) {
    const saving = job.saving_percent;
    const change = saving === null || !isOnPlan(job) ? null : { ...saving, mean: -saving.mean };
    return cell(
      "Energy",
      figure(joules(measured.energy_j)),
      clocksNote(measured),
      measured.energy_j === null ? note("not read by all ranks") : null,
      baselineNote(job.measured_baseline_energy_j, change, joules),
    );
  }
  if (predicted === null) return cell("Energy", nothing());
  return cell(
    "Energy",
    predictedFigure(joules(predicted.energy_j)),
    note(`baseline ${joules(predicted.baseline_energy_j)}`),
  );
}

/**
 * @param {JobOverview} job
 * @returns {HTMLElement}
 */
function savedCell(job) {
  const saving = job.saving_percent;
  if (saving !== null) {
    const bounds = interval(saving, (value) => percent(value));
    return cell(
      "Saved",
      make(
        "span",
        { class: "saving" },
        figure(percent(saving.mean), saving.mean >= 0 ? "gain" : "loss"),
        savingBar(saving),
      ),
      note(
        [bounds, job.saved_j === null ? "" : `${joules(job.saved_j.mean)} in all`]
          .filter(Boolean)
          .join("; "),
      ),
      make("span", { class: "caught-up note" }, job.is_caught_up ? "" : "still counting"),
    );
  }
  if (job.predicted === null) return cell("Saved", nothing());
  return cell(
    "Saved",
    predictedFigure(percent(job.predicted.saving_percent)),
    note("no measured baseline"),
  );
}

/**
 * @param {JobOverview} job
 * @returns {HTMLElement}
 */
function gapCell(job) {
  const gap = job.predicted?.gap_percent ?? null;
  return cell("Gap", gap === null ? nothing() : figure(percent(gap, { digits: 2 })));
}

/**
 * At which clocks a figure was measured, where these are not the plan's.
 * @param {import("./wire_types.js").MeasuredIteration} measured
 * @returns {HTMLElement | null}
 */
function clocksNote({ clocks }) {
  return clocks === "plan" ? null : note(clocksText(clocks));
}

/**
 * @param {import("./wire_types.js").Estimate | null} baseline
 * @param {import("./wire_types.js").Estimate | null} change in per cent; null: none is to be told
 * @param {(value: number) => string} format
 * @returns {HTMLElement | null}
 */
function baselineNote(baseline, change, format) {
  if (baseline === null) return note("no measured baseline");
  const changed = change === null ? "" : `, ${percent(change.mean, { signed: true })}`;
  return note(`baseline ${format(baseline.mean)}${changed}`);
}

/**
 * @param {string} label told on narrow screens, where there is no head
 * @param {...(HTMLElement | null)} children
 * @returns {HTMLElement}
 */
function cell(label, ...children) {
  return make("td", { "data-label": label }, ...children);
}

/**
 * @param {string} text
 * @param {string} [kind]
 * @returns {HTMLElement}
 */
function figure(text, kind = "") {
  return make("span", { class: `figure ${kind}` }, text);
}

/**
 * @param {string} text
 * @returns {HTMLElement}
 */
function predictedFigure(text) {
  return make(
    "span",
    { class: "figure predicted" },
    text,
    make("small", { class: "tag" }, "predicted"),
  );
}

/**
 * @param {string} text
 * @param {string} [kind]
 * @returns {HTMLElement}
 */
function note(text, kind = "") {
  return make("span", { class: `note ${kind}` }, text);
}

/** @returns {HTMLElement} */
function nothing() {
  return make("span", { class: "figure none", "aria-label": "none yet" }, "\u2013");
}
