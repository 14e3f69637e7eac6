// State of a job's page, built from its live events.

/**
 * @import { ComparisonStatus, JobOverview, PlanSummary, ProfilingStatus, StagesOfStep, Straggler,
 *   TimetableStatus } from "./wire_types.js"
 */

/**
 * Newest data of one job, passed to the panels after every event.
 * @typedef {object} JobPageState
 * @property {JobOverview} overview
 * @property {string[]} notes
 * @property {TimetableStatus | null} timetable
 * @property {PlanSummary[]} history rising
 * @property {Straggler[]} stragglers
 * @property {StagesOfStep[]} steps the newest 2000 at most, rising
 * @property {ProfilingStatus | null} profiling
 * @property {ComparisonStatus | null} comparison
 */

const MOST_STEPS = 2000;
// Steps times stages that are kept.
const MOST_STAGES = 128_000;

/**
 * An event of a job's page.
 * @typedef {{name: "overview", data: JobOverview}
 *   | {name: "notes", data: string[]}
 *   | {name: "timetable", data: TimetableStatus}
 *   | {name: "history", data: PlanSummary[]}
 *   | {name: "stragglers", data: Straggler[]}
 *   | {name: "profiling", data: ProfilingStatus}
 *   | {name: "comparison", data: ComparisonStatus}
 *   | {name: "steps", data: StagesOfStep[]}
 *   | {name: "gone", data: unknown}} JobEvent
 */

/**
 * Return the state after an event; null until the overview has come.
 * @param {JobPageState | null} state
 * @param {JobEvent} event
 * @returns {JobPageState | null}
 */
export function afterEvent(state, { name, data }) {
  if (name === "overview") {
    // Another time of creation is another run under the same name: it starts from nothing.
    const isSame = state !== null && state.overview.created_at === data.created_at;
    return { ...(isSame ? state : empty()), overview: data };
  }
  if (state === null || name === "gone") return state;
  if (name === "steps") return withSteps(state, data);
  return { ...state, [name]: data };
}

/**
 * Return the state with more steps.
 * @param {JobPageState} state
 * @param {StagesOfStep[]} steps rising
 * @param {number} told first step of which events have told meanwhile: they are newer than `steps`
 * @returns {JobPageState}
 */
export function withSteps(state, steps, told = Number.POSITIVE_INFINITY) {
  const newer = state.steps.filter(({ step }) => step >= told);
  const most = mostSteps(state);
  return { ...state, steps: mergedSteps(mergedSteps(state.steps, steps, most), newer, most) };
}

/**
 * Merge steps in rising order; one that comes again replaces the one before.
 * @param {StagesOfStep[]} known rising
 * @param {StagesOfStep[]} told rising
 * @param {number} most
 * @returns {StagesOfStep[]} the newest `most`
 */
function mergedSteps(known, told, most) {
  if (told.length === 0) return known;
  const last = known[known.length - 1]?.step ?? -1;
  if (told[0].step > last) return [...known, ...told].slice(-most);
  const byStep = new Map(known.map((step) => [step.step, step]));
  for (const step of told) byStep.set(step.step, step);
  return [...byStep.values()].sort((one, other) => one.step - other.step).slice(-most);
}

/** @param {JobPageState} state @returns {number} steps to keep */
function mostSteps({ overview: { num_stages } }) {
  return Math.max(1, Math.min(MOST_STEPS, Math.floor(MOST_STAGES / num_stages)));
}

/** @returns {Omit<JobPageState, "overview">} */
function empty() {
  return {
    notes: [],
    timetable: null,
    history: [],
    stragglers: [],
    steps: [],
    profiling: null,
    comparison: null,
  };
}
