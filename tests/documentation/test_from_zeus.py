"""Python examples of docs/from-zeus.md: Zeus's hooks over a session, made as the page says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.documentation.blocks import ROOT, blocks_of
from tests.planner.live import live_planner
from tests.planner.patience import wait_until
from tests.unit.client.recording_gpu import RESET, RecordingGpu

PAGE = ROOT / "docs" / "from-zeus.md"
# One stage: at the least energy its forward runs at 900 MHz and its backward at 1200.
PROFILE = """stage,instruction,frequency,time,energy
0,forward,1400,1.0,300
0,forward,900,2.0,200
0,backward,1400,2.0,600
0,backward,1200,3.0,450
"""
# What the page takes from the training script, where it was given to Zeus.
GIVEN = {
    "device_id": 0,
    "rank": 0,
    "pp_rank": 0,
    "dp_rank": 0,
    "tp_rank": 0,
    "pp_degree": 1,
    "world_size": 1,
    "num_microbatches": 1,
}


class FastDevice:
    """torch's module of a device that has always finished, 1 ms from one event to the next."""

    class Event:
        """One event of it."""

        def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
            assert enable_timing
            assert blocking

        def record(self, stream: object) -> None: ...
        def synchronize(self) -> None: ...
        def elapsed_time(self, after: object) -> float:
            return 1.0

    @staticmethod
    def current_stream(device: object) -> None: ...


def python_block(words: str) -> str:
    """The page's one Python block that has these words."""
    found = [
        block.text
        for block in blocks_of(PAGE)
        if block.language == "python" and words in block.text
    ]
    assert len(found) == 1, words
    return found[0]


def train_step(opt: Any) -> None:  # noqa: ANN401 - what the page defines
    """One microbatch, with the calls of Zeus's integration guide."""
    opt.on_step_begin()
    for name in ("forward", "backward"):
        opt.on_instruction_begin(name)
        opt.on_instruction_end(name)
    opt.on_step_end()


def test_zeuss_hooks_train_on_a_plan_through_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    gpu = RecordingGpu()
    monkeypatch.setattr(torch, "get_device_module", lambda device: FastDevice)
    monkeypatch.setattr("flyball_client.session.rank_settings.open_rank_gpu", lambda *_, **__: gpu)
    before, _, after = python_block("RankSession(").partition("\n...\n")
    names: dict[str, Any] = dict(GIVEN)
    with live_planner() as planner:
        monkeypatch.setenv("FLYBALL_PLANNER_URL", str(planner.http.base_url))
        exec(before, names)  # noqa: S102 - our own page
        opt, session = names["opt"], names["session"]
        wait_until(lambda: planner.put_profile(PROFILE, "my-job").is_success)
        target = {"target": "least-energy"}
        planner.http.put("/api/v1/jobs/my-job/target", json=target).raise_for_status()

        def is_on_the_plan() -> bool:
            train_step(opt)
            return gpu.told[-3:] == [900, 1200, 900]

        wait_until(is_on_the_plan)
        num_steps = len(session.history)
        train_step(opt)
        wait_until(lambda: len(session.history) > num_steps)
        wait_until(lambda: gpu.told[-4:] == [1200, 900, 1200, 900])
        assert session.history[-1].num_unplanned == 0
        # From one event to the next it takes 1 ms.
        assert session.history[-1].time_s == pytest.approx(0.005)
        exec(after, names)  # noqa: S102 - our own page
    assert gpu.told[-1] == RESET
