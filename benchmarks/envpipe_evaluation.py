"""EnvPipe's evaluation on emulated GPUs, with Flyball's plans added: its figures 9 to 13.

Pipelines of emulated GPUs train in virtual time, each a job at a real planner: the planner gets the
profile over REST, each rank session registers, receives its part of the plan, acknowledges it, and
runs it from the step that the planner names. What they took stands beside what was predicted.
Models, microbatches and policies are those of EnvPipe's scripts `fig9_a.sh` to `fig13.sh`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmark_report import Report, at_most, figures_of, run_benchmark, show_progress, table_of
from fitted_models import EvaluatedModel, load_fitted_model
from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import (
    DEFAULT_PHYSICS,
    EmulatedGpu,
    EmulatedGpuSettings,
    EmulatedNode,
    LeapingClock,
)
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_lab.emulation.emulated_pipeline import EmulatedRank, Order, run_step
from flyball_profiles.examples import EXAMPLE_PROFILE_NAME, load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_server.planning.scheduling import ScheduleContext, extra_warmup_forwards
from flyball_wire.measurements import StepMeasurement
from flyball_wire.messages import JobRegistration
from flyball_wire.plan_options import Policy, Reconfigure
from gpt3_cells import A100
from made_profiles import scaled
from measured_process import BenchmarkError
from served_planner import served_planner

LAST_STAGE_FACTOR = 1.3
# Where clocks change at once: in virtual time nothing but rounding differs.
MAX_DIFFERENCE_PERCENT = 0.01
# Of figure 12.
_NUM_GPUS, _GPUS_PER_NODE = 16, 8
# Of the energy counter: so fine that a step's energy is exact, and the same in every run.
_COUNTER_PERIOD_S = 1e-9
_PATIENCE_S, _CALL_TIMEOUT_S = 60.0, 30.0
# Virtual steps pass so fast that the ranks' own threads would hardly run.
_YIELD_S = 0.002
_LINK_TIMES = LinkTimes(poll_wait_s=1.0)
_ACTIVATIONS = {"forward": 1, "backward": -1, "backward_weight": -1}


@dataclass(frozen=True)
class Manner:
    """Choice of clocks and order, by the planner's names; `label` names it in tables."""

    label: str
    policy: Policy
    schedule: str
    reconfigure: Reconfigure


@dataclass(frozen=True, kw_only=True)
class EvaluatedRun:
    """One run of a model; `num_pipelines` data-parallel pipelines, all equal."""

    model: EvaluatedModel
    manner: Manner
    num_microbatches: int
    num_pipelines: int = 1

    @property
    def title(self) -> str:
        """Name of the run in messages."""
        return f"{self.model.name}, {self.num_microbatches} microbatches: {self.manner.label}"


BASELINE = Manner("baseline", Policy.BASELINE, "1f1b", Reconfigure.DEFAULT)
UNIFORM = Manner("uniform", Policy.UNIFORM, "1f1b", Reconfigure.DEFAULT)
ENVELOPE_1F1B = Manner("envelope, 1F1B, balanced", Policy.ENVELOPE, "1f1b", Reconfigure.BALANCED)
ENVELOPE_DEFAULT, ENVELOPE_GREEDY, ENVPIPE = (
    Manner(f"envelope, EnvPipe's order, {reconfigure}", Policy.ENVELOPE, "envpipe", reconfigure)
    for reconfigure in (Reconfigure.DEFAULT, Reconfigure.GREEDY, Reconfigure.BALANCED)
)
FRONTIERS = FRONTIER_1F1B, FRONTIER_ENVPIPE = (
    Manner("frontier, 1F1B", Policy.FRONTIER, "1f1b", Reconfigure.BALANCED),
    Manner("frontier, EnvPipe's order", Policy.FRONTIER, "envpipe", Reconfigure.BALANCED),
)


# ---------------------------------------------------------------------- models


