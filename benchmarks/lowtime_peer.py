"""lowtime 0.3.0, the public solver for pipeline frontiers, beside ours on the same pipeline.

It is installed from PyPI into an environment of its own, and its plans are judged by this
project's model: measured points, and the energy of the whole iteration.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import iteration_energy_j
from measured_process import BenchmarkError, run_process

REQUIREMENT = "lowtime==0.3.0"
ENVIRONMENT = Path(__file__).resolve().parent.parent / ".bench" / "lowtime-0.3.0"
DRIVER = Path(__file__).with_name("lowtime_driver.py")
INSTALL_GIVE_UP_S = 900.0
# Beyond the bound, for starting, fitting and the iteration under way.
GRACE_S = 240.0


@dataclass(frozen=True, kw_only=True)
class LowtimePlan:
    """One plan that lowtime yielded.

    Attributes:
        time_units: its iteration time as lowtime counts it, in units.
        cost_j: its energy beyond waiting, by its fitted curves, J.
        duration_units: per node, planned duration, in units.
        frequency_mhz: per node, the clock that lowtime itself assigns to that, MHz.
    """

    time_units: int
    cost_j: float
    duration_units: tuple[int, ...]
    frequency_mhz: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LowtimeRun:
    """One run of lowtime.

    Attributes:
        unit_time_s: what it counts time in, s.
        fit_s: fitting its curves, s.
        run_s: its iterations alone, s.
        process_s: the whole process, s.
        is_finished: it ended by itself, not by the bound.
        shortest_units: the iteration time with every instruction at its shortest, in units.
        longest_units: likewise at its longest.
        plans: in the order of finding, that is in falling time.
    """

    unit_time_s: float
    fit_s: float
    run_s: float
    process_s: float
    is_finished: bool
    shortest_units: int
    longest_units: int
    plans: tuple[LowtimePlan, ...]

    @property
    def done_share(self) -> float:
        """Return how much of the way from the slowest to the fastest plan it went, 0 to 1."""
        way_units = self.longest_units - self.shortest_units
        return (self.longest_units - self.plans[-1].time_units) / way_units if self.plans else 0.0


@dataclass(frozen=True, kw_only=True)
class JudgedPlan:
    """A plan's iteration time (s) and energy (J) on the measured points."""

    iteration_time_s: float
    energy_j: float


Rounding = Callable[[PipelineModel, LowtimePlan, float], Assignment]
"""From a plan in units (s) of time to one clock per instruction."""


def run_lowtime(model: PipelineModel, *, unit_time_s: float, bound_s: float) -> LowtimeRun:
    """Solve `model` with lowtime.

    Args:
        model: the pipeline.
        unit_time_s: what lowtime counts time in, s.
        bound_s: after so long it is told to stop, s.

    Raises:
        BenchmarkError: it cannot be installed, or failed.
    """
    python = _installed_python()
    with tempfile.TemporaryDirectory() as folder:
        problem, result = Path(folder) / "problem.json", Path(folder) / "result.json"
        problem.write_text(
            json.dumps(_problem(model, unit_time_s=unit_time_s, bound_s=bound_s)), encoding="utf-8"
        )
        process = run_process(
            [str(python), str(DRIVER), str(problem), str(result)], give_up_s=bound_s + GRACE_S
        )
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    shortest, longest = (
        round(max(earliest_finish_s(model.dag, durations))) for durations in found["unit_bounds"]
    )
    return LowtimeRun(
        unit_time_s=unit_time_s,
        fit_s=found["fit_s"],
        run_s=found["run_s"],
        process_s=process.process_s,
        is_finished=found["is_finished"],
        shortest_units=shortest,
        longest_units=longest,
        plans=tuple(
            LowtimePlan(
                time_units=plan["time_units"],
                cost_j=plan["cost_j"],
                duration_units=tuple(plan["duration_units"]),
                frequency_mhz=tuple(plan["frequency_mhz"]),
            )
            for plan in found["plans"]
        ),
    )


