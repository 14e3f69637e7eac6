// The API's answers that the page reads (docs/rest.md); types only, no code.
// Written by docs/scripts/write_wire_types.py from the API's OpenAPI document: do not edit.

/** @typedef {"announced" | "reconfigure" | "frontier"} Adaptation */

/** @typedef {"none" | "interleaved" | "apart" | "itself"} BaselineOrigin */

/** @typedef {"except_last" | "always" | "never"} Checkpoint */

/**
 * @typedef {object} ClockTransitions
 * @property {number | null} call_p50_s
 * @property {number | null} call_p95_s
 * @property {number} down_p50_s
 * @property {number} down_p5_s
 * @property {number} down_p95_s
 * @property {boolean | null} queues_in_node
 * @property {boolean} starts_settled
 * @property {number} up_p50_s
 * @property {number} up_p5_s
 * @property {number} up_p95_s
 */

/**
 * @typedef {object} ComparedPlan
 * @property {number} energy_j
 * @property {number} iteration_time_s
 * @property {string} name
 */

/** @typedef {"none" | "running" | "done" | "ended"} ComparisonState */

/**
 * @typedef {object} ComparisonStatus
 * @property {number} num_measured_pairs
 * @property {number} num_pairs
 * @property {ComparisonState} state
 * @property {number | null} version
 */

/**
 * @typedef {object} Deviation
 * @property {boolean} is_counted
 * @property {DeviationKind} kind
 * @property {number} num_events
 * @property {number} num_steps
 * @property {string} text
 */

/** @typedef {"overrun" | "capped" | "unplanned" | "clock-lost" | "unsettled" | "missing" | "default-clocks"} DeviationKind */

/** @typedef {"low" | "normal" | "high"} Effort */

/**
 * @typedef {object} EnergyFactors
 * @property {number | null} co2_g_per_kwh
 * @property {string} currency
 * @property {number | null} price_per_kwh
 */

/**
 * @typedef {object} Estimate
 * @property {number | null} high
 * @property {number | null} low
 * @property {number} mean
 * @property {number} num_steps
 */

/**
 * @typedef {object} FrontierPoint
 * @property {number} deadline_s
 * @property {number} energy_j
 * @property {number} gap_percent
 * @property {number} iteration_time_s
 * @property {number} lower_bound_j
 */

/**
 * @typedef {object} Headline
 * @property {string[]} caveats
 * @property {boolean} is_measured
 * @property {string} text
 * @property {string} time_text
 * @property {HeadlineTone} tone
 */

/** @typedef {"gain" | "trade" | "loss"} HeadlineTone */

/**
 * @typedef {object} JobFrontier
 * @property {ComparedPlan} baseline
 * @property {ComparedPlan[]} constant
 * @property {ComparedPlan[]} envpipe
 * @property {ComparedPlan[]} global_clock
 * @property {string} job_id
 * @property {FrontierPoint[]} points
 * @property {number} reserve
 * @property {ReserveChoice | null} reserve_choice
 * @property {number} solve_s
 * @property {ClockTransitions | null} transitions
 */

/**
 * @typedef {object} JobOverview
 * @property {number | null} active_version
 * @property {string} created_at
 * @property {Deviation[]} deviations
 * @property {boolean} emulated
 * @property {EnergyFactors} factors
 * @property {Headline | null} headline
 * @property {boolean} is_caught_up
 * @property {string} job_id
 * @property {string} last_seen_at
 * @property {MeasuredIteration | null} measured
 * @property {Estimate | null} measured_baseline_energy_j
 * @property {Estimate | null} measured_baseline_time_s
 * @property {MissedTarget | null} missed
 * @property {number | null} newest_version
 * @property {number} num_microbatches
 * @property {number} num_present
 * @property {number} num_ranks
 * @property {number} num_registered
 * @property {number} num_stages
 * @property {number} num_steps
 * @property {number} num_unknown_steps
 * @property {string} policy
 * @property {PredictedIteration | null} predicted
 * @property {string | null} problem
 * @property {Estimate | null} saved_j
 * @property {number | null} saved_of_j
 * @property {Estimate | null} saving_percent
 * @property {string} schedule
 * @property {Estimate | null} slowdown_percent
 * @property {JobState} state
 * @property {string} target
 */

