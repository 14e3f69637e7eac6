"""Configuration of a governor process, which reads it from its standard input."""

from __future__ import annotations

import os
import pickle
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flyball_client.governor.lock_record import show_governor
from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.gpu._base import GpuAddress
from flyball_wire.command.python_child import python_command, python_environment

_IMPORT_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class GovernorConfig:
    """Configuration for one GPU and one rank.

    Attributes:
        launcher: Process whose end also ends the governor; None: none.
        lease_s: Time in s without a hook after which the clock is restored until the next hook.
        rank_byte: Byte of the lock record that the rank has locked.
        shared_state_fd: Inherited descriptor of the shared memory.
        wake_fd: Inherited eventfd that the rank writes.
        rank_fd: Inherited end of a pipe whose other end the rank closes as it ends, and the kernel
            where the rank executes another program; None: there is none.
        record_fd: Inherited descriptor of the lock record; None: it is opened.
        active: Process to stand by for; None: this is the active one.
    """

    address: GpuAddress
    rank_name: str
    rank: ProcessIdentity
    launcher: ProcessIdentity | None
    lease_s: float
    state_dir: Path
    rank_byte: int
    shared_state_fd: int
    wake_fd: int
    rank_fd: int | None = None
    record_fd: int | None = None
    active: ProcessIdentity | None = None


def spawn_governor(config: GovernorConfig) -> subprocess.Popen[bytes]:
    """Start a governor process in a session of its own.

    Signals to the rank's process group or terminal do not reach it. Its messages are in the shared
    memory; it prints nothing.

    Raises:
        OSError: It cannot be started.
    """
    show = None
    if config.record_fd is not None:
        # Before the program starts, which takes long enough to be stopped meanwhile.
        show = partial(show_governor, config.record_fd, config.rank_byte)
    inherited = (config.shared_state_fd, config.wake_fd, config.rank_fd, config.record_fd)
    reading_fd, writing_fd = os.pipe()
    try:
        # It contains a daemon's token. It fits into the pipe's buffer, so this does not block.
        os.write(writing_fd, pickle.dumps(config))
        return subprocess.Popen(  # noqa: S603 - our own module
            python_command("-m", "flyball_client.governor.governor_process"),
            stdin=reading_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[fd for fd in inherited if fd is not None],
            start_new_session=True,
            preexec_fn=show,  # noqa: PLW1509 - a governor has one thread
            env=python_environment(os.environ, _IMPORT_ROOT),
        )
    finally:
        os.close(writing_fd)
        os.close(reading_fd)
