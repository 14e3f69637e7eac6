// Two plan versions side by side, of one job or of two.

import { ApiError } from "./api_error.js";
import { showRefusal } from "./connection.js";
import { decoded, make, setChildren, setText } from "./elements.js";
import {
  interval,
  joules,
  jouleTicks,
  percent,
  percentAbove,
  seconds,
  secondTicks,
  targetText,
  watts,
} from "./format.js";
import { StepChart } from "./step_chart.js";
import { runsHighest, usualRange, versionOf } from "./step_series.js";
import { shapeText } from "./job_words.js";
import { makeRow, makeTable } from "./tables.js";

/**
 * @import { Figure } from "./format.js"
 * @import { Shell } from "./main.js"
 * @import { Estimate, JobOverview, JobReport, Overview, PlanSummary, StagesOfStep,
 *   VersionSavings } from "./wire_types.js"
 */

/**
 * @typedef {object} Side
 * @property {JobOverview} job
 * @property {PlanSummary[]} plans versions with a prediction, the newest first
 * @property {PlanSummary | undefined} plan the chosen one; undefined: the job has none
 * @property {VersionSavings | undefined} measured undefined: no step of it was measured
 * @property {StagesOfStep[]} steps on the plan that are still known, rising
 */

/** @typedef {[JobReport, PlanSummary[], StagesOfStep[]]} Answers */

/** @type {[string, (step: StagesOfStep) => number | null, (values: number[]) => string[]][]} */
const CHARTS = [
  ["Iteration time", ({ time_s }) => time_s, secondTicks],
  ["Energy per iteration", ({ energy_j }) => energy_j, jouleTicks],
];
const LINES = [
  { label: "A", color: 1, width: 1.6 },
  { label: "B", color: 2, width: 1.6, dash: [5, 2] },
];
const MOST_STEPS = 2000;

const PREFIX = "#/compare";
const SIDES = ["A", "B"];
const RENEW_MS = 10_000;
const CELLS = ["td", "td", "td"];

/** @type {[string, (side: Side) => string][]} */
const TEXTS = [
  ["Policy, target", ({ plan }) => (plan ? `${plan.policy}, ${targetText(plan.target)}` : "none")],
  ["Pipeline", ({ job }) => shapeText(job)],
  ["Order", ({ job, plan }) => plan?.schedule ?? job.schedule],
  ["GPUs", ({ job }) => `${job.num_ranks} ${job.emulated ? "emulated" : "real"}`],
];

/** @type {[string, (side: Side) => string][]} */
const SAVINGS = [
  ["Saving, measured", ({ measured }) => changeText(measured?.saving_percent)],
  ["Time against the baseline, measured", ({ measured }) => changeText(measured?.slowdown_percent)],
  ["Saving, predicted", ({ plan }) => percent(plan?.predicted?.saving_percent, { digits: 2 })],
  ["Gap, predicted", ({ plan }) => percent(plan?.predicted?.gap_percent, { digits: 2 })],
];

/** @type {[string, (value: Figure) => string, (side: Side) => Figure][]} figures in a unit */
const FIGURES = [
  ["Iteration time, measured", seconds, ({ measured }) => measured?.time_s?.mean],
  ["Iteration time, predicted", seconds, ({ plan }) => plan?.predicted?.iteration_time_s],
  ["Energy, measured", joules, ({ measured }) => measured?.energy_j?.mean],
  ["Energy, predicted", joules, ({ plan }) => plan?.predicted?.energy_j],
  ["Mean power, measured", watts, ({ measured }) => power_w(measured)],
];

/**
 * Return the address of a comparison.
 * @param {[string, number | null][]} sides job and version; null: the active one
 */
export function compareAddress(sides) {
  const parts = sides.flatMap(([job, version]) => [encodeURIComponent(job), version ?? "-"]);
  return [PREFIX, ...parts].join("/");
}

