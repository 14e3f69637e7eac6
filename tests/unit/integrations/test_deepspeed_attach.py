"""Order in which attach opens its parts; nothing stays open when it fails."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
import torch.distributed
from tests.planner.live import live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.integrations.order_world import World

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from flyball_client.session import rank_settings
from flyball_integrations.deepspeed import pipeline
from flyball_integrations.deepspeed.config_file import attach_configured, read_attachment
from flyball_integrations.deepspeed.pipeline import attach, detach
from flyball_integrations.deepspeed.settings import SCHEDULES
from flyball_integrations.shared import attachment, order_agreement
from flyball_integrations.shared.attach_options import AttachOptions
from flyball_server.planning.schedule_choice import candidate_schedules
from flyball_wire import routes
from flyball_wire.messages import JobRegistration

LOOPBACK = "http://127.0.0.1:9"  # nobody listens there


class Opened:
    """Stands for the GPU and the process groups; writes down what is opened and closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        opened = self

        class Gpu(RecordingGpu):
            def __init__(self) -> None:
                super().__init__()
                opened.log.append("open gpu")

            def close(self) -> None:
                opened.log.append("close gpu")

        class Eager:
            def __init__(self, grid: object) -> None:
                opened.log.append("open groups")

            def close(self) -> None:
                opened.log.append("close groups")

            def in_force(self) -> None:
                raise AssertionError("no step runs here")

            def wrap(self, instructions: object) -> object:
                return instructions

        def open_gpu(local_rank: int, environ: object) -> Gpu:
            opened.log.append(f"local rank {local_rank}")
            return Gpu()

        monkeypatch.setattr(rank_settings, "open_local_gpu", open_gpu)
        monkeypatch.setattr(pipeline, "EagerP2P", Eager)


@pytest.fixture
def opened(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    return Opened(monkeypatch)


def engine() -> Any:  # noqa: ANN401 - stands for DeepSpeed's engine
    """Return what attach looks at."""
    from deepspeed.runtime.pipe.engine import PipelineEngine  # noqa: PLC0415 - skipped without it

    grid = SimpleNamespace(get_data_parallel_rank=lambda: 0, get_slice_parallel_rank=lambda: 0)
    return SimpleNamespace(
        grid=grid,
        device=torch.device("cpu"),
        global_rank=0,
        stage_id=0,
        global_steps=0,
        num_stages=2,
        micro_batches=4,
        train_batch=lambda: None,
        num_pipe_buffers=0,
        pipe_buffers={},
        is_last_stage=lambda: False,
        _exec_schedule=lambda run: None,
        _INSTRUCTION_MAP=dict.fromkeys(PipelineEngine._INSTRUCTION_MAP, print),
    )


def test_what_is_opened_is_closed_by_detach_and_the_engine_is_as_before(opened: Opened) -> None:
    made = engine()
    before = dict(vars(made))
    attach(made, job_id="job", planner_url=LOOPBACK, p2p="eager")
    assert opened.log == ["local rank 0", "open gpu", "open groups"]
    detach(made)
    detach(made)
    assert opened.log[3:] == ["close groups", "close gpu"]
    assert vars(made) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"planner_url": "planner:7787"}, "must be like http://HOST:PORT"),
        ({"token": "ä"}, "must be printable ASCII"),
        ({"schedule": "zb-h1"}, "schedule must be one of 1f1b, gpipe, envpipe, auto, not 'zb-h1'"),
        ({"p2p": "pushed"}, "p2p must be one of stock, eager, pulled, not 'pushed'"),
        ({"schedule": "envpipe"}, r"needs p2p='eager' \(gloo\) or p2p='pulled'.*would deadlock"),
        ({"schedule": "auto", "p2p": "eager"}, "schedule='auto' needs the number of free bytes"),
        (
            {"schedule": "auto", "p2p": "pulled", "policy": "envelope"},
            "schedule='auto' compares frontiers, which policy='envelope' does not have",
        ),
        ({"schedule": "envpipe", "p2p": "pulled"}, "from a GPU only; give free_memory_bytes"),
        (
            {"schedule": "envpipe", "p2p": "pulled", "free_memory_bytes": -1},
            "free_memory_bytes must not be negative, not -1",
        ),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_before_anything_is_opened(
    opened: Opened, arguments: dict[str, Any], says: str
) -> None:
    made = engine()
    before = dict(vars(made))
    with pytest.raises(ValueError, match=says):
        attach(made, job_id="job", **({"planner_url": LOOPBACK} | arguments))
    assert opened.log == []
    assert vars(made) == before


@pytest.mark.parametrize(
    ("schedule", "registered"),
    [("gpipe", "gpipe"), ("envpipe", "envpipe"), ("auto", "auto:envpipe,gpipe")],
)
def test_a_schedule_is_registered_by_the_planners_name_and_auto_with_what_can_be_run(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    schedule: Literal["gpipe", "envpipe", "auto"],
    registered: str,
) -> None:
    World(2, monkeypatch)
    known: list[str] = []

    def noting(**told: Any) -> JobRegistration:  # noqa: ANN401 - as it has them
        known.append(told["schedule"])
        return JobRegistration(**told)

    monkeypatch.setattr(pipeline, "JobRegistration", noting)
    made = engine()
    attach(made, job_id="job", schedule=schedule, p2p="pulled", free_memory_bytes=0)
    detach(made)
    assert opened.log[-1] == "close gpu"
    assert known == [registered]
    if schedule == "auto":
        assert set(candidate_schedules(registered)) == {*SCHEDULES} - {"auto"}


