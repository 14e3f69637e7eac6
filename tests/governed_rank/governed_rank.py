"""One rank with its governor and standby on a false GPU, started and watched from outside."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import (
    SCAN_PAUSE_S,
    SeenProcess,
    StillWaitingError,
    number_in_namespace,
    process_with,
    processes_with,
    send,
    wait_until,
)
from tests.planner.patience import PATIENCE_S

from flyball_client.governor import shared_state as word
from flyball_client.governor.lock_record import find_records
from flyball_client.governor.shared_state import SharedState

RANK = Path(__file__).with_name("rank.py")
LAUNCHER = (sys.executable, str(Path(__file__).with_name("launcher.py")))
# The rank is process 1 of a PID namespace, as in a container.
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
GOVERNOR_MODULE = "flyball_client.governor.governor_process"
# The promise is a second; a busy machine may need longer to run what is ready to run.
GIVEN_BACK_WITHIN_S = 5.0
_TAG = "GOVERNED_RANK"


class GovernedRank:
    """A rank in a process of its own; all its processes are ended with it.

    It is started and not waited for, so that several can start at once.

    Args:
        nvml: whose first GPU it has.
        folder: for its log and the record of the lock.
        seed: of the clocks that it asks for.
        lease_s: of its governor, s.
        return_mhz: lowest and highest clock that its clock is given back to; None: the default.
        launcher: the command that starts it; none: it is started from here.
    """

    def __init__(
        self,
        nvml: FalseNvml,
        folder: Path,
        *,
        seed: int = 0,
        lease_s: float = 30.0,
        return_mhz: tuple[int, int] | None = None,
        launcher: tuple[str, ...] = (),
    ) -> None:
        self.nvml = nvml
        self._folder = folder
        self.state_dir = node_dir_in(folder) / str(os.geteuid())
        self._is_in_container = launcher == CONTAINER
        self._default_mhz = return_mhz or (0, 0)
        self._tag = uuid.uuid4().hex
        self._log = folder / f"{self._tag}.log"
        command = [sys.executable, str(RANK), "--seed", str(seed), "--lease-s", str(lease_s)]
        command += ["--state-dir", str(self.state_dir)]
        if return_mhz is not None:
            command += ["--return-mhz", *map(str, return_mhz)]
        # PYTHONUNBUFFERED: a launcher may stand between.
        environment = nvml.environment | {_TAG: self._tag, "PYTHONUNBUFFERED": "1"}
        environment.pop("TORCHELASTIC_RUN_ID", None)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        self._shared_state: SharedState | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ what can be seen

    @cached_property
    def pid(self) -> int:
        """The rank's process number; waits until it is about to start its governor."""
        pid = self._seen_from_here(int(self._read_line()))
        self._shared_state = board_of(pid)
        return pid

    @property
    def words(self) -> memoryview:
        """The board that rank and governor share, also when they are gone."""
        assert self.pid and self._shared_state is not None
        return self._shared_state.words

    @property
    def log(self) -> str:
        """Return what the rank logged."""
        return self._log.read_text()

    @property
    def pair(self) -> tuple[int, int]:
        """Process numbers of the governor and its standby, as they say; 0: not yet."""
        active, standby = self.words[word.ACTIVE_PID], self.words[word.STANDBY_PID]
        return self._seen_from_here(active), self._seen_from_here(standby)

    def governors(self) -> list[SeenProcess]:
        """The governor processes that live; the standby was started last."""
        living = [process for process in self._processes() if GOVERNOR_MODULE in process.command]
        return sorted(living, key=lambda process: process.pid)

    def is_alive(self) -> bool:
        """Return whether the rank has not ended."""
        return process_with(_TAG, self._tag, self.pid) is not None

    def is_restored(self) -> bool:
        """Return whether the GPU has the clocks that it shall have without Flyball."""
        return self.nvml.range_mhz() == self._default_mhz

    def has_clean_record(self) -> bool:
        """Return whether no record says that the clock may be locked."""
        return find_records(self.state_dir) == []

    def num_resets(self) -> int:
        """Return how often the clock was given back to the driver so far."""
        return len(self.nvml.calls("nvmlDeviceResetGpuLockedClocks"))

    def report(self) -> dict[str, int]:
        """Return what the rank says of itself: `num_rounds` of its loop, and `is_over`."""
        assert self.pid  # the first line that it says
        self.tell("report")
        fields: dict[str, int] = json.loads(self._read_line())
        return fields

    def pids(self) -> list[int]:
        """Process numbers of the rank and its governors."""
        return [process.pid for process in self._processes()]

    # ------------------------------------------------------------------ what can be done

    def tell(self, word: str) -> None:
        """Say a word to the rank; see `rank.py`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def wait_until_governed(self) -> float:
        """Wait until clocks are set from now on, and there is a standby; how long, s."""
        num_switches = self.words[word.NUM_SWITCHES]

        def is_governed() -> bool:
            return self.words[word.NUM_SWITCHES] > num_switches and all(self.pair)

        return wait_until(is_governed, f"the rank is governed\n{self.log}")

    def wait_until_stood_by(self) -> None:
        """Wait until governor and standby live, and no third."""

        def is_pair() -> bool:
            living = {process.pid for process in self.governors()}
            return living == set(self.pair) and len(living) == 2

        wait_until(is_pair, f"governor and standby live\n{self.log}", pause_s=SCAN_PAUSE_S)

    def wait_until_ungoverned(self) -> None:
        """Wait until governor and standby have ended."""
        what = f"governor and standby have ended\n{self.log}"
        wait_until(lambda: not self.governors(), what, pause_s=SCAN_PAUSE_S)

    def wait_until_gone(self) -> None:
        """Wait until rank, governor and standby have ended."""
        what = f"rank, governor and standby have ended\n{self.log}"
        wait_until(lambda: not self._processes(), what, pause_s=SCAN_PAUSE_S)

    def check_all_over(self) -> None:
        """After the rank's end: the clock is and stays given back, and nobody is left behind."""
        wait_until(self.is_restored, f"given back\n{self.log}", patience_s=GIVEN_BACK_WITHIN_S)
        self.wait_until_gone()
        assert self.is_restored(), "locked again by somebody's last act"
        assert self.has_clean_record(), find_records(self.state_dir)

    def check_goes_on(self, *, is_over: bool = False) -> None:
        """The rank's training goes on, with clocks or for good without."""
        before = self.report()
        after = before
        give_up_s = time.monotonic() + PATIENCE_S
        while after["num_rounds"] <= before["num_rounds"] or bool(after["is_over"]) != is_over:
            if time.monotonic() > give_up_s:
                raise StillWaitingError(f"{before}, then {after}, is_over not {is_over}")
            time.sleep(0.01)
            after = self.report()

    def successor(self) -> GovernedRank:
        """The next rank on the same GPU."""
        return GovernedRank(self.nvml, self._folder)

    def end(self) -> None:
        """Let the training end as it should: no exception, nothing locked, nobody left."""
        self.tell("end")
        wait_until(lambda: not self.is_alive(), "the rank ends")
        assert "Traceback" not in self.log, self.log
        self.check_all_over()

    def close(self) -> None:
        """End what is left of it."""
        wait_until(self._kill_what_is_left, "all processes end", pause_s=SCAN_PAUSE_S)
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        if self._shared_state is not None:
            self._shared_state.close()

    # ------------------------------------------------------------------ inside

    def _processes(self) -> list[SeenProcess]:
        return processes_with(_TAG, self._tag)

    def _seen_from_here(self, pid: int) -> int:
        """Translate a process number of the rank's PID namespace; 0: there is no such process."""
        if not self._is_in_container or not pid:
            return pid
        return next((seen for seen in self.pids() if number_in_namespace(seen) == pid), 0)

    def _kill_what_is_left(self) -> bool:
        left = self._processes()
        for process in left:
            send(process.pid, signal.SIGKILL)
        return not left

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise StillWaitingError(f"the rank says nothing\n{self.log}")
        line = self.process.stdout.readline().decode()
        if not line:
            raise StillWaitingError(f"the rank has ended\n{self.log}")
        return line


def node_dir_in(folder: Path) -> Path:
    """The folder that FLYBALL_STATE_DIR names for ranks whose files are in this one."""
    return folder / "state"


def board_of(pid: int) -> SharedState:
    """The board of a rank, mapped here too."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if re.match(r"/memfd:flyball-clock-state\b", str(link.readlink())):
            return SharedState(os.open(link, os.O_RDWR | os.O_CLOEXEC))
    raise StillWaitingError(f"process {pid} has no board")