export class ComparePage {
  /** @param {HTMLElement} main @param {Shell} shell */
  constructor(main, shell) {
    this.main = main;
    this.shell = shell;
    this.question = new AbortController();
    const parts = location.hash.slice(PREFIX.length).split("/").slice(1).map(decoded);
    /** @type {[string, number | null][]} */
    this.chosen = [0, 1].map((side) => [
      parts[2 * side] ?? "",
      Number(parts[2 * side + 1]) || null,
    ]);
    this.warning = make("p.caveat", { hidden: true });
    this.pickers = make("div.compare-pickers");
    const heads = ["", ...SIDES, "B against A"];
    const { frame, body } = makeTable("Comparison", { selector: "table.comparison", heads });
    this.body = body;
    const charts = make("div.stage-charts", { hidden: true });
    const note = make("p.note", "Charts count steps from each version's first.");
    const content = [make("h1", "Compare"), this.pickers, this.warning, note, charts, frame];
    setChildren(main, make("div.page", make("section.panel", ...content)));
    this.place = charts;
    this.charts = CHARTS.map(
      ([title, , ticks]) =>
        new StepChart(charts, {
          title: `${title}, measured`,
          lines: LINES,
          height: 180,
          hasSteps: true,
          range: usualRange,
          ticks,
          onCursor: () => {},
          onSelect: () => {},
        }),
    );
    this.shown = "";
    this.timer = setInterval(() => document.hidden || this.load(), RENEW_MS);
    void this.load();
  }

  destroy() {
    this.question.abort();
    clearInterval(this.timer);
    for (const chart of this.charts) chart.destroy();
  }

  async load() {
    this.question.abort();
    this.question = new AbortController();
    const { signal } = this.question;
    const { api } = this.shell;
    try {
      /** @type {Overview} */
      const { jobs } = await api.get("api/v1/overview", { signal });
      if (jobs.length === 0) throw new ApiError(404, "There is no job to compare.");
      const chosen = this.chosen.map(([name]) => jobs.find((job) => job.job_id === name) ?? jobs[0]);
      /** @type {Map<JobOverview, Answers>} */
      const answers = new Map();
      await Promise.all(
        [...new Set(chosen)].map(async (job) => {
          const path = `api/v1/jobs/${encodeURIComponent(job.job_id)}`;
          const parts = ["report", "history", `steps/stages?limit=${MOST_STEPS}`];
          const got = await Promise.all(parts.map((part) => api.get(`${path}/${part}`, { signal })));
          answers.set(job, /** @type {Answers} */ (got));
        }),
      );
      const sides = chosen.map((job, index) => {
        return sideOf(job, this.chosen[index][1], /** @type {Answers} */ (answers.get(job)));
      });
      if (!signal.aborted) this.show(jobs, sides);
    } catch (error) {
      if (signal.aborted) return;
      const { status, detail } = ApiError.from(error);
      if (status === 0) {
        this.shell.connection.set(false, detail);
        return;
      }
      this.destroy();
      showRefusal(this.shell, this.main, status, detail);
    }
  }

  /** @param {JobOverview[]} jobs @param {Side[]} sides */
  show(jobs, sides) {
    this.shell.connection.heard();
    this.shell.connection.set(true, "");
    const names = jobs.map(({ job_id }) => job_id);
    const offered = JSON.stringify([names, this.chosen, sides.map(({ plans }) => plans.length)]);
    if (offered !== this.shown) {
      this.shown = offered;
      setChildren(this.pickers, ...sides.map((side, index) => this.picker(jobs, side, index)));
    }
    const warnings = sides.flatMap((side, index) => replacement(side, this.chosen[index]));
    const differing = differences(sides);
    if (differing.length > 0)
      warnings.push(`The two differ in more than their plans: ${differing.join(", ")}.`);
    this.warning.hidden = warnings.length === 0;
    setText(this.warning, warnings.join(" "));
    const [a, b] = sides;
    const length = Math.max(a.steps.length, b.steps.length);
    this.place.hidden = length === 0;
    CHARTS.forEach(([, value], index) => {
      const columns = sides.map(({ steps }) =>
        Array.from({ length }, (_, at) => (steps[at] ? value(steps[at]) : null)),
      );
      this.charts[index].setData([...Array(length).keys()], columns);
    });
    const textRows = (/** @type {typeof TEXTS} */ texts) =>
      texts.map(([name, text]) => makeRow([name, text(a), text(b), ""], CELLS));
    setChildren(
      this.body,
      ...textRows(TEXTS),
      ...FIGURES.map(([name, format, value]) => {
        const [of, to] = [value(a), value(b)];
        const change = of == null || to == null ? null : percentAbove(to, of);
        const changed = percent(change, { signed: true });
        return makeRow([name, format(of), format(to), changed], CELLS);
      }),
      ...textRows(SAVINGS),
    );
  }