def test_a_job_whose_order_memory_bounds_is_registered_once_that_is_known(
    opened: Opened, registered: list[JobRegistration], monkeypatch: pytest.MonkeyPatch
) -> None:
    World(1, monkeypatch)
    monkeypatch.setattr(order_agreement, "gather_memory", lambda memory, **_: (memory,) * 2)
    made = engine()
    attach(
        made,
        job_id="job",
        planner_url=LOOPBACK,
        schedule="envpipe",
        p2p="pulled",
        free_memory_bytes=7,
        profiling="online",
        profiling_slowdown=0.05,
    )
    num_known = []
    for _ in range(4):
        made.train_batch()
        num_known.append(len(registered))
    detach(made)
    assert num_known == [0, 0, 1, 1]
    (registration,) = registered
    # No forward has held anything here, so there is room for none more.
    assert (registration.activation_bytes, registration.free_memory_bytes) == ((1, 1), (0, 0))
    assert (registration.profiling, registration.profiling_slowdown) == ("online", 0.05)
    assert (registration.blocking_power_w, registration.gpu) == (None, None)
    assert opened.log[-1] == "close gpu"


def test_a_planner_gets_the_place_of_a_rank_in_the_frameworks_grid_and_a_job_to_profile_online(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 12)
    made = engine()
    # Second of two pipelines, third of its tensor-parallel group.
    made.grid = SimpleNamespace(get_data_parallel_rank=lambda: 1, get_slice_parallel_rank=lambda: 2)
    options: dict[str, Any] = {"profiling_slowdown": 0.05, "adaptation": "frontier"}
    with live_planner() as planner:
        url = str(planner.http.base_url)
        attach(made, job_id="job", planner_url=url, profiling="online", **options)
        path = routes.fill(routes.JOB, job_id="job")
        wait_until(lambda: bool(planner.http.get(path).json().get("ranks")))
        job = planner.http.get(path).json()
        profiling = planner.http.get(routes.fill(routes.PROFILING, job_id="job")).json()
        detach(made)
    assert opened.log[-1] == "close gpu"
    (rank,) = job["ranks"]
    assert (rank["rank"], rank["stage"]) == (0, 0)
    assert (rank["dp_rank"], rank["tp_rank"], rank["cp_rank"]) == (1, 2, 0)
    assert job["state"] == "awaiting-profile"
    registered = job["registration"]
    assert registered["num_ranks"] == 12
    assert (registered["profiling"], registered["profiling_slowdown"]) == ("online", 0.05)
    assert registered["adaptation"] == "frontier"
    assert (registered["blocking_power_w"], registered["gpu"]) == (None, None)
    assert (profiling["state"], profiling["slowdown_limit"]) == ("waiting", 0.05)


def test_the_environment_gives_it_an_emulated_gpu_and_the_envpipe_import_too(
    opened: Opened,
    registered: list[JobRegistration],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "profile.csv").write_text(profile_csv())
    monkeypatch.setenv("FLYBALL_GPU", f"emulated:{tmp_path / 'profile.csv'}")
    made = engine()
    attach(made, job_id="job", planner_url=LOOPBACK, gpu_type="a100")
    detach(made)
    block = {"envpipe": {"type": "envelope", "gpu": "a100"}, "flyball": {"planner_url": LOOPBACK}}
    attach_configured(made, read_attachment(block, {}))
    detach(made)
    assert [registration.emulated for registration in registered] == [True, True]
    assert opened.log == []  # no real one


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    ("options", "power_w"),
    [
        ({"gpu_type": "a40"}, 70.38),
        ({"blocking_power_w": (50.0, 60.0)}, 60.0),
        ({"blocking_power_w": 50.0, "gpu_type": "a40"}, 50.0),
    ],
)
def test_an_emulated_gpu_waits_at_the_power_that_its_job_is_planned_with(
    options: AttachOptions,
    power_w: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "profile.csv").write_text(profile_csv())
    monkeypatch.setenv("FLYBALL_GPU", f"emulated:{tmp_path / 'profile.csv'}")
    made = engine()
    made.stage_id = 1
    attach(made, job_id="job", **options)
    detach(made)
    assert f"stage 1 of {tmp_path / 'profile.csv'}, {power_w:g} W while it waits" in caplog.text


@pytest.mark.parametrize(
    ("place", "part"), [(attachment, "JobRegistrar"), (pipeline, "EnginePatch")]
)
def test_what_fails_later_closes_what_was_opened_and_leaves_the_engine_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, place: ModuleType, part: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(f"no {part}")

    monkeypatch.setattr(place, part, refuse)
    made = engine()
    before = dict(vars(made))
    with pytest.raises(RuntimeError, match=f"no {part}"):
        attach(made, job_id="job", planner_url=LOOPBACK, p2p="eager")
    assert opened.log[-2:] == ["close groups", "close gpu"]
    assert vars(made) == before