def example_model() -> EvaluatedModel:
    """Return the shipped GPT-3 175B, which EnvPipe did not run, with 4 microbatches per stage."""
    profile = load_example_profile()
    return EvaluatedModel(
        name=EXAMPLE_PROFILE_NAME,
        gpu=A100.table_name,
        num_microbatches=4 * profile.num_stages,
        blocking_power_w=A100.blocking_power_w,
        profile=profile,
    )


def merged(model: EvaluatedModel, num_pipelines: int) -> StageProfile:
    """Return the profile of equal pipelines merged: energies and ranks of a stage add up."""
    num_ranks = tuple(num_pipelines * num for num in model.profile.num_ranks_per_stage)
    profile = scaled(model.profile, lambda *_: (1.0, num_pipelines))
    return replace(profile, num_ranks_per_stage=num_ranks)


def with_heavier_last_stage(model: EvaluatedModel) -> EvaluatedModel:
    """Return the model with the last stage's times and energies larger."""
    last = model.profile.num_stages - 1
    return replace(
        model,
        name=f"{model.name}, last stage x {LAST_STAGE_FACTOR:g}",
        profile=scaled(
            model.profile,
            lambda stage, *_: (LAST_STAGE_FACTOR,) * 2 if stage == last else (1.0, 1.0),
        ),
    )


# ---------------------------------------------------------------------- figures

_V100_MODELS = ("bert-336m", "gpt-125m", "megatron-125m", "resnet-152")
_RTX3090_MODELS = ("bert-1.3b", "bert-3.9b", "gpt-350m", "megatron-350m", "megatron-760m")
_RECONFIGURED = (ENVELOPE_DEFAULT, ENVELOPE_GREEDY, ENVPIPE, *FRONTIERS)
# Titles, fitted models, and the policies and orders that each of them runs with.
_FIGURES: dict[str, tuple[str, tuple[str, ...], tuple[Manner, ...]]] = {
    "9": (
        "throughput and energy of the models",
        (*_V100_MODELS, *_RTX3090_MODELS),
        (BASELINE, UNIFORM, ENVPIPE, *FRONTIERS),
    ),
    "10": (
        "what each part brings",
        ("bert-1.3b", "gpt-350m"),
        (BASELINE, UNIFORM, ENVELOPE_1F1B, *_RECONFIGURED),
    ),
    "11": ("reconfiguration policies", _V100_MODELS, (BASELINE, *_RECONFIGURED)),
    "12": (
        "16 GPUs on two nodes, data-parallel x pipeline-parallel",
        ("megatron-1.3b-pp8", "megatron-1.3b-pp4"),
        (BASELINE, ENVPIPE, *FRONTIERS),
    ),
    "13": (
        "K, 2K and 4K microbatches, K the number of stages",
        _V100_MODELS,
        (BASELINE, ENVPIPE, *FRONTIERS),
    ),
    "orders": (
        "EnvPipe's order against 1F1B, both with frontier",
        (*_V100_MODELS, *_RTX3090_MODELS),
        FRONTIERS,
    ),
}

Group = tuple[EvaluatedRun, ...]
"""Runs of a model that are compared with the first of them."""