  /** @param {JobOverview[]} jobs @param {Side} side @param {number} index */
  picker(jobs, { job, plans, plan }, index) {
    const choose = (/** @type {string} */ name, /** @type {number | null} */ version) => {
      this.chosen[index] = [name, version];
      history.replaceState(null, "", compareAddress(this.chosen));
      void this.load();
    };
    const option = (/** @type {string} */ value, /** @type {string} */ text, isIt = false) =>
      make("option", { value, selected: isIt }, text);
    const jobField = make(
      "select",
      { "aria-label": `Job ${SIDES[index]}`, onchange: () => choose(jobField.value, null) },
      ...jobs.map(({ job_id }) => option(job_id, job_id, job_id === job.job_id)),
    );
    const versionField = make(
      "select",
      {
        "aria-label": `Version ${SIDES[index]}`,
        onchange: () => choose(job.job_id, Number(versionField.value)),
      },
      ...plans.map((each) => {
        const role = each.version === job.active_version ? ", active" : "";
        return option(`${each.version}`, `v${each.version}${role}`, each === plan);
      }),
    );
    return make("p", make("strong", `${SIDES[index]} `), jobField, versionField);
  }
}

/**
 * @param {JobOverview} job
 * @param {number | null} version
 * @param {Answers} answers
 * @returns {Side}
 */
export function sideOf(job, version, [report, history, known]) {
  const plans = history.filter(({ predicted }) => predicted !== null).reverse();
  const wanted = version ?? job.active_version;
  const plan = plans.find((each) => each.version === wanted) ?? plans[0];
  const measured = report.versions.find((each) => each.version === plan?.version);
  const steps = known.filter(
    (each) =>
      versionOf(each) === plan?.version &&
      each.num_ranks >= job.num_ranks &&
      !runsHighest(plan, each.step),
  );
  return { job, plans, plan, measured, steps };
}

/**
 * Return a warning where something else than the chosen job and version is shown.
 * @param {Side} side
 * @param {[string, number | null]} chosen
 */
function replacement({ job, plan }, [name, version]) {
  if (name !== "" && name !== job.job_id)
    return [`There is no job ${name}; ${job.job_id} is shown instead.`];
  if (version === null || version === plan?.version) return [];
  const shown = plan ? `version ${plan.version} is shown instead` : "it has no plan";
  return [`Job ${job.job_id} has no version ${version} with a prediction; ${shown}.`];
}

/** Return what else the two differ in. @param {Side[]} sides */
function differences([{ job: a }, { job: b }]) {
  /** @type {[string, boolean][]} */
  const checks = [
    ["real and emulated GPUs", a.emulated !== b.emulated],
    ["number of GPUs", a.num_ranks !== b.num_ranks],
    ["number of stages", a.num_stages !== b.num_stages],
    ["number of microbatches", a.num_microbatches !== b.num_microbatches],
  ];
  return checks.filter(([, isOther]) => isOther).map(([name]) => name);
}

/** Return a measured change with its interval. @param {Estimate | null | undefined} change */
export function changeText(change) {
  const bounds = change ? interval(change, percent) : "";
  return percent(change?.mean) + (bounds && ` (${bounds})`);
}

/** @param {VersionSavings | undefined} measured */
function power_w(measured) {
  const { energy_j, time_s } = measured ?? {};
  return energy_j && time_s ? energy_j.mean / time_s.mean : null;
}
