"""Both of Megatron's schedules on four emulated GPUs, planned by a real planner.

Figures are medians over a phase's steps: a busy computer now and then holds up a single step. If it
holds up all of them, the run is repeated with time scaled up, which makes what the computer adds
smaller, and nothing else.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.integration.torch_launch import findings_of_ranks
from tests.planner.live import serve_process

if find_spec("megatron") is None:
    pytest.skip("needs megatron-core", allow_module_level=True)

_TRAINING = Path(__file__).with_name("megatron_emulated.py")
_NUM_RANKS = 4
_SCHEDULES = ("1f1b", "interleaved")
# Wall seconds per emulated second.
_TIME_SCALES = (3.0, 8.0)
_MAX_ERROR = 0.03
_MAX_SLOWDOWN = 0.01

Findings = dict[str, Any]

# Two runs at the most, each bounded by itself.
pytestmark = pytest.mark.timeout(660)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """What each rank found, by rank; both schedules in one launch, and again who was held up."""
    ranks: list[Findings] = [{} for _ in range(_NUM_RANKS)]
    schedules: tuple[str, ...] = _SCHEDULES
    for time_scale in _TIME_SCALES:
        folder = tmp_path_factory.mktemp("megatron-plans")
        for rank, found in enumerate(_trained(folder, schedules, time_scale)):
            ranks[rank].update(found)
        schedules = tuple(name for name in schedules if _was_held_up(Phases(ranks[0][name])))
        if not schedules:
            break
    return ranks


def _was_held_up(phases: Phases) -> bool:
    return phases.max_error >= _MAX_ERROR or phases.slowdown > _MAX_SLOWDOWN


def _trained(folder: Path, schedules: tuple[str, ...], time_scale: float) -> list[Findings]:
    with serve_process(folder / "planner.sqlite") as planner:
        environment = {
            "SCHEDULES": " ".join(schedules),
            "PLANNER_URL": str(planner.http.base_url),
            "TIME_SCALE": str(time_scale),
        }
        return findings_of_ranks(
            _TRAINING, folder, num_ranks=_NUM_RANKS, timeout_s=300, environment=environment
        )


class Phases:
    """What was measured before the plan and on it, and what was predicted of both."""

    def __init__(self, found: Findings) -> None:
        (version,) = found["plans"]
        self.plan: dict[str, Any] = version["plan"]
        steps = found["steps of the job"]
        # The first of each phase is a warm-up.
        self.baseline = [step for step in steps if step["plan_versions"] == [None]][1:]
        self.planned = [step for step in steps if step["plan_versions"] == [1]][1:]

    def errors(self) -> dict[str, float]:
        """By how much of the prediction each measured figure differs."""
        return {
            f"{phase} {figure}": _median(steps, figure) / predicted[predicted_figure] - 1
            for phase, steps, predicted in (
                ("baseline", self.baseline, self.plan["baseline"]),
                ("plan", self.planned, self.plan),
            )
            for figure, predicted_figure in (
                ("time_s", "iteration_time_s"),
                ("energy_j", "energy_j"),
            )
        }

    @property
    def max_error(self) -> float:
        """The largest of them."""
        return max(abs(error) for error in self.errors().values())

    @property
    def slowdown(self) -> float:
        """Measured, of the baseline's time."""
        return _median(self.planned, "time_s") / _median(self.baseline, "time_s") - 1

    @property
    def saving(self) -> float:
        """Measured, of the baseline's energy."""
        return 1 - _median(self.planned, "energy_j") / _median(self.baseline, "energy_j")


def _median(steps: list[dict[str, Any]], field: str) -> float:
    middle: float = median(step[field] for step in steps)
    return middle


@pytest.mark.parametrize("schedule", _SCHEDULES)
def test_the_order_that_is_registered_is_the_one_that_runs(
    ranks: list[Findings], schedule: str
) -> None:
    registration = ranks[0][schedule]["job"]["registration"]
    plan = Phases(ranks[0][schedule]).plan
    assert registration["schedule"] == {"1f1b": "1f1b", "interleaved": "explicit"}[schedule]
    for rank in ranks:
        found = rank[schedule]
        assert len(found["ran"]) == 16 * (1 + (schedule == "interleaved"))
        planned = [
            [kind, microbatch, chunk[0] if chunk else 0]
            for kind, microbatch, _, *chunk in plan["stages"][found["stage"]]
        ]
        assert found["ran"] == planned
        if schedule == "interleaved":
            assert found["ran"] == registration["order"][found["stage"]]
            places = [found["stage"], _NUM_RANKS + found["stage"]]
            assert registration["virtual_stages"][found["stage"]] == places


@pytest.mark.parametrize("schedule", _SCHEDULES)
def test_every_rank_follows_the_plan_from_the_same_step(
    ranks: list[Findings], schedule: str
) -> None:
    first_step = ranks[0][schedule]["plans"][0]["first_step"]
    for rank in ranks:
        steps = rank[schedule]["steps"]
        versions = [step["plan_version"] for step in steps]
        assert versions == [None] * first_step + [1] * (len(steps) - first_step)
        assert first_step >= 3
        assert len(steps) - first_step >= 5
        assert all(step["num_unplanned"] == 0 for step in steps)


@pytest.mark.parametrize("schedule", _SCHEDULES)
def test_time_and_energy_are_as_predicted_with_the_plan_and_without(
    ranks: list[Findings], schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = Phases(ranks[0][schedule])
    with capsys.disabled():
        shown = ", ".join(f"{of} {100 * error:+.1f} %" for of, error in phases.errors().items())
        print(f"\n{schedule}, emulated, measured against predicted: {shown}")
    assert phases.max_error < _MAX_ERROR


@pytest.mark.parametrize("schedule", _SCHEDULES)
def test_the_plan_saves_energy_at_hardly_any_slowdown(
    ranks: list[Findings], schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = Phases(ranks[0][schedule])
    with capsys.disabled():
        print(
            f"\n{schedule}, emulated: {100 * phases.saving:.1f} % saved (predicted"
            f" {phases.plan['saving_percent']:.1f} %) at {100 * phases.slowdown:+.1f} % time"
        )
    assert phases.saving > 0.08
    assert phases.slowdown <= _MAX_SLOWDOWN
