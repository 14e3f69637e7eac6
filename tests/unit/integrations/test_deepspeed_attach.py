"""Order in which attach opens its parts; nothing stays open when it fails."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch.distributed
from tests.planner.live import live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv
from tests.unit.client.recording_gpu import RecordingGpu

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from flyball_client.gpu import registry
from flyball_client.session.rank_session import RankSession
from flyball_integrations.deepspeed import pipeline
from flyball_integrations.deepspeed.config_file import attach_configured, read_attachment
from flyball_integrations.deepspeed.pipeline import attach, detach, microbatches
from flyball_integrations.shared import attachment
from flyball_integrations.shared.attach_options import AttachOptions
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

        def open_gpu(environ: object, *, uuid: str | None, local_rank: int | None) -> Gpu:
            opened.log.append(f"local rank {local_rank}")
            return Gpu()

        monkeypatch.setattr(registry, "open_real_rank_gpu", open_gpu)
        monkeypatch.setattr(pipeline, "EagerP2P", Eager)


@pytest.fixture
def opened(no_settings: None, agreeing_ranks: None, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
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
    assert opened.log == ["local rank None", "open gpu", "open groups"]
    detach(made)
    detach(made)
    assert opened.log[3:] == ["close groups", "close gpu"]
    assert vars(made) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"planner_url": "planner:7787"}, "must be like http://HOST:PORT"),
        ({"token": "ä"}, "must be printable ASCII"),
        ({"schedule": "auto"}, "schedule must be one of 1f1b, envpipe, not 'auto'"),
        ({"p2p": "pushed"}, "p2p must be one of stock, eager, pulled, not 'pushed'"),
        ({"schedule": "envpipe"}, r"needs p2p='eager' \(gloo\) or p2p='pulled'.*would deadlock"),
        ({"extra_forwards": [1, 0]}, "extra_forwards is for schedule='envpipe', not '1f1b'"),
        *(
            (
                {"schedule": "envpipe", "p2p": "pulled", "extra_forwards": extra},
                message,
            )
            for extra, message in (
                ([1], "extra_forwards: 1 values for 2 stages; give one per stage"),
                ([1, -1], "extra_forwards: must be whole numbers from 0 on, not 1, -1"),
                ([1.0, 0], "extra_forwards: must be whole numbers from 0 on, not 1.0, 0"),
            )
        ),
        (
            {"schedule": "envpipe", "p2p": "pulled", "extra_forwards": [0, 3]},
            "stage 1 would run 4 forwards in front and stage 0 only 2, so each would wait",
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
    ("extra_forwards", "known"), [(None, (1, 0)), ([2, 0], (2, 0)), ([0, 0], (0, 0))]
)
def test_envpipes_order_is_registered_with_the_forwards_in_front_that_it_runs(
    opened: Opened,
    registered: list[JobRegistration],
    extra_forwards: list[int] | None,
    known: tuple[int, ...],
) -> None:
    made = engine()
    options: dict[str, Any] = {"activation_bytes": 100, "free_memory_bytes": [300, 0]}
    attach(
        made,
        job_id="job",
        planner_url=LOOPBACK,
        schedule="envpipe",
        p2p="pulled",
        extra_forwards=extra_forwards,
        **options,
    )
    detach(made)
    (registration,) = registered
    assert (registration.schedule, registration.extra_forwards) == ("envpipe", known)
    # What the user knows of the memory limits what is advised.
    assert (registration.activation_bytes, registration.free_memory_bytes) == ((100,), (300, 0))
    assert opened.log[-1] == "close gpu"


@pytest.mark.usefixtures("opened")
def test_a_job_says_how_another_order_is_set(registered: list[JobRegistration]) -> None:
    made = engine()
    attach(made, job_id="job", planner_url=LOOPBACK)
    detach(made)
    lines = {other.schedule: other.line for other in registered[0].other_orders}
    assert lines["1f1b"].startswith('attach(..., schedule="1f1b"), or the same keys in the block')
    assert lines["envpipe"] == (
        'attach(..., schedule="envpipe", p2p="pulled", extra_forwards=[{extra_forwards}]), or the'
        " same keys in the block flyball of the DeepSpeed config"
    )
    block = {"flyball": {"schedule": "envpipe", "p2p": "pulled", "extra_forwards": [2, 0]}}
    read = read_attachment(block, {}).arguments
    assert (read["schedule"], read["p2p"], read["extra_forwards"]) == ("envpipe", "pulled", (2, 0))


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


def test_what_train_batch_reads_is_read_a_step_ahead_and_announced(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: dict[int, Any] = {}

    def announce_step(session: RankSession, work: Any, *, step: int) -> None:  # noqa: ANN401
        announced[step] = work

    monkeypatch.setattr(RankSession, "announce_step", announce_step)
    monkeypatch.setattr(attachment, "agree_on_steps", lambda place: None)
    made = engine()
    with pytest.raises(ValueError, match=r"with announces_work=True before$"):
        microbatches(made, [1], lengths=int)
    session = attach(made, job_id="job", announces_work=True)
    made.is_first_stage = lambda: False
    made.data_iterator = None
    assert list(microbatches(made, lengths=int)) == []  # a middle stage
    made.is_first_stage = lambda: True
    with pytest.raises(ValueError, match=r"^the engine has no training data; give the loader$"):
        microbatches(made, lengths=int)
    # Data that the engine owns: train_batch() reads through it as before.
    made.data_iterator = iter(range(10, 22))
    own = microbatches(made, lengths=int)
    assert made.data_iterator is own
    for step in range(3):
        session.on_step_begin()
        assert [next(made.data_iterator) for _ in range(4)] == list(
            range(10 + 4 * step, 14 + 4 * step)
        )
        session.on_step_end()
    assert announced == {
        1: [[14.0], [15.0], [16.0], [17.0]],
        2: [[18.0], [19.0], [20.0], [21.0]],
    }
    detach(made)
