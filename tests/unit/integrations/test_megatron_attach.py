"""Attachment to Megatron: refusals, opened parts, registrations, and known orders."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pytest
import torch.distributed
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.planning.tiny_pipelines import B, F, context_of, profile_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron's own, at its import
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import schedules

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.megatron import pipeline
from flyball_integrations.megatron.order import interleaved
from flyball_integrations.megatron.pipeline import attach, detach, training_step
from flyball_integrations.shared import attachment
from flyball_integrations.shared.attachment import RankLayout
from flyball_server.planning.scheduling import schedule_for
from flyball_wire.messages import JobRegistration

_CONFIG = {"timers": None, "microbatch_group_size_per_vp_stage": 2, "overlap_p2p_comm": True}
_WHOLE = {"overlap_moe_expert_parallel_comm": True}
# Two stages of two chunks.
CHUNKS = "stage,chunk,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{chunk},{kind},{mhz},{0.003 + chunk / 1000},{mhz / 1410}\n"
    for stage in range(2)
    for chunk in range(2)
    for kind in ("forward", "backward")
    for mhz in (1410, 1200)
)
LOOPBACK = "http://127.0.0.1:9"  # nobody listens there


@pytest.fixture(autouse=True)
def _first_of_two_ranks(
    registered: list[JobRegistration], agreeing_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A pipeline of two ranks, seen from the first."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    places = {
        "model_parallel_is_initialized": True,
        "get_pipeline_model_parallel_world_size": 2,
        "get_virtual_pipeline_model_parallel_world_size": None,
        "get_pipeline_model_parallel_rank": 0,
        "get_data_parallel_rank": 0,
        "get_tensor_model_parallel_rank": 0,
        "get_context_parallel_rank": 0,
    }
    for name, value in places.items():
        monkeypatch.setattr(parallel_state, name, lambda value=value: value)
    yield
    detach()


def config(**changes: object) -> Any:  # noqa: ANN401 - stands for Megatron's
    """Return what attach looks at."""
    return SimpleNamespace(**(_CONFIG | changes))


@pytest.mark.parametrize(
    ("changes", "arguments", "says"),
    [
        ({}, {"num_microbatches": 0}, "num_microbatches must be at least 1, not 0"),
        ({}, {"hooks": "patched"}, "hooks must be one of patch, timers, not 'patched'"),
        ({}, {"planner_url": "planner:7787"}, "must be like http://HOST:PORT"),
        (_WHOLE, {"policy": "frontier"}, "policy must be constant or global, not 'frontier'"),
        (_WHOLE, {"profiling": "online"}, "give a profile instead of profiling='online'"),
    ],
)
def test_what_cannot_be_hooked_is_refused_and_nothing_is_changed(
    registered: list[JobRegistration],
    changes: dict[str, Any],
    arguments: dict[str, Any],
    says: str,
) -> None:
    before = dict(vars(schedules))
    given: dict[str, Any] = {"job_id": "job", "num_microbatches": 4, "gpu": RecordingGpu()}
    with pytest.raises(ValueError, match=says):
        attach(config(**changes), **(given | arguments))
    assert vars(schedules) == before
    assert registered == []


def test_a_step_without_an_attachment_goes_on_and_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline._warn_unattached.cache_clear()
    num_done = 0
    for _ in range(3):
        with training_step():
            num_done += 1
    assert num_done == 3
    assert _warnings(caplog) == [
        "Flyball is not attached to Megatron, so training_step() does nothing"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "forward_step",
        "forward_backward_pipelining_with_interleaving",
        "get_schedule_table",
    ],
)
@pytest.mark.parametrize("hooks", ["patch", "timers"])
def test_a_megatron_that_lacks_a_name_is_told_by_version(
    monkeypatch: pytest.MonkeyPatch, hooks: Literal["patch", "timers"], name: str
) -> None:
    monkeypatch.delattr(schedules, name)
    before = dict(vars(schedules))
    with pytest.raises(ValueError, match=rf"megatron-core 0.* has no {name} in .* 0\.16\.1$"):
        attach(config(), job_id="job", num_microbatches=4, hooks=hooks, gpu=RecordingGpu())
    assert vars(schedules) == before


def test_what_fails_late_leaves_megatron_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no thread can be started")

    monkeypatch.setattr(attachment.RankEnds, "register", refuse)
    before, made = dict(vars(schedules)), config()
    ways: tuple[Literal["patch", "timers"], ...] = ("patch", "timers")
    for hooks in ways:
        with pytest.raises(RuntimeError, match="no thread"):
            attach(made, job_id="job", num_microbatches=4, hooks=hooks, gpu=RecordingGpu())
        assert vars(schedules) == before
        assert made.timers is None


@pytest.mark.parametrize(
    "changes",
    [
        {"overlap_moe_expert_parallel_comm": True},
        {"cuda_graph_scope": "full_iteration"},
        {"cuda_graph_scope": ["CudaGraphScope.full_iteration"]},
    ],
)
def test_where_no_hook_can_run_inside_a_step_each_stage_has_one_clock(
    registered: list[JobRegistration], changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    before, gpu = dict(vars(schedules)), RecordingGpu()
    session = attach(
        config(**changes), job_id="job", num_microbatches=4, planner_url=LOOPBACK, gpu=gpu
    )
    (registration,) = registered
    assert (registration.schedule, registration.policy) == ("1f1b", "constant")
    assert {name for name in vars(schedules) if name not in before} == {pipeline._ATTACHMENT}
    assert all(vars(schedules)[name] is value for name, value in before.items())
    session.plans.put(plan_at((1200, 1200), version=1), 1)
    session.plans.put(plan_at((900, 1200), version=2), 3)
    for _ in range(4):
        with training_step():
            pass
    assert [step.plan_version for step in session.history] == [None, 1, 1, 2]
    # At the end of the step before; of several clocks in a step the highest.
    assert gpu.told == [1200]
    assert session.last_step_timings[0].sm_clock_mhz == 1200
    assert {step.num_unplanned for step in session.history} == {0}
    with pytest.raises(ZeroDivisionError), training_step():
        raise ZeroDivisionError
    assert gpu.told == [1200, "reset"]
    (at_attach,) = _warnings(caplog)
    assert "nothing is hooked inside a step: each stage runs at one clock" in at_attach
    assert "plan version 2 changes clocks within a step" in caplog.text


@pytest.mark.parametrize(
    ("changes", "coupling"),
    [
        ({}, "step"),
        ({"expert_model_parallel_size": 2}, "instruction"),
        (_WHOLE | {"expert_model_parallel_size": 2}, "unknown"),
    ],
)
def test_a_rank_starts_in_megatrons_place_at_its_step_and_with_the_configs_coupling(
    changes: dict[str, Any], coupling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("pipeline_model", "data", "tensor_model", "context"), 1):
        rank = f"get_{name}_parallel_rank"
        monkeypatch.setattr(parallel_state, rank, lambda number=number: number)
    monkeypatch.setattr(parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: 2)
    made, start = mock.Mock(wraps=attachment.RankEnds), attachment.RankEnds.start
    monkeypatch.setattr(pipeline, "RankEnds", made)
    with mock.patch.object(
        attachment.RankEnds, "start", autospec=True, side_effect=start
    ) as started:
        session = attach(
            config(**changes), job_id="job", num_microbatches=2, initial_step=7, gpu=RecordingGpu()
        )
    ends = made.call_args.kwargs
    assert ends["layout"] == RankLayout(rank=0, stage=1, dp_rank=2, tp_rank=3, cp_rank=4)
    assert ends["num_chunks"] == 2
    assert session.current_step == 7
    assert started.call_args.kwargs == {"coupling": coupling}


def test_a_plan_without_instructions_leaves_whole_steps_unplanned() -> None:
    session = attach(
        config(**_WHOLE), job_id="job", num_microbatches=4, planner_url=LOOPBACK, gpu=RecordingGpu()
    )
    session.plans.put(plan_at((), version=1), 0)
    for _ in range(2):
        with training_step():
            pass
    assert [(step.plan_version, step.num_unplanned) for step in session.history][1:] == [(1, 1)]


def plan_at(clocks_mhz: tuple[int, ...], *, version: int) -> CompiledPlan:
    """A plan of forwards."""
    num = len(clocks_mhz)
    return CompiledPlan(
        version=version,
        kinds=("forward",) * num,
        microbatches=tuple(range(num)),
        chunks=(0,) * num,
        sm_clocks_mhz=clocks_mhz,
        highest_sm_clock_mhz=1400,
        num_raised=0,
    )


@pytest.fixture
def interleaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two model chunks on each of the two ranks."""
    name = "get_virtual_pipeline_model_parallel_world_size"
    monkeypatch.setattr(parallel_state, name, lambda: 2)


