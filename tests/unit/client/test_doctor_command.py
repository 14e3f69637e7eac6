from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pynvml as _pynvml
import pytest
from tests.false_nvml.library import FalseNvml
from tests.false_zeusd.server import FalseZeusd
from tests.governed_rank.pretended_rank import leave_record, pretended_rank
from tests.integration.command_in_process import flyball, refusal
from tests.planner.live import live_planner
from tests.planner.ports import free_port

from flyball_client.cli.doctor import command
from flyball_client.cli.doctor.command import probe_gpus
from flyball_client.cli.doctor.gpu_checks import check_gpus
from flyball_client.cli.doctor.machine_checks import (
    check_guard,
    check_records,
    check_state_dir,
    check_system,
    find_readable_records,
)
from flyball_client.gpu.checks import CheckResult
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.nvml.vendor import clock_rights
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("state_dir")]

# nvidia-ml-py has no types.
pynvml: Any = _pynvml

KEY = "hush-hush"
IN_NAMESPACE = "flyball_client.cli.doctor.machine_checks.is_in_own_pid_namespace"
GPU_IS_LOST = 15
IDLE = 0x1
THERMAL_SLOWDOWN = 0x40
ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
NO_IDS_MAPPED_OTHERWISE = "         0          0 4294967295\n"


def doctor(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the status of `flyball doctor ... --json`, and its checks by name."""
    done = flyball("doctor", *arguments, "--json")
    document = json.loads(done.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    states = [check["state"] for check in checks.values()]
    assert document["num_problems"] == states.count("problem")
    assert document["num_warnings"] == states.count("warning")
    assert done.returncode == (1 if "problem" in states else 0)
    return done.returncode, checks


def state_checks() -> dict[str, CheckResult]:
    """The checks of the state folder and its records, made in this process."""
    results = check_state_dir(os.environ), *check_records(find_readable_records(os.environ))
    return {result.name: result for result in results}


def gpu_checks(*named: str) -> dict[str, CheckResult]:
    """The checks of the GPUs, made in this process."""
    return {result.name: result for result in check_gpus(named, os.environ)}


# ------------------------------------------------------------------ as a whole


def test_where_everything_is_in_place_all_is_fine_and_nothing_was_touched(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "zeusd")
    monkeypatch.setattr(IN_NAMESPACE, lambda: False)  # of the container that tests may run in
    with (
        FalseZeusd(loaded_nvml, tmp_path / "zeusd.sock", token=KEY) as zeusd,
        live_planner(token=KEY) as planner,
    ):
        monkeypatch.setenv("ZEUSD_SOCK_PATH", zeusd.endpoint)
        monkeypatch.setenv("ZEUSD_TOKEN", KEY)
        monkeypatch.setenv("FLYBALL_TOKEN", KEY)
        monkeypatch.setenv("FLYBALL_PLANNER_URL", str(planner.http.base_url))
        status, checks = doctor()
    assert [check for check in checks.values() if check["state"] != "ok"] == []
    assert status == 0
    assert set(checks) == {
        *("system", "state folder", "guard", "records", "settings", "zeusd", "NVML", "GPUs"),
        *(
            f"GPU {index} {part}"
            for index in (0, 1)
            for part in ("model", "persistence", "control", "energy", "conditions", "clock")
        ),
        *("planner", "planner token"),
    }
    assert KEY not in json.dumps(checks)
    assert zeusd.orders == []
    assert loaded_nvml.calls("nvmlDeviceSetGpuLockedClocks") == []
    assert loaded_nvml.calls("nvmlDeviceResetGpuLockedClocks") == []
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("loaded_nvml")
def test_a_machine_without_a_gpu_hears_what_works_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FALSE_NVML_STATE")
    done = flyball("doctor")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    row = next(number for number, line in enumerate(lines) if "starting NVML" in line)
    assert lines[row].startswith("problem  NVML")
    assert "emulated GPUs work without" in lines[row + 1]
    assert lines[-1].startswith("1 problem, ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--gpu", "first"], "'first' is neither a GPU's index nor its UUID"),
        (["--planner", "planner:7787"], "--planner: the planner's address must be like http://"),
        (["--planner-only"], "--planner-only needs --planner URL or FLYBALL_PLANNER_URL"),
        (["--planner-only", "--gpu", "0"], "--planner-only checks no GPU"),
    ],
)
def test_wrong_arguments_get_one_line_and_status_2(arguments: list[str], text: str) -> None:
    assert text in refusal(flyball("doctor", *arguments))


@pytest.mark.usefixtures("loaded_nvml")
def test_a_check_that_breaks_off_is_a_problem_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: object) -> CheckResult:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("flyball_client.cli.doctor.command.check_state_dir", broken)
    _, checks = doctor()
    assert "ZeroDivisionError('of all things')" in checks["state folder"]["found"]
    assert "GPU 1 clock" in checks


# ------------------------------------------------------------------ driver and GPUs


def test_only_the_gpus_that_are_named_are_looked_at(loaded_nvml: FalseNvml) -> None:
    for named in ("1", loaded_nvml.uuid(1)):
        checks = gpu_checks(named)
        assert "GPU 1 clock" in checks
        assert "GPU 0 clock" not in checks
    missing = gpu_checks("7")["GPU 7"]
    assert (missing.state, missing.found) == ("problem", "there is no GPU 7")


def test_a_driver_that_hangs_or_crashes_is_a_problem_and_what_it_prints_is_no_result(
    loaded_nvml: FalseNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_nvml.set_latency_us(600_000_000)
    failure = probe_gpus([], timeout_s=0.7)[-1]
    assert (failure.name, failure.state) == ("GPU checks", "problem")
    assert "the driver did not answer within 0.7 s" in failure.found
    loaded_nvml.set_latency_us(0)
    (tmp_path / "usercustomize.py").write_text("print('a library says hello')\n")
    (tmp_path / "sitecustomize.py").write_text("print('{\"name\": 1}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = [result.name for result in probe_gpus(["0"])]
    assert (names[0], names[-1]) == ("settings", "GPU 0 clock")
    # The false NVML aborts when it cannot write its log.
    monkeypatch.setenv("FALSE_NVML_LOG", "/dev/full")
    failure = probe_gpus([])[-1]
    assert failure.state == "problem"
    assert failure.found == "they were aborted after 'zeusd' by signal SIGABRT"


def test_a_lost_or_divided_gpu_does_not_hide_the_others(
    loaded_nvml: FalseNvml,
) -> None:
    loaded_nvml.set_mig(1, 0)
    checks = gpu_checks()
    assert checks["GPU 0"].state == "problem"
    assert "MIG" in checks["GPU 0"].found
    assert checks["GPU 1 clock"].state == "ok"
    loaded_nvml.fail("", GPU_IS_LOST, gpu=0)
    checks = gpu_checks()
    assert checks["GPU 0"].state == "problem"
    assert checks["GPU 0"].advice.endswith("ranks on the other GPUs are not affected")
    assert checks["GPU 1 clock"].state == "ok"


@pytest.mark.usefixtures("loaded_nvml")
def test_the_model_needs_volta_and_a_counter_and_persistence_mode_should_be_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for function, value, check, state in (
        ("nvmlDeviceGetCudaComputeCapability", (7, 0), "model", "ok"),
        ("nvmlDeviceGetCudaComputeCapability", (6, 1), "model", "problem"),
        ("nvmlDeviceGetSupportedMemoryClocks", (), "model", "problem"),
        ("nvmlDeviceGetPersistenceMode", 1, "persistence", "ok"),
        ("nvmlDeviceGetPersistenceMode", 0, "persistence", "warning"),
    ):
        with monkeypatch.context() as context:
            context.setattr(pynvml, function, lambda _, value=value: value, raising=False)
            assert gpu_checks("0")[f"GPU 0 {check}"].state == state
    monkeypatch.setattr("flyball_client.cli.doctor.gpu_checks._COUNTER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(NvmlGpu, "total_energy_j", lambda _: 5.0)
    assert "did not move within" in gpu_checks("0")["GPU 0 energy"].found


def test_a_counter_of_a_whole_module_is_named(loaded_nvml: FalseNvml) -> None:
    loaded_nvml.set_module_w(150)
    checks = gpu_checks("0", "1")
    assert "counts the whole module" in checks["GPU 0 energy"].found
    assert checks["GPU 1 energy"].found == "the energy counter moves"


# ------------------------------------------------------------------ clocks and who holds them


def test_a_recorded_clock_is_a_warning_and_a_problem_once_its_rank_has_ended(
    loaded_nvml: FalseNvml, state_dir: Path
) -> None:
    for index in (0, 1):
        loaded_nvml.set_range_mhz(1200, 1200, index)
    name = f"record {loaded_nvml.uuid(0)}"
    with pretended_rank(state_dir, loaded_nvml.uuid(0), rank_name="llm rank 0") as rank:
        record = state_checks()[name]
        assert record.state == "warning"
        found = f"its clock is set for llm rank 0 (process {rank.pid})"
        assert record.found.startswith(found)
        clocks = gpu_checks()
        found = "1200 MHz of 1980, set by a live rank of Flyball (see records)"
        assert clocks["GPU 0 clock"].found == found
    unexplained = clocks["GPU 1 clock"]  # without a record
    assert unexplained.state == "warning"
    assert unexplained.found.startswith("1200 MHz of 1980, probably locked: neither")
    assert f"flyball unlock --gpu {loaded_nvml.uuid(1)}" in unexplained.advice
    status, checks = doctor("--gpu", "0")
    assert status == 1
    assert checks[name]["found"] == "its clock was left locked for llm rank 0, which has ended"
    assert "flyball unlock" in checks[name]["advice"]
    assert "probably locked" in checks["GPU 0 clock"]["found"]


def test_a_limited_clock_is_a_warning_unless_the_gpu_is_idle(
    loaded_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(state: str, found: str) -> None:
        clock = gpu_checks("0")["GPU 0 clock"]
        assert clock.state == state
        assert clock.found.startswith(found)
        assert ("nvidia-smi -q -d" in clock.advice) == (state == "warning")

    check("ok", "1980 MHz of 1980")
    loaded_nvml.hold_below_mhz(1500)
    check("warning", "1500 MHz of 1980, limited by power")
    loaded_nvml.hold_below_mhz(0)
    loaded_nvml.set_event_reasons(THERMAL_SLOWDOWN)
    check("warning", "1980 MHz of 1980, limited by heat")
    monkeypatch.setattr(NvmlGpu, "sm_clock_mhz", lambda _: 345)
    loaded_nvml.set_event_reasons(IDLE)
    check("ok", "345 MHz of 1980, ")
    loaded_nvml.set_event_reasons(0)
    check("warning", "345 MHz of 1980, ")


def test_a_power_limit_below_its_default_is_a_warning(loaded_nvml: FalseNvml) -> None:
    conditions = gpu_checks("0")["GPU 0 conditions"]
    assert conditions.state == "ok"
    assert conditions.found.startswith("power limit 700 W, default power limit 700 W, ")
    loaded_nvml.set_conditions(limit_w=500)
    conditions = gpu_checks("0")["GPU 0 conditions"]
    assert conditions.state == "warning"
    assert conditions.found.startswith("power limit 500 W, default power limit 700 W, ")
    assert "profile under this limit" in conditions.advice


# ------------------------------------------------------------------ rights, zeusd, settings


@pytest.mark.usefixtures("loaded_nvml")
def test_the_right_to_set_clocks_is_needed_without_zeusd(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"yes": "ok", "no": "problem", "only in a user namespace": "warning"}
    for rights, state in wanted.items():
        monkeypatch.setattr(
            "flyball_client.gpu.nvml.checks.clock_rights", lambda rights=rights: rights
        )
        control = gpu_checks("0")["GPU 0 control"]
        assert control.state == state
        assert (state == "ok") or "--cap-add SYS_ADMIN" in control.advice


@pytest.mark.parametrize(
    ("status", "uid_map", "rights"),
    [
        (ALL_CAPABILITIES, NO_IDS_MAPPED_OTHERWISE, "yes"),
        (ALL_CAPABILITIES, "0 1000 1\n", "only in a user namespace"),
        (ALL_CAPABILITIES, None, "yes"),
        ("CapPrm:\tffff\nCapEff:\t0000000000200000\n", None, "yes"),
        ("CapEff:\t0000000000100000\n", NO_IDS_MAPPED_OTHERWISE, "no"),
        ("Name:\tpython\n", None, "unknown"),
        ("CapEff:\n", None, "unknown"),
        (None, None, "unknown"),
    ],
)
def test_rights_are_read_from_what_the_kernel_tells(
    tmp_path: Path, status: str | None, uid_map: str | None, rights: str
) -> None:
    for name, text in (("status", status), ("uid_map", uid_map)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert clock_rights(tmp_path) == rights


@pytest.mark.usefixtures("loaded_nvml")
def test_a_zeusd_that_is_named_and_not_there_is_a_problem_where_nothing_else_may_set_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd.sock"))
    monkeypatch.setattr("flyball_client.gpu.nvml.checks.clock_rights", lambda: "yes")
    checks = gpu_checks("0")
    assert [checks["zeusd"].state, checks["GPU 0 control"].state] == ["warning", "warning"]
    assert "through NVML, not zeusd" in checks["GPU 0 control"].found
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "zeusd")
    checks = gpu_checks("0")
    assert [checks["zeusd"].state, checks["GPU 0 control"].state] == ["problem", "problem"]
    assert "is zeusd running" in checks["zeusd"].advice
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", "nvml")
    assert gpu_checks("0")["zeusd"].state == "ok"


@pytest.mark.usefixtures("loaded_nvml")
def test_a_variable_that_cannot_be_used_is_a_problem_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = {
        "FLYBALL_CLOCK_CONTROL": "magic",
        "FLYBALL_RETURN_CLOCKS_MHZ": "1410",
        "ZEUSD_HOST_PORT": "no port:x",
    }
    for name, value in wrong.items():
        with monkeypatch.context() as context:
            context.setenv(name, value)
            settings = gpu_checks("0")["settings"]
        assert settings.state == "problem"
        assert name in settings.found


# ------------------------------------------------------------------ the machine


def test_a_python_built_without_a_feature_is_a_problem_and_one_that_is_refused_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as refused:
        refused.setattr(os, "pidfd_open", refuse)
        (result,) = check_system()
    assert (result.name, result.state) == ("system pidfd_open", "warning")
    features = ("memfd_create", "eventfd", "pidfd_open")
    for feature in features:
        monkeypatch.delattr(os, feature)
    found = {(result.name, result.state) for result in check_system()}
    assert found == {(f"system {feature}", "problem") for feature in features}


def test_a_state_folder_and_its_records_must_be_the_users_own(state_dir: Path) -> None:
    assert state_checks()["state folder"].found == f"{state_dir} can be created"
    assert not state_dir.exists()
    leave_record(state_dir, "GPU-\x1b[2Jx")
    checks = state_checks()
    assert checks["state folder"].found == f"{state_dir} can be written"
    assert "record 'GPU-\\x1b[2Jx'" in checks  # it cannot play with the terminal
    state_dir.chmod(0o755)
    folder = state_checks()["state folder"]
    assert folder.state == "problem"
    assert f"run chmod 700 {state_dir}" in folder.advice
    state_dir.chmod(0o700)
    os.mkfifo(state_dir / "GPU-1.clock")
    record = state_checks()["record GPU-1"]
    assert record.state == "problem"
    assert "remove it" in record.advice


MISSED = """
import os
from flyball_client.cli.doctor.machine_checks import check_guard
result = check_guard(os.environ)
print(result.state, result.found)
"""
HELD = """
import sys
from pathlib import Path
from flyball_client.governor.guard import prepare_node_dir
fd = prepare_node_dir(Path(sys.argv[1]), None)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a PID namespace")
def test_in_a_real_pid_namespace_a_guard_is_missed(state_dir: Path) -> None:
    namespace = ["unshare", "--pid", "--fork", "--mount-proc"]
    command = [*namespace, sys.executable, "-c", MISSED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = "warning ranks here run as process 1 in a PID namespace of their own, and no guard"
    assert done.stdout.startswith(f"{found} watches {state_dir.parent}: the end of a container")


def test_a_pid_namespace_without_a_guard_is_a_warning(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IN_NAMESPACE, lambda: True)
    node_dir = state_dir.parent
    missed = check_guard(os.environ)
    assert missed.state == "warning"
    assert f"no guard watches {node_dir}" in missed.found
    assert "flyball guard on the node" in missed.advice
    command = [sys.executable, "-c", HELD, str(node_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        result = check_guard(os.environ)
        guard.kill()
    assert (result.state, result.found) == ("ok", f"process {guard.pid} watches {node_dir}")


# ------------------------------------------------------------------ the planner


@pytest.mark.parametrize(
    ("ca_file", "scheme", "found", "advice"),
    [
        ("", "http", "cannot be reached", "flyball serve"),
        ("/missing/ca.pem", "https", "/missing/ca.pem", "correct FLYBALL_CA_FILE"),
    ],
)
def test_a_planner_that_cannot_be_reached_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
    ca_file: str,
    scheme: str,
    found: str,
    advice: str,
) -> None:
    monkeypatch.setenv("FLYBALL_CA_FILE", ca_file)
    url = f"{scheme}://127.0.0.1:{free_port()}"
    status, checks = doctor("--planner-only", "--planner", url)
    assert status == 1
    assert found in checks["planner"]["found"]
    assert advice in checks["planner"]["advice"]


def test_a_token_must_let_ranks_register_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "flyball_version", lambda: "7.0")
    with live_planner(token=KEY) as planner:
        planner.http.headers[TOKEN_HEADER] = KEY
        of_job, reading = (
            planner.http.post(routes.TOKENS, json=asked).json()["token"]
            for asked in ({"job_id": "gpt"}, {"read_only": True})
        )
        for token, status, text in (
            (reading, 1, "flyball token create --job JOB"),
            ("", 1, "FLYBALL_TOKEN"),
            ("another", 1, "FLYBALL_TOKEN"),
            ("not\tprintable", 1, "FLYBALL_TOKEN"),
            (of_job, 0, "one job"),
        ):
            monkeypatch.setenv("FLYBALL_TOKEN", token)
            found, checks = doctor("--planner-only", "--planner", str(planner.http.base_url))
            assert found == status
            of_token = checks["planner token"]
            assert of_token["state"] == ("problem" if status else "ok")
            assert text in of_token["advice" if status else "found"]
            assert not token or token not in repr(checks)
    assert checks["planner"]["state"] == "warning"
    assert "here it is 7.0" in checks["planner"]["found"]


def test_what_ends_a_plain_connection_may_speak_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(2):  # the doctor tries so often
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        _, checks = doctor("--planner-only", "--planner", url)
        thread.join()
    assert checks["planner"]["advice"] == "it may use TLS: try https://"
