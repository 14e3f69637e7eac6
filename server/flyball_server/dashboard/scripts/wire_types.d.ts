// The API's answers that the page reads (docs/rest.md), for `make check-dashboard`.
// Written by docs/scripts/write_wire_types.py from the API's OpenAPI document: do not edit.

export type BaselineOrigin = "none" | "interleaved" | "apart" | "itself";

export interface ClockTransitions {
  call_p50_s: number | null;
  call_p95_s: number | null;
  down_p50_s: number;
  down_p5_s: number;
  down_p95_s: number;
  queues_in_node: boolean | null;
  starts_settled: boolean;
  up_p50_s: number;
  up_p5_s: number;
  up_p95_s: number;
}

export interface ComparedPlan {
  energy_j: number;
  iteration_time_s: number;
  name: string;
}

export type ComparisonState = "none" | "running" | "done" | "ended";

export interface ComparisonStatus {
  num_measured_pairs: number;
  num_pairs: number;
  state: ComparisonState;
  version: number | null;
}

export type ConditionName = "no ranks" | "ranks missing" | "refused" | "no clocks" | "slow GPU" | "steps differ";

export type DelaySource = "given" | "measured";

export interface Deviation {
  is_counted: boolean;
  kind: DeviationKind;
  num_events: number;
  num_steps: number;
  text: string;
}

export type DeviationKind = "overrun" | "capped" | "unplanned" | "clock-lost" | "no-clocks" | "unsettled" | "missing" | "default-clocks";

export interface EnergyFactors {
  co2_g_per_kwh: number | null;
  currency: string;
  price_per_kwh: number | null;
}

export type EnergyScope = "gpu" | "module";

export interface Estimate {
  high: number | null;
  low: number | null;
  mean: number;
  num_steps: number;
}

export interface FrontierPoint {
  deadline_s: number;
  energy_j: number;
  gap_percent: number;
  iteration_time_s: number;
  lower_bound_j: number;
}

export interface Headline {
  caveats: string[];
  is_measured: boolean;
  text: string;
  time_text: string;
  tone: HeadlineTone;
}

export type HeadlineTone = "gain" | "trade" | "loss" | "none";

export interface JobCondition {
  action: string | null;
  name: ConditionName;
}

export interface JobFrontier {
  baseline: ComparedPlan;
  constant: ComparedPlan[];
  envpipe: ComparedPlan[];
  global_clock: ComparedPlan[];
  job_id: string;
  points: FrontierPoint[];
  reserve: Reserve;
  solve_s: number;
  transitions: ClockTransitions | null;
}

export interface JobOverview {
  active_version: number | null;
  condition: JobCondition | null;
  created_at: string;
  delays: PlannedDelays | null;
  deviations: Deviation[];
  emulated: boolean;
  factors: EnergyFactors;
  headline: Headline | null;
  is_caught_up: boolean;
  job_id: string;
  last_seen_at: string;
  measured: MeasuredIteration | null;
  measured_baseline_energy_j: Estimate | null;
  measured_baseline_time_s: Estimate | null;
  missed: MissedTarget | null;
  newest_version: number | null;
  num_microbatches: number;
  num_present: number;
  num_ranks: number;
  num_registered: number;
  num_stages: number;
  num_steps: number;
  num_unknown_steps: number;
  own_plan: OwnPlanOfStep | null;
  policy: string;
  predicted: PredictedIteration | null;
  problem: string | null;
  saved_j: Estimate | null;
  saved_of_j: number | null;
  saving_percent: Estimate | null;
  schedule: string;
  slowdown_percent: Estimate | null;
  state: JobState;
  target: string;
}

export interface JobReport {
  delays: PlannedDelays | null;
  deviations: Deviation[];
  emulated: boolean;
  energy_j: number | null;
  energy_scope: EnergyScope | null;
  factors: EnergyFactors;
  headline: Headline | null;
  job_id: string;
  notes: string[];
  num_profiling_steps: number | null;
  num_ranks: number;
  num_steps: number;
  num_unknown_steps: number;
  order_advice: OrderAdvice | null;
  profiling_energy_j: number | null;
  profiling_time_s: number | null;
  saved_j: Estimate | null;
  saved_of_j: number | null;
  time_s: number;
  versions: VersionSavings[];
}

export type JobState = "awaiting-profile" | "profiling" | "planned" | "planning-failed" | "ended" | "expired";

export interface MeasuredIteration {
  clocks: StepClocks;
  energy_j: number | null;
  first_step: number;
  iteration_time_s: number;
  last_step: number;
  num_steps: number;
  version: number | null;
}

export interface MissedTarget {
  nearest: string;
  target: string;
}

export interface OrderAdvice {
  instead_of: string;
  line: string;
  most_held: number;
  most_held_now: number;
  saving_percent: number;
  schedule: string;
}

export interface Overview {
  jobs: JobOverview[];
}

export interface OwnPlanOfStep {
  highest_mhz: number;
  lowest_mhz: number;
  num_ranks: number;
  predicted_saved_j: number;
  slack: number;
  step: number;
  text: string;
}

