"""Which start of a job this process belongs to, as its launcher tells in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# torchrun calls a run so where nobody has named it.
_UNNAMED = "none"
_RUNS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_RESTART_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_MAX_CHARACTERS = 256


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a launcher tells of a start; None: nothing.

    Attributes:
        run: its name for the start that somebody asked for.
        restart_count: how often it has started that again by itself.
    """

    run: str | None = None
    restart_count: int | None = None


def launch_of(environ: Mapping[str, str]) -> Launch:
    """What torchrun, Slurm, PBS or LSF say; what cannot be used is left out."""
    runs = (environ.get(name, "") for name in _RUNS)
    usable = (run for run in runs if run not in {"", _UNNAMED} and run.isprintable())
    counts = (environ.get(name, "") for name in _RESTART_COUNTS)
    digits = (count for count in counts if count.isascii() and count.isdigit() and len(count) < 10)
    run, count = next(usable, None), next(digits, None)
    return Launch(
        run=None if run is None else run[:_MAX_CHARACTERS],
        restart_count=None if count is None else int(count),
    )
