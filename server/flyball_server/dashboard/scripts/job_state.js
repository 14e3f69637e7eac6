// What the page knows of one job, put together from its live events.

/**
 * @typedef {import("./wire_types.js").JobOverview} JobOverview
 * @typedef {import("./wire_types.js").StagesOfStep} StagesOfStep
 *
 * The latest answers about one job; panels get it whole after every event.
 * @typedef {object} JobPageState
 * @property {JobOverview} overview
 * @property {import("./wire_types.js").PlanSummary[]} history rising
 * @property {import("./wire_types.js").StragglerView[]} stragglers
 * @property {StagesOfStep[]} steps the newest 2000 at most, rising
 * @property {import("./wire_types.js").ProfilingView | null} profiling
 * @property {import("./wire_types.js").ComparisonView | null} comparison
 */

const MOST_STEPS = 2000;
// Of all the steps that are kept together: those of many stages are fewer.
const MOST_STAGES = 128_000;

/**
 * The state after an event; null as long as the overview has not come.
 * @param {JobPageState | null} state
 * @param {string} name of the event
 * @param {any} data
 * @returns {JobPageState | null}
 */
export function afterEvent(state, name, data) {
  if (name === "overview") {
    // Made at another time it is another run under the same name: nothing known is of it.
    const isSame = state !== null && state.overview.created_at === data.created_at;
    return { ...(isSame ? state : empty()), overview: data };
  }
  if (state === null) return null;
  if (name === "history") return { ...state, history: data };
  if (name === "stragglers") return { ...state, stragglers: data };
  if (name === "profiling") return { ...state, profiling: data };
  if (name === "comparison") return { ...state, comparison: data };
  if (name === "steps")
    return { ...state, steps: mergedSteps(state.steps, data, mostSteps(state)) };
  return state;
}

/**
 * The state with steps that were asked for, while newer ones came with the events.
 * @param {JobPageState} state
 * @param {StagesOfStep[]} asked rising
 * @param {number} told from this step on the events have told: what they said is newer
 * @returns {JobPageState}
 */
export function withSteps(state, asked, told) {
  const newer = state.steps.filter(({ step }) => step >= told);
  const most = mostSteps(state);
  return { ...state, steps: mergedSteps(mergedSteps(state.steps, asked, most), newer, most) };
}

/**
 * Both in rising order; a step that comes again replaces what was known of it.
 * @param {StagesOfStep[]} known rising
 * @param {StagesOfStep[]} told rising
 * @param {number} most
 * @returns {StagesOfStep[]} the newest of them
 */
export function mergedSteps(known, told, most) {
  if (told.length === 0) return known;
  const last = known[known.length - 1]?.step ?? -1;
  if (told[0].step > last) return [...known, ...told].slice(-most);
  const byStep = new Map(known.map((step) => [step.step, step]));
  for (const step of told) byStep.set(step.step, step);
  return [...byStep.values()].sort((one, other) => one.step - other.step).slice(-most);
}

/**
 * @param {JobPageState} state
 * @returns {number} steps that are kept
 */
function mostSteps({ overview: { num_stages } }) {
  return Math.max(1, Math.min(MOST_STEPS, Math.floor(MOST_STAGES / num_stages)));
}

/** @returns {Omit<JobPageState, "overview">} */
function empty() {
  return { history: [], stragglers: [], steps: [], profiling: null, comparison: null };
}
