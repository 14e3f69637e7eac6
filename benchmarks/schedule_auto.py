"""Gain of `--schedule auto` over 1F1B: published, fitted and unbalanced profiles.

Both plans have the same deadline: 1F1B at the highest clocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from benchmark_report import Report, at_most, run_benchmark, show_progress, table_of
from fitted_models import fitted_model_names, load_fitted_model
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import PlanOptions
from gpt3_cells import A40, A100, add_profiles_argument
from made_profiles import ASSUMPTION, derive_parts, scaled
from measured_process import BenchmarkError

NUM_MICROBATCHES = 16
NUM_CHUNKS = 2
# Every second stage of the unbalanced profiles takes so much longer than the others.
UNBALANCE = 1.3


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pipeline to be planned twice."""

    name: str
    profile: StageProfile
    blocking_power_w: float


@dataclass(frozen=True, kw_only=True)
class AutoFigure:
    """One pipeline under 1F1B and under the order that was chosen; all predicted.

    Attributes:
        saving_1f1b_percent: of 1F1B's plan against 1F1B at the highest clocks.
        saving_auto_percent: of the chosen order's plan, against the same.
        less_than_1f1b_percent: by how much the chosen plan's energy is below 1F1B's plan's.
        gap_percent: of the chosen plan.
    """

    case: str
    chosen: str
    saving_1f1b_percent: float
    saving_auto_percent: float
    less_than_1f1b_percent: float
    time_to_1f1b: float
    gap_percent: float


def measure(arguments: argparse.Namespace) -> Report:
    """Plan every case with 1F1B and with auto."""
    figures = [_figure(case) for case in _cases(arguments)]
    columns = {
        "pipeline": "{case}",
        "chosen": "{chosen}",
        "1f1b, %": "{saving_1f1b_percent:.2f}",
        "auto, %": "{saving_auto_percent:.2f}",
        "less, %": "{less_than_1f1b_percent:.2f}",
        "time to 1f1b's": "{time_to_1f1b:.3f}",
        "gap, %": "{gap_percent:.3f}",
    }
    return Report(
        figures={
            "num_microbatches": NUM_MICROBATCHES,
            "derived": ASSUMPTION,
            "cases": figures,
        },
        text=f"{NUM_MICROBATCHES} microbatches, predicted; savings against 1F1B at the highest"
        f" clocks\n'in parts' is {ASSUMPTION}\n\n{table_of(figures, columns)}",
        limits=[
            at_most(
                f"{figure.case}: energy of auto to that of 1f1b's plan",
                1 - figure.less_than_1f1b_percent / 100,
                1.0,
            )
            for figure in figures
        ],
    )


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for gpu in (A100, A40):
        profile = read_stage_profile(gpu.profile(arguments.profiles))
        for change, changed in (
            ("", profile),
            (", unbalanced", _unbalanced(profile)),
            (", in parts", derive_parts(profile, NUM_CHUNKS)),
        ):
            name, power_w = f"gpt3-175b {gpu.name}{change}", gpu.blocking_power_w
            yield Case(name=name, profile=changed, blocking_power_w=power_w)
    for name in fitted_model_names():
        model = load_fitted_model(name)
        yield Case(
            name=f"{name} (fitted)",
            profile=model.profile,
            blocking_power_w=model.blocking_power_w,
        )


def _unbalanced(profile: StageProfile) -> StageProfile:
    """Every second stage's times and energies larger."""
    factors = {0: (1.0, 1.0), 1: (UNBALANCE, UNBALANCE)}
    return scaled(profile, lambda stage, *_: factors[stage % 2])


def _figure(case: Case) -> AutoFigure:
    show_progress(case.name)
    request = PlanRequest(
        profile=case.profile,
        num_microbatches=NUM_MICROBATCHES,
        options=PlanOptions(blocking_power_w=(case.blocking_power_w,)),
    )
    one_f_one_b = make_plan(request).plan
    chosen = make_plan(request.with_options(schedule="auto")).plan
    baseline_j = one_f_one_b.predicted.baseline_energy_j
    gap_percent = chosen.predicted.gap_percent
    if gap_percent is None:  # policy frontier always knows it
        raise BenchmarkError(f"{case.name}: no bound")
    return AutoFigure(
        case=case.name,
        chosen=chosen.schedule,
        saving_1f1b_percent=one_f_one_b.predicted.saving_percent,
        saving_auto_percent=100 * (1 - chosen.predicted.energy_j / baseline_j),
        less_than_1f1b_percent=100
        * (1 - chosen.predicted.energy_j / one_f_one_b.predicted.energy_j),
        time_to_1f1b=chosen.iteration_time_s / one_f_one_b.iteration_time_s,
        gap_percent=gap_percent,
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(options)
    run_benchmark(options, measure)