/**
 * @typedef {object} JobRegistration
 * @property {number[] | null} activation_bytes
 * @property {Adaptation} adaptation
 * @property {number[] | null} blocking_power_w
 * @property {Checkpoint | null} checkpoint
 * @property {Effort} effort
 * @property {boolean} emulated
 * @property {number[] | null} free_memory_bytes
 * @property {string | null} gpu
 * @property {number | null} max_switches
 * @property {number | null} min_dwell_ms
 * @property {number} num_microbatches
 * @property {number | null} num_ranks
 * @property {number} num_stages
 * @property {(((string | number)[])[])[] | null} order
 * @property {Policy} policy
 * @property {Profiling} profiling
 * @property {number} profiling_slowdown
 * @property {Reconfigure | null} reconfigure
 * @property {number | null} reserve
 * @property {number | null} restart_count
 * @property {string | null} run
 * @property {string} schedule
 * @property {number} tail_ms
 * @property {string} target
 * @property {number[] | null} transfer_ms
 * @property {number | null} transition_ms
 * @property {ClockTransitions | null} transitions
 * @property {number[][] | null} virtual_stages
 */

/**
 * @typedef {object} JobReport
 * @property {Deviation[]} deviations
 * @property {boolean} emulated
 * @property {number | null} energy_j
 * @property {EnergyFactors} factors
 * @property {Headline | null} headline
 * @property {string} job_id
 * @property {number} num_ranks
 * @property {number} num_steps
 * @property {number} num_unknown_steps
 * @property {number | null} profiling_energy_j
 * @property {number | null} profiling_time_s
 * @property {Estimate | null} saved_j
 * @property {number | null} saved_of_j
 * @property {number} time_s
 * @property {VersionSavings[]} versions
 */

/** @typedef {"awaiting-profile" | "profiling" | "planned" | "planning-failed" | "ended" | "expired"} JobState */

/**
 * @typedef {object} JobView
 * @property {number | null} active_version
 * @property {string} created_at
 * @property {string} job_id
 * @property {MissedTarget | null} missed
 * @property {number | null} newest_version
 * @property {string[]} notes
 * @property {string | null} problem
 * @property {RankView[]} ranks
 * @property {JobRegistration} registration
 * @property {JobState} state
 */

/**
 * @typedef {object} MeasuredIteration
 * @property {StepClocks} clocks
 * @property {number | null} energy_j
 * @property {number} first_step
 * @property {number} iteration_time_s
 * @property {number} last_step
 * @property {number} num_steps
 * @property {number | null} version
 */

/**
 * @typedef {object} MissedTarget
 * @property {string} nearest
 * @property {string} target
 */

/**
 * @typedef {object} Overview
 * @property {JobOverview[]} jobs
 */

/** @typedef {"plan" | "comparison" | "separate" | "probe"} PlanKind */

/**
 * @typedef {object} PlanSummary
 * @property {string} created_at
 * @property {number | null} first_step
 * @property {PlanKind} kind
 * @property {string} policy
 * @property {PredictedIteration | null} predicted
 * @property {string} schedule
 * @property {number[]} stage_clock_mhz
 * @property {string} target
 * @property {number} version
 */

/**
 * @typedef {object} PlanTimeline
 * @property {TimelineOfPlan} baseline
 * @property {boolean} emulated
 * @property {boolean} is_as_planned
 * @property {string} job_id
 * @property {number} num_microbatches
 * @property {TimelineOfPlan} plan
 * @property {string} schedule
 * @property {number} version
 */

/** @typedef {"baseline" | "uniform" | "envelope" | "global" | "constant" | "frontier"} Policy */

/**
 * @typedef {object} PredictedIteration
 * @property {number} baseline_energy_j
 * @property {number} baseline_iteration_time_s
 * @property {ComparedPlan[]} compared
 * @property {number} energy_j
 * @property {number | null} gap_percent
 * @property {number} iteration_time_s
 * @property {number} reserve
 * @property {ReserveChoice | null} reserve_choice
 * @property {number} saving_percent
 * @property {SavingSources | null} saving_sources
 */

/**
 * @typedef {object} ProbedPoint
 * @property {number} chunk
 * @property {number} energy_error_j
 * @property {number} energy_j
 * @property {number} frequency_mhz
 * @property {string} instruction
 * @property {number} jitter
 * @property {number} num_probes
 * @property {number} stage
 * @property {number} time_error_s
 * @property {number} time_s
 */

/** @typedef {"given" | "online"} Profiling */

/** @typedef {"off" | "waiting" | "probing" | "finished" | "refused"} ProfilingState */

