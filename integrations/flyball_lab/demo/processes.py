"""Processes of the demo, which are started, logged and ended: the planner, and the ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.options import NUM_STAGES, DemoOptions
from flyball_lab.demo.run_folder import DemoFailedError, RunFolder
from flyball_wire.command.python_child import python_command, python_environment

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHECK_S = 0.05


class Interruption:
    """Context in which SIGINT, SIGTERM and SIGHUP only set a flag; for the main thread.

    The flag is checked between steps and while the demo waits, so that an interruption comes
    neither between the start of a process and its registration nor during the clean-up.
    """

    def __init__(self) -> None:
        self._came = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal came."""
        if self._came:
            raise KeyboardInterrupt

    def sleep(self, seconds_s: float) -> None:
        """Pause; an interruption ends the pause.

        Raises:
            KeyboardInterrupt: a signal came before or during the pause.
        """
        deadline_s = time.monotonic() + seconds_s
        while True:
            self.check()
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return
            time.sleep(min(_CHECK_S, remaining_s))

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._came = True


_POLL_S = 0.1


class ChildProcess:
    """Python process in a session of its own, so that Ctrl-C reaches the demo alone.

    The end of its `with` block ends it: SIGTERM, on which torchrun ends its ranks, then SIGKILL.

    Args:
        arguments: after the Python interpreter.
        environment: its whole environment.
        log: takes its stdout and stderr.
        grace_s: time in s to end by itself after SIGTERM.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        grace_s: float = 10.0,
    ) -> None:
        self.log = log
        self._grace_s = grace_s
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                python_command(*arguments),
                env=python_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Exit status; None: it runs; negative: the signal that ended it."""
        return self._process.poll()

    def wait(self, interruption: Interruption, *, timeout_s: float) -> int | None:
        """Wait for the exit status; None: it still runs after `timeout_s`.

        Raises:
            KeyboardInterrupt: a signal came meanwhile.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.exit_status() is None and time.monotonic() < deadline_s:
            interruption.sleep(_POLL_S)
        return self.exit_status()

    def stop(self) -> None:
        """End the process and what it started."""
        if self.exit_status() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


# ------------------------------------------------------------------ the planner

_ADDRESS = re.compile(r"http://127\.0\.0\.1:[1-9]\d*")
_START_TIMEOUT_S = 60.0


def start_planner(folder: RunFolder, environment: Mapping[str, str]) -> ChildProcess:
    """Start the planner with its database in the run's folder."""
    return ChildProcess(
        [
            *("-m", "flyball_client", "serve", "--host", "127.0.0.1", "--port", "0"),
            *("--database", f"sqlite:///{folder.database}"),
        ],
        environment=environment,
        log=folder.planner_log,
        grace_s=3.0,
    )


def wait_for_planner(planner: ChildProcess, interruption: Interruption) -> str:
    """Return the planner's URL once it answers there.

    Raises:
        DemoFailedError: the planner ended, or does not answer in time.
        KeyboardInterrupt: a signal came meanwhile.
    """
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        check_planner(planner)
        if address := _ADDRESS.search(planner.log.read_text(errors="replace")):
            with suppress(PlannerError), PlannerClient(address.group(), timeout_s=2.0) as client:
                client.health()
                return address.group()
        interruption.sleep(_POLL_S)
    raise DemoFailedError("the planner did not start in time", planner.log)


def check_planner(planner: ChildProcess) -> None:
    """Raise DemoFailedError if the planner has ended."""
    status = planner.exit_status()
    if status is not None:
        raise DemoFailedError(f"the planner ended with status {status}", planner.log)


# ------------------------------------------------------------------ the ranks


@contextmanager
def started_ranks(
    folder: RunFolder, environment: Mapping[str, str], options: DemoOptions, *, planner_url: str
) -> Iterator[list[ChildProcess]]:
    """Context with a process for each rank, one a stage, as torchrun starts them on one machine."""
    arguments = (str(folder.path), planner_url, json.dumps(vars(options)))
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ChildProcess(
                    ["-m", "flyball_lab.demo.training_loop", *arguments],
                    environment={**environment, **_rank_variables(rank)},
                    log=folder.rank_log(rank),
                )
            )
            for rank in range(NUM_STAGES)
        ]


def _rank_variables(rank: int) -> dict[str, str]:
    # Ranks meet at a file; DeepSpeed reads an address all the same.
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(NUM_STAGES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }


def check_training(ranks: Sequence[ChildProcess]) -> bool:
    """Return whether training is over; raises DemoFailedError if a rank failed."""
    statuses = {rank: child.exit_status() for rank, child in enumerate(ranks)}
    # A rank that was killed comes first: the others only lost their neighbour.
    for rank, status in sorted(statuses.items(), key=lambda item: item[1] or 0):
        if status:
            ended = f"was ended by signal {-status}" if status < 0 else "failed"
            raise DemoFailedError(f"training rank {rank} {ended}", ranks[rank].log)
    return all(status == 0 for status in statuses.values())