export type PlanKind = "plan" | "comparison" | "separate" | "probe";

export interface PlanSummary {
  baseline_cycle: boolean[];
  created_at: string;
  first_step: number | null;
  highest_mhz: number | null;
  kind: PlanKind;
  policy: string;
  predicted: PredictedIteration | null;
  schedule: string;
  stage_clock_mhz: number[];
  target: string;
  version: number;
}

export interface PlanTimeline {
  baseline: TimelineOfPlan;
  emulated: boolean;
  is_as_planned: boolean;
  job_id: string;
  num_microbatches: number;
  plan: TimelineOfPlan;
  schedule: string;
  version: number;
}

export interface PlannedDelays {
  down_ms: number | null;
  gpus_at_once: number | null;
  gpus_in_node: number | null;
  jitter_percent: number | null;
  num_steps: number | null;
  tail_ms: number;
  tail_source: DelaySource | null;
  text: string;
  transfer_ms: number[];
  transfer_source: DelaySource | null;
  up_ms: number | null;
  version: number | null;
}

export interface PredictedIteration {
  baseline_energy_j: number;
  baseline_iteration_time_s: number;
  compared: ComparedPlan[];
  energy_j: number;
  gap_percent: number | null;
  iteration_time_s: number;
  late_changes_j: number;
  lower_bound_j: number | null;
  reserve: Reserve;
  saving_percent: number;
  saving_sources: SavingSources | null;
  stragglers_s: number;
}

export interface ProbedPoint {
  chunk: number;
  energy_error_j: number;
  energy_j: number;
  frequency_mhz: number;
  instruction: string;
  jitter: number;
  num_probes: number;
  stage: number;
  time_error_s: number;
  time_s: number;
}

export type ProfilingState = "off" | "waiting" | "probing" | "finished" | "refused";

export interface ProfilingStatus {
  blocking_power_error_w: number[] | null;
  blocking_power_w: number[] | null;
  emulated: boolean;
  extra_energy_j: number | null;
  extra_time_s: number | null;
  job_id: string;
  largest_slowdown: number | null;
  num_steps: number;
  points: ProbedPoint[];
  problem: string | null;
  slowdown_limit: number;
  state: ProfilingState;
}

export interface Reserve {
  choice: ReserveChoice | null;
  share: number;
}

export interface ReserveChoice {
  cost_points: number;
  jitter_percent: number;
  slowdown_percent: number;
  slowdown_without_percent: number;
  time_error_percent: number;
}

export interface SavingSources {
  bubbles_j: number;
  imbalance_j: number;
  iteration_time_j: number;
}

export interface StageOfStep {
  energy_j: number | null;
  num_clock_misses: number;
  num_power_capped: number;
  num_ranks: number;
  num_thermally_capped: number;
  sm_clock_mhz: number | null;
  stage: number;
  time_s: number;
}

export interface StagesOfStep {
  energy_j: number | null;
  num_ranks: number;
  plan_versions: (number | null)[];
  stages: StageOfStep[];
  step: number;
  time_s: number;
  unknown_versions: number[];
}

export type StepClocks = "plan" | "highest" | "default" | "profiling" | "mixed";

export interface Straggler {
  from_time: string | null;
  is_planned: boolean;
  rank: number;
  reason: StragglerReason;
  slowdown: number;
  source: StragglerSource;
  until_time: string | null;
}

export type StragglerReason = "slow" | "power" | "thermal";

export type StragglerSource = "announced" | "detected";

export interface TimelineOfPlan {
  bubble_fraction: number;
  critical_path: [number, number][];
  energy_j: number;
  iteration_time_s: number;
  rows: TimelineRow[];
}

export interface TimelineRow {
  blocking_power_w: number;
  chunks: number[];
  clock_mhz: number[];
  dp_rank: number;
  duration_s: number[];
  energy_j: number[];
  float_s: number[];
  kinds: string[];
  microbatches: number[];
  stage: number;
  start_s: number[];
}

export interface Timetable {
  timezone: string;
  windows: TimetableWindow[];
}

export interface TimetableStatus {
  current_target: string;
  next_change: string | null;
  timetable: Timetable | null;
}

export interface TimetableWindow {
  days: Weekday[] | null;
  from_time: string;
  target: string;
  until_time: string;
}

export interface VersionSavings {
  baseline: BaselineOrigin;
  baseline_energy_j: Estimate | null;
  baseline_time_s: Estimate | null;
  caveats: string[];
  compared: ComparedPlan[];
  deviations: Deviation[];
  energy_j: Estimate | null;
  num_left_out: number;
  num_steps: number;
  policy: string;
  predicted_energy_j: number;
  predicted_saving_percent: number;
  predicted_time_s: number;
  saved_j: Estimate | null;
  saving_percent: Estimate | null;
  slowdown_percent: Estimate | null;
  target: string;
  time_s: Estimate | null;
  version: number;
}

export type Weekday = "mon" | "tue" | "wed" | "thu" | "fri" | "sat" | "sun";