/**
 * @typedef {object} ProfilingStatus
 * @property {number[] | null} blocking_power_error_w
 * @property {number[] | null} blocking_power_w
 * @property {boolean} emulated
 * @property {number | null} extra_energy_j
 * @property {number | null} extra_time_s
 * @property {string} job_id
 * @property {number | null} largest_slowdown
 * @property {number} num_steps
 * @property {ProbedPoint[]} points
 * @property {string | null} problem
 * @property {number} slowdown_limit
 * @property {ProfilingState} state
 */

/**
 * @typedef {object} RankView
 * @property {number | null} acknowledged_version
 * @property {string} client_version
 * @property {number} cp_rank
 * @property {number | null} current_step
 * @property {number} dp_rank
 * @property {boolean} emulated
 * @property {string} gpu_name
 * @property {string} gpu_uuid
 * @property {boolean} has_left
 * @property {string} host
 * @property {string | null} last_seen_at
 * @property {number} rank
 * @property {number} stage
 * @property {number} tp_rank
 */

/** @typedef {"default" | "greedy" | "balanced"} Reconfigure */

/**
 * @typedef {object} ReserveChoice
 * @property {number} cost_points
 * @property {number} jitter_percent
 * @property {number} slowdown_percent
 * @property {number} slowdown_without_percent
 * @property {number} time_error_percent
 */

/**
 * @typedef {object} SavingSources
 * @property {number} bubbles_j
 * @property {number} imbalance_j
 * @property {number} iteration_time_j
 */

/**
 * @typedef {object} StageOfStep
 * @property {number | null} energy_j
 * @property {number} num_clock_misses
 * @property {number} num_power_capped
 * @property {number} num_ranks
 * @property {number} num_thermally_capped
 * @property {number | null} sm_clock_mhz
 * @property {number} stage
 * @property {number} time_s
 */

/**
 * @typedef {object} StagesOfStep
 * @property {number | null} energy_j
 * @property {number} num_ranks
 * @property {(number | null)[]} plan_versions
 * @property {StageOfStep[]} stages
 * @property {number} step
 * @property {number} time_s
 * @property {number[]} unknown_versions
 */

/** @typedef {"plan" | "highest" | "default" | "profiling" | "mixed"} StepClocks */

/**
 * @typedef {object} Straggler
 * @property {string | null} from_time
 * @property {boolean} is_planned
 * @property {number} rank
 * @property {StragglerReason} reason
 * @property {number} slowdown
 * @property {StragglerSource} source
 * @property {string | null} until_time
 */

/** @typedef {"slow" | "power" | "thermal"} StragglerReason */

/** @typedef {"announced" | "detected"} StragglerSource */

/**
 * @typedef {object} TimelineOfPlan
 * @property {number} bubble_fraction
 * @property {[number, number][]} critical_path
 * @property {number} energy_j
 * @property {number} iteration_time_s
 * @property {TimelineRow[]} rows
 */

/**
 * @typedef {object} TimelineRow
 * @property {number} blocking_power_w
 * @property {number[]} chunks
 * @property {number[]} clock_mhz
 * @property {number} dp_rank
 * @property {number[]} duration_s
 * @property {number[]} energy_j
 * @property {number[]} float_s
 * @property {string[]} kinds
 * @property {number[]} microbatches
 * @property {number} stage
 * @property {number[]} start_s
 */

/**
 * @typedef {object} Timetable
 * @property {string} timezone
 * @property {TimetableWindow[]} windows
 */

/**
 * @typedef {object} TimetableStatus
 * @property {string} current_target
 * @property {string | null} next_change
 * @property {Timetable | null} timetable
 */

/**
 * @typedef {object} TimetableWindow
 * @property {Weekday[] | null} days
 * @property {string} from_time
 * @property {string} target
 * @property {string} until_time
 */

/**
 * @typedef {object} VersionSavings
 * @property {BaselineOrigin} baseline
 * @property {Estimate | null} baseline_energy_j
 * @property {Estimate | null} baseline_time_s
 * @property {string[]} caveats
 * @property {ComparedPlan[]} compared
 * @property {Deviation[]} deviations
 * @property {Estimate | null} energy_j
 * @property {number} num_left_out
 * @property {number} num_steps
 * @property {string} policy
 * @property {number} predicted_energy_j
 * @property {number} predicted_saving_percent
 * @property {number} predicted_time_s
 * @property {Estimate | null} saved_j
 * @property {Estimate | null} saving_percent
 * @property {Estimate | null} slowdown_percent
 * @property {string} target
 * @property {Estimate | null} time_s
 * @property {number} version
 */

/** @typedef {"mon" | "tue" | "wed" | "thu" | "fri" | "sat" | "sun"} Weekday */

export {};
