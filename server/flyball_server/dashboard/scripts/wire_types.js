// @ts-check
// The shapes of the API's answers that the page reads (docs/rest.md), for editors' checks; no code.

/** @typedef {{mean: number, low: number | null, high: number | null, num_steps: number}} Estimate */

/**
 * @typedef {object} PredictedIteration
 * @property {number} iteration_time_s
 * @property {number} energy_j
 * @property {number} baseline_iteration_time_s
 * @property {number} baseline_energy_j
 * @property {number} saving_percent
 * @property {number | null} gap_percent
 */

/**
 * @typedef {object} MeasuredIteration
 * @property {string} clocks
 * @property {number | null} version
 * @property {number} first_step
 * @property {number} last_step
 * @property {number} num_steps
 * @property {number} iteration_time_s
 * @property {number | null} energy_j
 */

/**
 * @typedef {object} JobOverview
 * @property {string} job_id
 * @property {string} state
 * @property {boolean} emulated
 * @property {number} num_stages
 * @property {number} num_microbatches
 * @property {string} schedule
 * @property {number} num_ranks
 * @property {number} num_registered
 * @property {number} num_present
 * @property {number | null} newest_version
 * @property {number | null} active_version
 * @property {string} policy
 * @property {string} target
 * @property {PredictedIteration | null} predicted
 * @property {MeasuredIteration | null} measured
 * @property {Estimate | null} measured_baseline_time_s
 * @property {Estimate | null} measured_baseline_energy_j
 * @property {Estimate | null} slowdown_percent
 * @property {Estimate | null} saving_percent
 * @property {Estimate | null} saved_j
 * @property {number} num_steps
 * @property {boolean} is_caught_up
 * @property {string | null} problem
 * @property {string} created_at
 * @property {string} heard_at
 */

/**
 * @typedef {object} StageOfStep
 * @property {number} stage
 * @property {number} num_ranks
 * @property {number} time_s
 * @property {number | null} energy_j
 * @property {number} num_clock_misses
 * @property {number} num_power_capped
 * @property {number} num_thermally_capped
 * @property {number | null} sm_clock_mhz measured
 */

/**
 * @typedef {object} StagesOfStep
 * @property {number} step
 * @property {number} num_ranks
 * @property {(number | null)[]} plan_versions
 * @property {number} time_s
 * @property {number | null} energy_j
 * @property {StageOfStep[]} stages
 */

/**
 * @typedef {object} PlanSummary
 * @property {number} version
 * @property {string} kind
 * @property {string} schedule
 * @property {string} policy
 * @property {string} target
 * @property {string} created_at
 * @property {number | null} first_step
 * @property {PredictedIteration | null} predicted
 * @property {number[]} stage_clock_mhz
 */

/**
 * @typedef {object} StragglerView
 * @property {number} rank
 * @property {string} source
 * @property {string} reason
 * @property {number} slowdown
 * @property {string} from_time
 * @property {string | null} until_time
 * @property {boolean} is_in_force
 */

/**
 * @typedef {object} ProfilingView
 * @property {string} state
 * @property {string | null} problem
 * @property {number} num_steps
 * @property {number} slowdown_limit
 * @property {number | null} largest_slowdown
 * @property {number | null} extra_time_s
 * @property {number | null} extra_energy_j
 */

/**
 * @typedef {object} ComparisonView
 * @property {string} state
 * @property {number | null} version
 * @property {number} num_pairs
 * @property {number} num_measured_pairs
 */

/**
 * What the page knows of one job; panels get it whole after every event.
 * @typedef {object} JobPageState
 * @property {JobOverview} overview
 * @property {PlanSummary[]} history rising
 * @property {StragglerView[]} stragglers
 * @property {StagesOfStep[]} steps the newest 2000 at most, rising
 * @property {ProfilingView | null} profiling
 * @property {ComparisonView | null} comparison
 */

/**
 * What a panel is given beside its element.
 * @typedef {object} PanelContext
 * @property {import("./api.js").Api} api
 * @property {string} jobId
 * @property {(text: string) => void} announce
 * @property {(action: () => void) => void} guard runs what is done later than in an update: where it
 *   throws, the panel says that it has failed
 */

/** @typedef {{update(state: JobPageState): void, destroy(): void}} Panel */

export {};