def groups_of(figure: str) -> Iterator[Group]:
    """Yield the runs of a figure of EnvPipe's paper, or of `orders`."""
    _, names, manners = _FIGURES[figure]
    models = [*map(load_fitted_model, names), *([example_model()] if figure != "12" else ())]
    if figure == "orders":
        models += [with_heavier_last_stage(model) for model in models]
    for model in models:
        num_stages = model.profile.num_stages
        num_pipelines = _NUM_GPUS // num_stages if figure == "12" else 1
        # K, the number of stages, fills the pipeline once.
        filling = [num_stages, 2 * num_stages, 4 * num_stages]
        usual = [model.num_microbatches // num_pipelines]
        for num_microbatches in filling if figure == "13" else usual:
            yield tuple(
                EvaluatedRun(
                    model=model,
                    manner=manner,
                    num_microbatches=num_microbatches,
                    num_pipelines=num_pipelines,
                )
                for manner in manners
            )


# ---------------------------------------------------------------------- a run


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Time and energy of one run: emulated, and as the planner had predicted it.

    Attributes:
        emulated_iteration_time_s: mean over the steps on the plan, s.
        emulated_energy_j: energy of an iteration over all GPUs, mean over the steps, J.
        predicted_iteration_time_s, predicted_energy_j: the plan's own figures.
        lower_bound_j: lower bound of the plan's energy, J; None: its policy has none.
        num_switches: clocks set in an iteration, all GPUs; the last one's.
        peak_activations: per stage, the most microbatches held for their backward.
    """

    emulated_iteration_time_s: float
    emulated_energy_j: float
    predicted_iteration_time_s: float
    predicted_energy_j: float
    lower_bound_j: float | None
    num_switches: int
    peak_activations: tuple[int, ...]

    @property
    def time_difference_percent(self) -> float:
        """Excess of the emulated time over the predicted one, %."""
        return 100 * (self.emulated_iteration_time_s / self.predicted_iteration_time_s - 1)

    @property
    def energy_difference_percent(self) -> float:
        """Excess of the emulated energy over the predicted one, %."""
        return 100 * (self.emulated_energy_j / self.predicted_energy_j - 1)


def emulate(
    planner_url: str,
    job_id: str,
    run: EvaluatedRun,
    *,
    num_steps: int,
    settings: EmulatedGpuSettings = DEFAULT_PHYSICS,
) -> RunResult:
    """Plan and train on the plan, in virtual time; its first step is a warm-up and not counted.

    Args:
        planner_url: of a planner without this job.
        job_id: the job.
        run: what is run.
        num_steps: counted, at least 1.
        settings: of the emulated GPUs; each has a seed of its own.

    Raises:
        BenchmarkError: the planner failed or refused, or no plan took effect.
    """
    profile = merged(run.model, run.num_pipelines)
    try:
        with PlannerClient(planner_url, timeout_s=_CALL_TIMEOUT_S) as planner:
            version = _register(planner, job_id, run, profile)
            plan = planner.get_plan(job_id, version).plan
            orders: list[Order] = [
                tuple((str(kind), int(microbatch)) for kind, microbatch, *_ in stage)
                for stage in plan["stages"]
            ]
            ranks = _make_ranks(planner, job_id, run, orders, settings)
            with _started(ranks):
                activated = planner.get_first_step(job_id, version, wait_s=_PATIENCE_S)
                if activated.first_step is None:
                    raise BenchmarkError(f"{run.title}: not all ranks acknowledged the plan")
                steps, num_switches = _train(ranks, version, num_steps)
    except PlannerError as error:
        raise BenchmarkError(f"{run.title}: {error}") from None
    energies_j = [[of_rank.energy_j for of_rank in step] for step in steps]
    num_unplanned = sum(of_rank.num_unplanned for step in steps for of_rank in step)
    if num_unplanned or any(None in step_j for step_j in energies_j):
        raise BenchmarkError(f"{run.title}: {num_unplanned} instructions ran outside the plan")
    return RunResult(
        emulated_iteration_time_s=fmean(max(of_rank.time_s for of_rank in step) for step in steps),
        emulated_energy_j=fmean(sum(rank_j or 0.0 for rank_j in step_j) for step_j in energies_j),
        predicted_iteration_time_s=float(plan["iteration_time_s"]),
        predicted_energy_j=float(plan["energy_j"]),
        lower_bound_j=plan["lower_bound_j"],
        num_switches=num_switches,
        # Activations are held from a forward to the end of its backward.
        peak_activations=tuple(
            max(accumulate(_ACTIVATIONS.get(kind, 0) for kind, _ in order)) for order in orders
        ),
    )


def _register(planner: PlannerClient, job_id: str, run: EvaluatedRun, profile: StageProfile) -> int:
    """Register the job with its profile; return the version of its plan."""
    manner = run.manner
    context = ScheduleContext(profile=profile, num_microbatches=run.num_microbatches)
    registration = JobRegistration(
        num_stages=profile.num_stages,
        num_microbatches=run.num_microbatches,
        num_ranks=run.num_pipelines * profile.num_stages,
        schedule=manner.schedule,
        extra_forwards=extra_warmup_forwards(context) if manner.schedule == "envpipe" else None,
        policy=manner.policy,
        reconfigure=manner.reconfigure,
        blocking_power_w=(run.model.blocking_power_w,),
        emulated=True,
    )
    planner.put_job(job_id, registration)
    version = planner.put_profile_csv(job_id, write_stage_profile(profile)).newest_version
    if version is None:
        raise BenchmarkError(f"{run.title}: the planner made no plan")
    return version


def _make_ranks(
    planner: PlannerClient,
    job_id: str,
    run: EvaluatedRun,
    orders: Sequence[Order],
    settings: EmulatedGpuSettings,
) -> list[EmulatedRank]:
    """Return all ranks of the run, pipeline by pipeline, not started yet."""
    model, ranks = run.model, list[EmulatedRank]()
    for number in range(run.num_pipelines * len(orders)):
        if number % _GPUS_PER_NODE == 0:
            node = EmulatedNode()
        pipeline, stage = divmod(number, len(orders))
        clock = LeapingClock()
        gpu = EmulatedGpu(
            model.profile,
            stage,
            blocking_power_w=model.blocking_power_w,
            settings=replace(settings, seed=settings.seed + number),
            node=node,
            counter_period_s=_COUNTER_PERIOD_S,
            clock=clock,
            product=model.gpu.upper(),
        )
        session = RankSession(
            gpu=gpu,
            job_id=job_id,
            rank=number,
            stage=stage,
            dp_rank=pipeline,
            planner=planner,
            times=_LINK_TIMES,
        )
        ranks.append(
            EmulatedRank(
                pipeline=pipeline,
                stage=stage,
                order=orders[stage],
                session=session,
                gpu=gpu,
                clock=clock,
            )
        )
    return ranks


@contextmanager
def _started(ranks: Sequence[EmulatedRank]) -> Iterator[None]:
    """Start the sessions of all ranks, and close them at the end."""
    try:
        for rank in ranks:
            rank.session.start()
        yield
    finally:
        # One after the other they would wait for each other's last calls.
        with ThreadPoolExecutor(len(ranks)) as pool:
            list(pool.map(lambda rank: rank.session.close(), ranks))


def _train(
    ranks: Sequence[EmulatedRank], version: int, num_steps: int
) -> tuple[list[tuple[StepMeasurement, ...]], int]:
    """Train until `num_steps` and a warm-up ran on the plan on every rank.

    Returns:
        Measurements of these steps, and the clocks set in the last one.
    """
    num_stages = 1 + max(rank.stage for rank in ranks)
    deadline_s = time.monotonic() + _PATIENCE_S
    on_plan: list[tuple[StepMeasurement, ...]] = []
    totals = [0]
    while len(on_plan) <= num_steps:
        measured = run_step(ranks, num_stages=num_stages)
        totals.append(sum(rank.session.clock_report.num_switches for rank in ranks))
        if all(of_rank.plan_version == version for of_rank in measured):
            on_plan.append(measured)
        elif time.monotonic() > deadline_s:
            raise BenchmarkError(f"plan {version} took effect on some ranks only")
        else:
            time.sleep(_YIELD_S)
    return on_plan[1:], totals[-1] - totals[-2]


# ---------------------------------------------------------------------- rows

Row = dict[str, Any]
_COLUMNS = {
    "": "{label}",
    "time, s": "{emulated_iteration_time_s:z.4f}",
    "time differs, %": "{time_difference_percent:+z.3f}",
    "energy, J": "{emulated_energy_j:z.1f}",
    "energy differs, %": "{energy_difference_percent:+z.3f}",
    "slowdown, %": "{slowdown_percent:+z.2f}",
    "saving, %": "{energy_saving_percent:z.2f}",
    "switches": "{num_switches}",
    "held": "{peak_activations}",
}


def row_of(run: EvaluatedRun, result: RunResult, reference: RunResult) -> Row:
    """Return the figures of a run, compared with the first run of its group."""
    slowdown = result.emulated_iteration_time_s / reference.emulated_iteration_time_s - 1
    saving = 1 - result.emulated_energy_j / reference.emulated_energy_j
    return {
        "model": run.model.name,
        "gpu": run.model.gpu,
        "data_parallel": run.num_pipelines,
        "pipeline_parallel": run.model.profile.num_stages,
        "num_microbatches": run.num_microbatches,
        "label": run.manner.label,
        **figures_of(result),
        "slowdown_percent": 100 * slowdown,
        "energy_saving_percent": 100 * saving,
    }


def _text(figure: str, groups: Sequence[Sequence[Row]]) -> str:
    blocks = [f"{figure}: {_FIGURES[figure][0]} (emulated GPUs)"]
    for rows in groups:
        heading = (
            "{model} on {gpu}, {data_parallel} x {pipeline_parallel}, {num_microbatches}"
            " microbatches; profile fitted, not measured\n"
        )
        blocks.append(heading.format_map(rows[0]) + table_of(rows, _COLUMNS))
    return "\n\n".join(blocks)


def measure(arguments: argparse.Namespace) -> Report:
    """Run the figures; a run that two of them share is made once."""
    latency_ms = arguments.switch_latency
    settings = (
        DEFAULT_PHYSICS if latency_ms is None else EmulatedGpuSettings.exact_delay(latency_ms / 1e3)
    )
    results: dict[tuple[str, Manner, int, int], RunResult] = {}
    rows: dict[str, list[list[Row]]] = {}
    with tempfile.TemporaryDirectory() as folder, served_planner(Path(folder)) as planner:

        def result_of(run: EvaluatedRun) -> RunResult:
            # A model of a name has one profile.
            key = run.model.name, run.manner, run.num_microbatches, run.num_pipelines
            if key not in results:
                show_progress(run.title)
                job_id = f"run-{len(results)}"
                results[key] = emulate(
                    planner.url, job_id, run, num_steps=arguments.steps, settings=settings
                )
            return results[key]

        for figure in arguments.figure or _FIGURES:
            rows[figure] = [
                [row_of(run, result_of(run), result_of(group[0])) for run in group]
                for group in groups_of(figure)
            ]
    largest = {
        name: max(abs(getattr(result, name)) for result in results.values())
        for name in ("time_difference_percent", "energy_difference_percent")
    }
    return Report(
        figures={"emulated": True, "largest": largest, "rows": rows},
        text="\n\n\n".join(_text(figure, groups) for figure, groups in rows.items())
        + "\n\nemulated and predicted differ by at most {:.4f} % (time) and {:.4f} % (energy);"
        " nothing here is a real GPU's".format(*largest.values()),
        # No plan has late clocks in its prediction: their difference is a result.
        limits=[
            at_most(name, value, MAX_DIFFERENCE_PERCENT)
            for name, value in largest.items()
            if latency_ms == 0
        ],
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--figure",
        choices=tuple(_FIGURES),
        action="append",
        help="of EnvPipe's paper, or EnvPipe's order against 1F1B (default: all)",
    )
    options.add_argument("--steps", type=int, default=3, help="averaged (default: %(default)s)")
    options.add_argument(
        "--switch-latency",
        metavar="MS",
        type=float,
        help="delay of every clock change; 0: emulated and predicted must agree (default: random,"
        " as measured on real GPUs in nodes of eight)",
    )
    run_benchmark(options, measure)