def own_clocks(model: PipelineModel, plan: LowtimePlan, unit_time_s: float) -> Assignment:
    """The clocks that lowtime assigns: up to a unit slower than planned, as it rounds time down."""
    del unit_time_s
    index: dict[int, dict[int, int]] = {}
    return [
        index.setdefault(id(points), _choice_by_frequency(points))[frequency_mhz]
        for points, frequency_mhz in zip(model.points, plan.frequency_mhz, strict=True)
    ]


def not_slower_clocks(model: PipelineModel, plan: LowtimePlan, unit_time_s: float) -> Assignment:
    """As Perseus says: the slowest efficient measured clock not slower than planned."""
    chosen: dict[tuple[int, int], int] = {}
    assignment: Assignment = []
    for points, units in zip(model.points, plan.duration_units, strict=True):
        key = (id(points), units)
        if key not in chosen:
            chosen[key] = _slowest_within(points, units * unit_time_s)
        assignment.append(chosen[key])
    return assignment


def judge(model: PipelineModel, run: LowtimeRun, rounding: Rounding) -> list[JudgedPlan]:
    """Every plan of a run on the measured points."""
    judged: list[JudgedPlan] = []
    for plan in run.plans:
        assignment = rounding(model, plan, run.unit_time_s)
        time_s = max(earliest_finish_s(model.dag, model.durations_s(assignment)))
        energy_j = iteration_energy_j(model, assignment, time_s)
        judged.append(JudgedPlan(iteration_time_s=time_s, energy_j=energy_j))
    return judged


def best_within(plans: Iterable[JudgedPlan], deadline_s: float) -> JudgedPlan | None:
    """The plan of least energy that takes at most `deadline_s`, if there is one."""
    return min(
        (plan for plan in plans if plan.iteration_time_s <= deadline_s),
        key=lambda plan: plan.energy_j,
        default=None,
    )


def _slowest_within(points: tuple[OperatingPoint, ...], limit_s: float) -> int:
    """Of points that no other beats in time and energy, slower means less energy."""
    choices = range(len(points))
    within = [choice for choice in choices if points[choice].time_s <= limit_s]
    if not within:
        return min(choices, key=lambda choice: points[choice].time_s)
    return min(within, key=lambda choice: points[choice].energy_j)


def _choice_by_frequency(points: tuple[OperatingPoint, ...]) -> dict[int, int]:
    return {point.frequency_mhz: choice for choice, point in enumerate(points)}


def _problem(model: PipelineModel, *, unit_time_s: float, bound_s: float) -> dict[str, Any]:
    """Return what the driver is given: each distinct curve once, and our DAG."""
    curves: list[dict[str, Any]] = []
    index: dict[int, int] = {}
    curve_of_node: list[int] = []
    for stage, points in zip(model.dag.stage, model.points, strict=True):
        if id(points) not in index:
            index[id(points)] = len(curves)
            curves.append(
                {
                    "points": [(p.time_s, p.energy_j, p.frequency_mhz) for p in points],
                    "blocking_power_w": model.stage_blocking_power_w[stage],
                }
            )
        curve_of_node.append(index[id(points)])
    return {
        "unit_time_s": unit_time_s,
        "bound_s": bound_s,
        "curves": curves,
        "curve_of_node": curve_of_node,
        "edges": [
            (before, node)
            for node in range(model.dag.num_nodes)
            for before in model.dag.predecessors(node)
        ],
    }


def _installed_python() -> Path:
    """The environment of lowtime's own, made at the first use.

    Raises:
        BenchmarkError: pip could not.
    """
    python, installed = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed"
    if installed.is_file():
        return python
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)],
        [str(python), "-m", "pip", "install", "--quiet", REQUIREMENT],
        # Compiles what it imports, so that the measured run does not.
        [str(python), "-c", "import lowtime.cost_model, lowtime.solver"],
    )
    print(f"installing {REQUIREMENT} into {ENVIRONMENT}", file=sys.stderr)
    for command in commands:
        try:
            subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL, timeout=INSTALL_GIVE_UP_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise BenchmarkError(f"{REQUIREMENT} cannot be installed from PyPI: {error}") from None
    installed.touch()
    return python
