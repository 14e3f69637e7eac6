// Figures of a job: its saving, and time, energy and power against the baseline.

import { make, setChildren, setText } from "./elements.js";
import {
  costs,
  counted,
  interval,
  joules,
  percent,
  percentAbove,
  seconds,
  sureMean,
  wattHours,
  watts,
} from "./format.js";
import { clocksText, gapWord, isOnPlan } from "./job_words.js";
import { makeTable } from "./tables.js";

/**
 * @import { Figure } from "./format.js"
 * @import { Panel } from "./job_page.js"
 * @import { Estimate, JobOverview, MeasuredIteration, PredictedIteration } from "./wire_types.js"
 */

/** @typedef {{name: string, measured: string[], predicted: string[]}} FigureRow */

const KINDS = ["measured", "predicted"];

/** @param {HTMLElement} element @returns {Panel} */
export function createFiguresPanel(element) {
  const headline = make("div.headline");
  const more = make("summary");
  const heroes = make("div.heroes");
  const { frame, table, body } = makeTable("Figures of an iteration", {
    selector: "table.figures",
    heads: [],
  });
  const caption = make("caption");
  const head = make("thead");
  table.querySelector("thead")?.replaceWith(head);
  table.prepend(caption);
  const deviations = make("ul.deviations");
  const delays = make("p.note.delays");
  const ownPlan = make("p.note.own-plan");
  const title = make("h2.visually-hidden", "Figures");
  const parts = [more, deviations, heroes, frame, ownPlan, delays];
  setChildren(element, title, headline, make("details.more-figures", ...parts));
  let shown = "";
  return {
    update({ overview }) {
      const content = JSON.stringify(overview);
      if (content === shown) return;
      shown = content;
      setText(caption, captionOf(overview));
      setChildren(headline, ...headlineOf(overview));
      const texts = overview.deviations.map(({ text }) => text);
      const notes = [...(overview.headline?.caveats ?? []), ...texts];
      setChildren(deviations, ...notes.map((note) => make("li", note)));
      setText(more, moreText(overview, notes.length));
      setChildren(heroes, ...heroFigures(overview));
      ownPlan.hidden = overview.own_plan === null;
      setText(ownPlan, `Newest step's own plan: ${overview.own_plan?.text ?? ""}.`);
      delays.hidden = overview.delays === null;
      setText(delays, `Besides the instructions, the plan counts ${overview.delays?.text ?? ""}.`);
      setChildren(head, ...headRows(overview));
      setChildren(body, ...figureRows(overview).map(rowElement));
    },
  };
}

/** @param {JobOverview} job */
function captionOf({ measured, emulated }) {
  if (measured === null) return "One iteration; no complete step has been measured yet";
  const { num_steps, first_step, last_step } = measured;
  const steps = `${counted(num_steps, "step")} (${first_step} to ${last_step})`;
  return `One iteration; measured: mean of ${steps} on ${emulated ? "emulated GPUs" : "GPUs"}`;
}

/**
 * Return the job's saving with the time that it takes, and what limits the comparison.
 * @param {JobOverview} job
 */
function headlineOf({ headline, emulated, state, job_id }) {
  if (headline === null) {
    const put = make("code", `flyball jobs profile put ${job_id} PROFILE.csv`);
    const why = state === "awaiting-profile" ? ["The job needs a profile: ", put] : [];
    if (state === "profiling") why.push("The job is being profiled.");
    return [make("p.note", "No plan yet. ", ...why)];
  }
  const how = headline.is_measured ? `measured${emulated ? " on emulated GPUs" : ""}` : "predicted";
  return [
    make(
      "p",
      { class: `headline-text tone-${headline.tone}` },
      make("strong.figure", headline.text),
      make("small.tag", how),
    ),
  ];
}

/** Return what the folded figures come to. @param {JobOverview} job @param {number} numNotes */
function moreText({ saved_j, predicted }, numNotes) {
  const saved = sureMean(saved_j);
  return [
    saved === null ? "figures of an iteration" : `${wattHours(saved)} saved so far`,
    predicted?.gap_percent == null ? "" : `plan ${gapWord(predicted.gap_percent)}`,
    numNotes === 0 ? "" : counted(numNotes, "note"),
  ]
    .filter(Boolean)
    .join("; ");
}

/** @param {JobOverview} job */
function heroFigures({ saved_j: saved, saved_of_j, factors, predicted }) {
  const mean = sureMean(saved);
  const share = mean !== null && saved_of_j ? `${percent((100 * mean) / saved_of_j)}; ` : "";
  const note = saved === null ? "needs a measured baseline" : intervalNote(saved, wattHours);
  return [
    hero("Saved so far, measured", wattHours(mean), share + note),
    ...(mean === null ? [] : costs(mean, factors)).map(({ name, text }) =>
      hero(name, text, "measured, at the planner's factors"),
    ),
    gapHero(predicted),
    ...reserveHero(predicted),
  ];
}

/**
 * Return the reserve for noise and what it costs; nothing where there is none.
 * @param {PredictedIteration | null} predicted
 */
