"""Configuration of a governor process, handed to it on its standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.gpu._base import GpuAddress, SmClockRange

_IMPORT_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class GovernorConfig:
    """One GPU's clock for one rank.

    Attributes:
        address: of the GPU.
        rank_name: the job and rank, for people.
        rank: the training process.
        launcher: whose end ends the governing too; None: nobody's.
        lease_s: without a sign of life for so long, the clock is given back until the next one, s.
        state_dir: where the record is.
        shared_state_fd: shared memory, inherited.
        wake_fd: an eventfd that the rank writes, inherited.
        record_fd: the record's file, inherited; None: to be opened.
        active: whom to stand by for; None: be the active one.
    """

    address: GpuAddress
    rank_name: str
    rank: ProcessIdentity
    launcher: ProcessIdentity | None
    lease_s: float
    state_dir: Path
    shared_state_fd: int
    wake_fd: int
    record_fd: int | None = None
    active: ProcessIdentity | None = None

    def with_record(self, record_fd: int) -> GovernorConfig:
        """The same, with the record opened."""
        return replace(self, record_fd=record_fd)

    def for_standby(self, active: ProcessIdentity) -> GovernorConfig:
        """The same, for the one that stands by."""
        return replace(self, active=active)

    def to_json(self) -> str:
        """One line; holds zeusd's token, so it goes through pipes only."""
        return json.dumps(asdict(self) | {"state_dir": str(self.state_dir)})

    @classmethod
    def from_json(cls, text: str) -> GovernorConfig:
        """Return what `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        address: dict[str, Any] = fields["address"]
        if address["return_range"] is not None:
            address["return_range"] = SmClockRange(**address["return_range"])
        fields["address"] = GpuAddress(**address)
        fields["state_dir"] = Path(fields["state_dir"])
        for name in ("rank", "launcher", "active"):
            if fields[name] is not None:
                fields[name] = ProcessIdentity(**fields[name])
        return cls(**fields)


def spawn_governor(config: GovernorConfig) -> subprocess.Popen[bytes]:
    """Start a governor process for this charge, in a session of its own.

    So no signal for the rank's process group or terminal reaches it. It writes nothing: what it
    has to say is on the board.

    Raises:
        OSError: it cannot be started.
    """
    inherited = (config.shared_state_fd, config.wake_fd, config.record_fd)
    reading_fd, writing_fd = os.pipe()
    try:
        # Far less than a pipe holds, so this does not wait for anybody to read it.
        os.write(writing_fd, config.to_json().encode() + b"\n")
        return subprocess.Popen(
            # -P: the training script's folder may hold a file named as a standard module.
            [sys.executable, "-P", "-m", "flyball_client.governor.governor_process"],
            stdin=reading_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[fd for fd in inherited if fd is not None],
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": _python_path()},
        )
    finally:
        os.close(writing_fd)
        os.close(reading_fd)


def _python_path() -> str:
    """Return where this package was imported from, before whatever the environment names."""
    root = str(_IMPORT_ROOT)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([root, *(path for path in named if path not in {"", root})])
