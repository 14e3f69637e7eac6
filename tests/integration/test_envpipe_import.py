"""A script of EnvPipe's, its import changed, governed by a real planner over two false GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.false_nvml.library import FalseNvml
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from flyball_lab.demo.options import child_environment, missing_prerequisites
from flyball_lab.demo.processes import ChildProcess, Interruption
from flyball_wire import routes

_SCRIPT = Path(__file__).with_name("envpipe_script.py")
_TIMEOUT_S = 500
_JOB_ID = "torchrun-envpipe-2"
_JOB = routes.fill(routes.JOB, job_id=_JOB_ID)
_PLAN = routes.fill(routes.PLAN, job_id=_JOB_ID, version=1)
# As EnvPipe's own examples have it; the variable below wins over `reconfig`.
_CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "steps_per_print": 10**9,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "envpipe": {
        "type": "envelope",
        "scheduling": "ours",
        "reconfig": "balanced",
        "gpu": "a100",
        "reconfigure_threshold_scale": "4",
    },
    "flyball": {"effort": "low"},
}


def test_a_script_of_envpipes_trains_governed_with_its_import_changed(
    false_nvml: FalseNvml, tmp_path: Path
) -> None:
    missing = missing_prerequisites()
    if missing:
        pytest.skip(f"DeepSpeed cannot run here; missing: {missing}")
    with live_planner() as planner, Interruption() as interruption:
        environment = _environment(false_nvml, planner, tmp_path)
        with _training(environment, tmp_path) as run:
            wait_until(lambda: _is_known(planner) or run.exit_status() is not None)
            if run.exit_status() is None:
                planner.put_profile(profile_csv(), job_id=_JOB_ID).raise_for_status()
            status = run.wait(interruption, timeout_s=_TIMEOUT_S)
        log = run.log.read_text()
        assert status == 0, log[-4000:]
        registration = planner.http.get(_JOB).json()["registration"]
        plan = planner.http.get(_PLAN).json()["plan"]
    _check_registration(registration)
    # 1F1B has two forwards in front, and one more for the later stage.
    order = [f"{kind[0]}{microbatch}" for kind, microbatch, _ in plan["stages"][0]]
    assert order == ["f0", "f1", "f2", "b0", "f3", "b1", "b2", "b3"]
    for rank in range(2):
        _check_rank(json.loads((tmp_path / f"rank-{rank}.json").read_text()))
    _check_clocks(false_nvml)
    assert log.count("envpipe.reconfigure_threshold_scale has no effect") == 1


def _is_known(planner: LivePlanner) -> bool:
    return planner.http.get(_JOB).status_code == 200


def _environment(nvml: FalseNvml, planner: LivePlanner, folder: Path) -> dict[str, str]:
    return {
        **child_environment(os.environ),
        **nvml.variables,
        "PYTHONPATH": str(_SCRIPT.parents[2]),
        "IMPORTED_BEFORE": "deepspeed",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "ENVPIPE_RECONFIGURE": "default",
        "FLYBALL_PLANNER_URL": str(planner.http.base_url),
        "FLYBALL_CLOCK_CONTROL": "nvml",
        "FLYBALL_STATE_DIR": str(folder / "state"),
    }


def _training(environment: dict[str, str], folder: Path) -> ChildProcess:
    config = folder / "ds_config.json"
    config.write_text(json.dumps(_CONFIG))
    return ChildProcess(
        [
            *("-m", "tests.integration.forking_torchrun", "--nproc-per-node", "2"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("--rdzv-id", "envpipe 2", "--local-addr", "127.0.0.1"),
            *("--log-dir", str(folder / "torchrun")),
            *(str(_SCRIPT), "--findings", str(folder), "--deepspeed_config", str(config)),
        ],
        environment=environment,
        log=folder / "torchrun.log",
    )


def _check_registration(registration: dict[str, Any]) -> None:
    expected = {
        "num_stages": 2,
        "num_microbatches": 4,
        "num_ranks": 2,
        "schedule": "envpipe",
        "extra_forwards": [1, 0],
        "policy": "envelope",
        "reconfigure": "default",
        "effort": "low",
        "gpu": "a100",
        "emulated": False,
    }
    assert {key: registration[key] for key in expected} == expected


def _check_rank(found: dict[str, Any]) -> None:
    assert found["losses"] == found["plain_losses"]
    assert len(set(found["losses"])) == 3  # training moves the loss, so equal bits mean something
    governed = [step for step in found["versions"] if int(step) >= found["governed_from"]]
    assert len(governed) == 3
    assert [found["versions"][step] for step in governed] == [1, 1, 1]
    assert found["num_unplanned"] == 0


def _check_clocks(nvml: FalseNvml) -> None:
    """The envelope, by hand: the last stage at the highest clock, stage 0 at its valley too."""
    set_mhz: dict[int, set[int]] = {0: set(), 1: set()}
    for gpu, clock_mhz in nvml.calls("nvmlDeviceSetGpuLockedClocks"):
        set_mhz[gpu].add(clock_mhz)
    assert set_mhz == {0: {1410, 1200}, 1: {1410}}
    # Given back when the ranks have ended.
    wait_until(lambda: all(nvml.range_mhz(gpu) == (0, 0) for gpu in set_mhz))
