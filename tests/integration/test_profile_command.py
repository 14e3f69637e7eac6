"""`flyball profile` as a user runs it: on an emulated GPU, and as a process on a false NVML."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import wait_until
from tests.integration.command_in_process import document_of, flyball, refusal

from flyball_client.profiling import blocking_power
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.examples import example_profile_path, load_example_profile
from flyball_profiles.gpu_windows import gpu_window_of
from flyball_profiles.stage_profile_csv import read_stage_profile

NO_PERMISSION = 4
EXAMPLE = str(example_profile_path())
EMULATED = ("profile", "run", "--emulated", EXAMPLE, "--time-scale", "0")
# A few periods of the counter a point: the whole way, not its accuracy.
BRIEFLY = (
    *("--error", "0.5", "--periods", "4", "--settle-s", "0.1", "--max-settle-s", "0.3"),
    *("--warm-up-s", "0"),
)
CLOCKS = ("--min-mhz", "1700", "--max-mhz", "1980", "--step-mhz", "240")
USERS_MODULE = """
import time
from flyball_client.profiling.workload import Workload

def stage(*, stage, chunk, device):
    return Workload(
        instructions={
            "forward": lambda: time.sleep(0.005),
            "backward": lambda: time.sleep(0.01),
        }
    )
"""


class Runs:
    """Starts `flyball profile run` on the false GPU, in a folder of its own."""

    def __init__(self, nvml: FalseNvml, folder: Path) -> None:
        (folder / "users_stage.py").write_text(USERS_MODULE)
        self.nvml = nvml
        self.folder = folder
        self.out = folder / "out.csv"

    @contextmanager
    def started(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """A process that runs, and that is ended with the block."""
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "flyball_client", "profile", "run", "users_stage:stage"),
                *("--stage", "0", "-o", str(self.out), *CLOCKS, *BRIEFLY, *options),
            ],
            cwd=self.folder,
            env=self.nvml.environment | {"FLYBALL_STATE_DIR": str(self.folder / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def finished(self, *options: str) -> tuple[int, str, str]:
        """Exit status, stdout and stderr."""
        with self.started(*options) as process:
            stdout, stderr = process.communicate(timeout=120)
            return process.returncode, stdout, stderr

    def locked_mhz(self) -> list[int]:
        """Every clock that was locked so far."""
        return [mhz for _, mhz in self.nvml.calls("nvmlDeviceSetGpuLockedClocks")]

    def num_rows(self) -> int:
        """Whole rows in the file, which comes and goes while it is tried for writing."""
        try:
            return self.out.read_text().count("\n") - 1
        except FileNotFoundError:
            return 0


@pytest.fixture
def runs(false_nvml: FalseNvml, tmp_path: Path) -> Runs:
    return Runs(false_nvml, tmp_path)


def test_a_limit_that_is_lowered_while_it_is_measured_ends_the_measurement(runs: Runs) -> None:
    with runs.started() as process:
        wait_until(lambda: runs.num_rows() >= 1, "first point")
        runs.nvml.set_conditions(limit_w=500)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2
    changed = "power limit 500 W (before: 700 W)"
    assert f"conditions have changed while it was measured: {changed}; restore them" in stderr
    assert "--resume continues it" in stderr
    num_rows = runs.num_rows()
    status, _, stderr = runs.finished("--resume")
    assert (status, runs.num_rows()) == (2, num_rows)
    assert f"out.csv:2: was measured under other conditions: {changed}; restore them" in stderr
    runs.nvml.set_conditions(limit_w=700)
    status, _, _ = runs.finished("--resume")
    assert (status, runs.num_rows()) == (0, 4)
    (conditions,) = read_stage_profile(runs.out).conditions
    assert conditions is not None
    assert (conditions.power_limit_w, conditions.memory_clock_mhz) == (700.0, 2619)


# ------------------------------------------------------------------ on an emulated GPU


def test_an_emulated_stage_is_profiled_and_the_profile_plans(tmp_path: Path) -> None:
    files = [tmp_path / f"stage-{stage}.csv" for stage in range(2)]
    for stage, file in enumerate(files):
        done = flyball(*EMULATED, "--stage", str(stage), "--step-mhz", "120", "-o", file)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"stage {stage} on emulated GPU of" in done.stdout
        assert "(emulated)" in done.stdout
        assert "measured" not in done.stdout
    whole = tmp_path / "whole.csv"
    assert flyball("profile", "join", *files, "-o", whole).returncode == 0
    profile, true = read_stage_profile(whole), load_example_profile()
    for (stage, kind), points in profile.points.items():
        assert len(points) > 3
        for point in points:
            expected = true.at(stage, kind, point.frequency_mhz)
            assert point.time_s == pytest.approx(expected.time_s, rel=0.02)
            assert point.energy_j == pytest.approx(expected.energy_j, rel=0.03)
    document_of("plan", whole, "--microbatches", "4", "--gpu", "a100", "--policy", "uniform")


ON_EXAMPLE = f"run --emulated {EXAMPLE} --stage 0 -o"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("run --stage 0", "the following arguments are required: -o/--output"),
        ("run --stage 0 -o o.csv", "give either MODULE:FUNCTION or --emulated"),
        ("run m:f --stage 0 -o o.csv --time-scale 2", "--time-scale needs --emulated"),
        (f"run --emulated {EXAMPLE} --stage 8 -o o.csv", "no stage 8; it has 0 to"),
        (f"{ON_EXAMPLE} o.csv --min-mhz 1400", "only 1410 MHz lies in the window of 1400 to 1410"),
        (f"{ON_EXAMPLE} {EXAMPLE}", "exists already; --resume continues it, --force overwrites it"),
        (f"{ON_EXAMPLE} {EXAMPLE} --resume", "fitted.csv:1: was not measured with these options"),
        (f"join {EXAMPLE} {EXAMPLE} -o o.csv", "is given twice; first in"),
        (f"blocking-power --emulated {EXAMPLE}", "needs its power: --blocking-power W"),
        ("online job", "give --planner URL, or set FLYBALL_PLANNER_URL"),
        ("", "the following arguments are required: ACTION"),
    ],
)
def test_bad_input_gets_one_line_and_status_2(
    arguments: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLYBALL_PLANNER_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    before = Path(EXAMPLE).read_bytes()
    refused = refusal(flyball("profile", *arguments.split()))
    assert refused.startswith("flyball profile: ")
    assert line in refused
    assert Path(EXAMPLE).read_bytes() == before
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ on a false NVML


def test_a_stage_is_measured_through_nvml_and_the_clock_given_back(runs: Runs) -> None:
    status, stdout, stderr = runs.finished("--json")
    assert (status, stderr) == (0, "")
    document = json.loads(stdout)
    assert (document["gpu"], document["emulated"]) == ("False GPU", False)
    assert runs.locked_mhz() == [1980, 1740, 1980, 1740]
    assert runs.nvml.locked_mhz() == 0
    profile = read_stage_profile(runs.out)
    for kind, least_s in ((InstructionKind.FORWARD, 0.005), (InstructionKind.BACKWARD, 0.01)):
        for mhz in (1980, 1740):
            point = profile.at(0, kind, mhz)
            assert point.time_s >= least_s
            # 50 W and a tenth of a watt per MHz; what passes between two runs counts as energy.
            assert 0.8 < point.energy_j / point.time_s / (50 + 0.1 * mhz) < 2


def test_a_clock_that_is_not_held_is_a_point_at_what_the_gpu_does(runs: Runs) -> None:
    runs.nvml.hold_below_mhz(1800)
    status, stdout, _ = runs.finished()
    assert status == 0
    assert "forward at 1980 MHz ran at 1800 MHz, limited by power\n" in stdout
    with runs.out.open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["frequency"], row["sm_clock"], row["held_by"]) for row in rows]
    assert found == [("1980", "1800", "power"), ("1740", "1740", "")] * 2
    profile = read_stage_profile(runs.out)
    assert [one.held_by for one in profile.points[0, InstructionKind.FORWARD]] == ["power", ""]


def test_ctrl_c_gives_the_clock_back_and_the_next_run_goes_on(runs: Runs) -> None:
    with runs.started() as process:
        wait_until(lambda: runs.num_rows() >= 1, "a point is in the file")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert runs.nvml.locked_mhz() == 0
    found = re.fullmatch(
        r"flyball profile: interrupted; (\d) points? (is|are) in \S+out.csv, --resume continues"
        r" it\n",
        stderr,
    )
    assert found is not None, stderr
    num_known = int(found.group(1))
    assert runs.num_rows() == num_known < 4
    num_locked = len(runs.locked_mhz())
    status, stdout, _ = runs.finished("--resume")
    assert status == 0
    assert f"out.csv: 4 points, {num_known} of an earlier run" in stdout
    assert len(runs.locked_mhz()) == num_locked + 4 - num_known
    assert len(read_stage_profile(runs.out).points[0, InstructionKind.BACKWARD]) == 2


def test_a_killed_profiler_leaves_its_points_and_no_locked_clock(runs: Runs) -> None:
    with runs.started() as process:
        wait_until(lambda: runs.num_rows() >= 1 and runs.nvml.locked_mhz(), "it measures")
        process.kill()
    wait_until(lambda: not runs.nvml.locked_mhz(), "the clock is given back")
    assert runs.num_rows() >= 1


def test_without_the_right_to_set_clocks_it_says_so_and_writes_nothing(runs: Runs) -> None:
    runs.nvml.fail("nvmlDeviceSetGpuLockedClocks", NO_PERMISSION)
    status, stdout, stderr = runs.finished()
    assert (status, stdout) == (2, "")
    assert stderr.startswith("flyball profile: the SM clock of False GPU cannot be set: locking")
    assert "; nothing was measured" in stderr
    assert stderr.count("\n") == 1
    assert not runs.out.exists()


# ------------------------------------------------------------------ two ranks


def test_the_power_of_a_rank_that_waits_for_another_is_measured() -> None:
    options = ("--blocking-power", "70", "--periods", "10", "--settle-s", "0.2")
    document = document_of("profile", "blocking-power", "--emulated", EXAMPLE, *options)
    assert document["emulated"] is True
    # The counter itself is looked at as seldom as a busy machine allows.
    assert document["blocking_power_w"] == pytest.approx(70.0, rel=0.25)
    assert document["num_periods"] == 10


def test_without_torch_one_line_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refusal(flyball("profile", "blocking-power"))
    assert line.startswith("flyball profile: two ranks that wait for each other need the extra")


def test_a_measured_blocking_power_fills_an_entry_of_the_gpu_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs are stood in for: their power is 91.5 W."""
    found = blocking_power.WaitingPower(
        power_w=91.5, power_error_w=0.2, num_periods=100, sm_clock_mhz=1980
    )
    gpu = SimpleNamespace(name='NVIDIA "H100"', is_emulated=False)
    monkeypatch.setattr(blocking_power, "_waiting_gpu", lambda _: nullcontext(gpu))
    monkeypatch.setattr(blocking_power, "_measure", lambda *_: found)
    file = tmp_path / "filled.toml"
    fill = ("profile", "blocking-power", "--fill")
    assert flyball(*fill, "h100-sxm", "-o", file).returncode == 0
    window = gpu_window_of(str(file), {})
    shipped = gpu_window_of("h100-sxm", {})
    assert (window.filter_max_mhz, window.blocking_power_w) == (shipped.filter_max_mhz, 91.5)
    source = window.sources["blocking_power_w"]
    assert source.startswith('flyball profile blocking-power on NVIDIA "H100" at 1980 MHz, 20')
    again = ("-o", tmp_path / "again.toml")
    emulated = ("--emulated", EXAMPLE, "--blocking-power", "70")
    refused: tuple[tuple[tuple[str | Path, ...], str], ...] = (
        ((file, *again), "has blocking_power_w already"),
        (("h100-sxm", "-o", file), "exists already; --force overwrites it"),
        (("h100-sxm",), "--fill NAME and -o OUT.toml go together"),
        (("h100", *again), "GPU 'h100' may be h100-nvl, h100-pcie, h100-sxm"),
        (("h200", *again, *emulated), "the power of an emulated GPU is given, not measured"),
    )
    for arguments, said in refused:
        assert said in refusal(flyball(*fill, *arguments))
