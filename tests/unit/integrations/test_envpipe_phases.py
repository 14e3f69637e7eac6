"""EnvPipe's phases of a script, and its custom partitions, without processes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
deepspeed = pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from flyball_integrations import envpipe  # noqa: E402 - after what it needs


class TwoRanks:
    """This rank and another one, whose facts a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.others = [0, 0]
        self.session = SimpleNamespace(active_version=None, history=())
        monkeypatch.setattr("deepspeed.comm.all_reduce", self._all_reduce)

    def _all_reduce(self, flags: Any, op: object) -> None:  # noqa: ANN401 - torch has no types
        assert op == deepspeed.comm.ReduceOp.MAX
        others = torch.tensor(self.others[: len(flags)], dtype=torch.int)
        torch.maximum(flags, others, out=flags)

    def wait(self, limit_s: float = 60.0, *, is_attached: bool = True) -> envpipe.PlanWait:
        engine: Any = SimpleNamespace(device="cpu", global_rank=0)
        session: Any = self.session if is_attached else None
        return envpipe.PlanWait(engine, session, limit_s)

    def run_step(self, wait: envpipe.PlanWait, step: int, version: int | None) -> None:
        self.session.history = (SimpleNamespace(step=step, plan_version=version),)
        self.session.active_version = version
        wait.end_step()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> TwoRanks:
    return TwoRanks(monkeypatch)


def test_a_scripts_phases_end_when_all_ranks_have_a_plan(ranks: TwoRanks) -> None:
    wait = ranks.wait()
    profiler, grid = envpipe.EnergyProfiler(wait), envpipe.ExecutionGrid(wait)
    ranks.run_step(wait, 0, None)
    assert profiler.is_profiling
    ranks.others = [1, 0]  # the other rank has none yet
    ranks.run_step(wait, 1, 1)
    assert profiler.is_profiling
    assert not grid.finish_reconfigure()
    ranks.others = [0, 0]
    ranks.run_step(wait, 2, 1)
    assert not profiler.is_profiling
    assert grid.finish_reconfigure()


def test_without_a_planner_on_every_rank_a_script_measures_at_once(ranks: TwoRanks) -> None:
    assert not ranks.wait(0.0).is_waiting
    assert not ranks.wait(is_attached=False).is_waiting
    ranks.others = [1, 0]
    assert not ranks.wait().is_waiting


def test_a_wait_that_is_over_and_a_measured_step_without_a_plan_are_warned_of_once(
    ranks: TwoRanks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    late = ranks.wait()
    ranks.others = [0, 1]  # the other rank's clock says that it is late
    ranks.run_step(late, 0, None)
    assert not late.is_waiting
    assert "begin at default clocks" in caplog.text
    caplog.clear()
    ranks.others = [0, 0]
    wait = ranks.wait()
    ranks.run_step(wait, 1, 1)
    ranks.run_step(wait, 2, None)
    assert not caplog.records  # nothing is measured yet
    assert envpipe.ExecutionGrid(wait).finish_reconfigure()
    for step in (3, 4):
        ranks.run_step(wait, step, None)
    assert len(caplog.records) == 1
    assert "step 3 ran without a plan, at default clocks" in caplog.text
    # EnvPipe's scripts find their result in the log by this word.
    assert "RESULT" not in caplog.text


def test_custom_partitions_are_envpipes_bounds() -> None:
    assert envpipe.partition_bounds([0, 1, 4], num_layers=4, num_stages=2) == [0, 1, 4]
    for wrong in (None, [], [0, 4], [1, 2, 4], [0, 2, 5], [0, 0, 4], [0, 2.0, 4], [0, True, 4]):
        with pytest.raises(ValueError, match="must be 3 rising numbers of layers from 0 to 4"):
            envpipe.partition_bounds(wrong, num_layers=4, num_stages=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_time_to_wait_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="FLYBALL_PLAN_WAIT_S must be a number of seconds"):
        envpipe._wait_s({"FLYBALL_PLAN_WAIT_S": text})