function reserveHero(predicted) {
  if (predicted === null) return [];
  const { share, choice } = predicted.reserve;
  if (share === 0 && choice === null) return [];
  return [
    hero(
      "Reserve for noise",
      percent(100 * share, { digits: 2 }),
      choice === null
        ? "not chosen for this plan"
        : `costs ${choice.cost_points.toFixed(2)} points of saving; the mean iteration is about ` +
            `${percent(choice.slowdown_percent, { digits: 2 })} longer than at the highest ` +
            `clocks, ${percent(choice.slowdown_without_percent, { digits: 2 })} without`,
    ),
  ];
}

/** @param {PredictedIteration | null} predicted */
function gapHero(predicted) {
  if (predicted?.gap_percent == null || predicted.lower_bound_j === null)
    return hero("Plan", gapWord(null), "only policy frontier proves how little energy is needed");
  const { gap_percent, late_changes_j, lower_bound_j } = predicted;
  const late = (100 * late_changes_j) / lower_bound_j;
  const why =
    `needs at most ${percent(gap_percent, { digits: 2 })} more energy than any plan as fast` +
    (late < 0.005 ? "" : `, of it ${percent(late, { digits: 2 })} for late clock changes`);
  return hero("Plan", gapWord(gap_percent), why);
}

/** @param {Estimate} estimate @param {(value: number) => string} format */
function intervalNote(estimate, format) {
  const bounds = interval(estimate, format);
  const steps = counted(estimate.num_steps, "step");
  return bounds === "" ? `${steps}: too few for an interval` : `${bounds} (95\u202f%, ${steps})`;
}

/** @param {string} name @param {string} figure @param {string} note */
function hero(name, figure, note) {
  return make(
    "div.hero",
    make("span.hero-name", name),
    make("span.figure.hero-figure", figure),
    make("span.note", note),
  );
}

/** @param {JobOverview} job */
function headRows({ measured }) {
  const now = measured === null ? "On the plan" : `Newest steps, ${nowText(measured)}`;
  const groups = [now, "Baseline, all at the highest clocks", "Change"];
  const kinds = groups.flatMap(() => KINDS);
  return [
    make(
      "tr",
      make("td"),
      ...groups.map((text) => make("th", { scope: "colgroup", colspan: KINDS.length }, text)),
    ),
    make("tr", make("td"), ...kinds.map((kind) => make(`th.kind.${kind}`, { scope: "col" }, kind))),
  ];
}

/** @param {MeasuredIteration} measured */
function nowText({ clocks, version }) {
  return version !== null && clocks === "plan" ? `on the plan v${version}` : clocksText(clocks);
}

/**
 * Return the rows of the table; each has the figures now, of the baseline, and the change.
 * @param {JobOverview} job
 * @returns {FigureRow[]}
 */
export function figureRows(job) {
  const { measured, predicted } = job;
  const isPlans = isOnPlan(job);
  const slower = isPlans ? sureMean(job.slowdown_percent) : null;
  const saved = isPlans ? sureMean(job.saving_percent) : null;
  const now = { time_s: measured?.iteration_time_s, energy_j: measured?.energy_j };
  const base = {
    time_s: job.measured_baseline_time_s?.mean,
    energy_j: job.measured_baseline_energy_j?.mean,
  };
  const plan = { time_s: predicted?.iteration_time_s, energy_j: predicted?.energy_j };
  const planBase = {
    time_s: predicted?.baseline_iteration_time_s,
    energy_j: predicted?.baseline_energy_j,
  };
  const [power, basePower] = [power_w(now), power_w(base)];
  const [planPower, planBasePower] = [power_w(plan), power_w(planBase)];
  const negative = (/** @type {Figure} */ value) => (value == null ? null : -value);
  const longer = change(plan.time_s, planBase.time_s);
  const planSaved = predicted?.saving_percent;
  return [
    {
      name: "Iteration time",
      measured: figures(seconds, now.time_s, base.time_s, slower),
      predicted: figures(seconds, plan.time_s, planBase.time_s, longer),
    },
    {
      name: "Energy",
      measured: figures(joules, now.energy_j, base.energy_j, negative(saved)),
      predicted: figures(joules, plan.energy_j, planBase.energy_j, negative(planSaved)),
    },
    {
      name: "Mean power",
      measured: figures(watts, power, basePower, saved === null ? null : change(power, basePower)),
      predicted: figures(watts, planPower, planBasePower, change(planPower, planBasePower)),
    },
  ];
}

/**
 * @param {(value: Figure) => string} format
 * @param {Figure} now
 * @param {Figure} baseline
 * @param {Figure} changed in per cent
 */
function figures(format, now, baseline, changed) {
  return [format(now), format(baseline), percent(changed, { signed: true })];
}

/** @param {Figure} value @param {Figure} reference */
function change(value, reference) {
  return value == null || reference == null ? null : percentAbove(value, reference);
}

/** @param {{time_s: Figure, energy_j: Figure}} iteration */
function power_w({ time_s, energy_j }) {
  return energy_j == null || time_s == null ? null : energy_j / time_s;
}

/** @param {FigureRow} row */
function rowElement({ name, measured, predicted }) {
  const cells = measured.flatMap((text, index) => [
    make("td.measured", text),
    make("td.predicted", predicted[index]),
  ]);
  return make("tr", make("th", { scope: "row" }, name), ...cells);
}