@pytest.mark.usefixtures("interleaving")
def test_interleaving_is_registered_with_its_order_and_the_places_of_its_chunks(
    registered: list[JobRegistration], caplog: pytest.LogCaptureFixture
) -> None:
    attach(config(), job_id="job", num_microbatches=2, planner_url=LOOPBACK, gpu=RecordingGpu())
    (registration,) = registered
    assert registration.schedule == "explicit"
    assert registration.virtual_stages == ((0, 2), (1, 3))
    # By hand: all four forwards of the first rank warm up, and two of the second.
    first, second = "F00 F10 F01 F11 B01 B11 B00 B10", "F00 F10 F01 B01 F11 B11 B00 B10"
    assert registration.order is not None
    assert [_shortly(order) for order in registration.order] == [first, second]
    assert _warnings(caplog) == []


@pytest.mark.usefixtures("interleaving")
def test_the_environment_gives_it_an_emulated_gpu_of_its_chunks(
    registered: list[JobRegistration], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "profile.csv"
    file.write_text(CHUNKS)
    monkeypatch.setenv("FLYBALL_GPU", f"emulated:{file}")
    session = attach(
        config(), job_id="job", num_microbatches=2, planner_url=LOOPBACK, gpu_type="a100"
    )
    session.on_step_begin()
    for chunk in range(2):
        session.on_instruction_begin("forward", chunk=chunk)
        session.on_instruction_end("forward", chunk=chunk)
    session.on_step_end()
    (registration,) = registered
    assert registration.emulated
    # Three milliseconds of the first chunk and four of the second, as the profile has them.
    assert session.history[0].time_s >= 0.007


@pytest.mark.usefixtures("interleaving")
def test_interleaving_that_holds_sends_back_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    held_back = config(overlap_p2p_comm=False)
    attach(held_back, job_id="job", num_microbatches=2, gpu=RecordingGpu())
    assert _warnings(caplog) == []  # no plan will come
    detach()
    attach(held_back, job_id="job", num_microbatches=2, planner_url=LOOPBACK, gpu=RecordingGpu())
    (message,) = _warnings(caplog)
    assert message.startswith("job job: without overlap_p2p_comm an interleaved schedule sends")


@pytest.mark.parametrize(
    ("num_stages", "num_chunks", "num_microbatches"),
    [(2, 2, 2), (3, 2, 9), (4, 3, 8)],
)
def test_the_planner_generates_the_order_that_megatron_runs(
    num_stages: int, num_chunks: int, num_microbatches: int
) -> None:
    stage = {F: [(1410, 1.0, 1.0), (1000, 2.0, 1.0)], B: [(1410, 2.0, 1.0), (1000, 3.0, 1.0)]}
    profile = profile_of([stage] * num_stages)
    with_chunks = replace(profile, chunks=(profile,) * num_chunks)
    generated = schedule_for("interleaved-1f1b", context_of(with_chunks, num_microbatches)).stages
    of_megatron = interleaved(
        schedules,
        num_stages=num_stages,
        num_chunks=num_chunks,
        num_microbatches=num_microbatches,
        group_size=num_stages,
    )
    assert of_megatron.stages == generated


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those of attaching; a session's threads may warn of the planner, which is not there."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "flyball_integrations.megatron.pipeline"
    ]


def _shortly(order: Any) -> str:  # noqa: ANN401 - of the registration or of a stage
    """`F10`: forward of microbatch 1 in chunk 0."""
    return " ".join(f"{kind[0].upper()}{microbatch}{chunk}" for kind, microbatch, chunk in order)
