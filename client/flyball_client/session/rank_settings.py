"""Settings of a training rank from its environment; arguments in the script take precedence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from flyball_client.api.planner_client import PlannerClient
from flyball_client.governor.process_governor import DEFAULT_LEASE_S

# torchrun's name of a run that has none.
_UNNAMED = "none"
_RUNS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_RESTART_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_MAX_CHARACTERS = 256


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Run of a job, as its launcher names it; None: not known.

    Attributes:
        run: Name of the run.
        restart_count: Number of automatic restarts of that run.
    """

    run: str | None = None
    restart_count: int | None = None


def launch_of(environ: Mapping[str, str]) -> Launch:
    """Return the run that torchrun, Slurm, PBS or LSF name; unusable values are left out."""
    runs = (environ.get(name, "") for name in _RUNS)
    usable = (run for run in runs if run not in {"", _UNNAMED} and run.isprintable())
    counts = (environ.get(name, "") for name in _RESTART_COUNTS)
    digits = (count for count in counts if count.isascii() and count.isdigit() and len(count) < 10)
    run, count = next(usable, None), next(digits, None)
    return Launch(
        run=None if run is None else run[:_MAX_CHARACTERS],
        restart_count=None if count is None else int(count),
    )


WithoutPlanner = Literal["last-plan", "default-clocks"]


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """Addresses of a rank's planner and GPU, and its behaviour without a planner.

    Attributes:
        planner_url: Address of the planner (`FLYBALL_PLANNER_URL`); None: no planner.
        token: Token for the planner (`FLYBALL_TOKEN`).
        lease_s: Time in s without a hook after which the clock is restored (`FLYBALL_LEASE_S`).
        without_planner: Clocks while the planner is lost (`FLYBALL_WITHOUT_PLANNER`).
        local_rank: CUDA's number of this process's GPU (`LOCAL_RANK`).
    """

    planner_url: str | None
    token: str | None
    lease_s: float
    without_planner: WithoutPlanner
    local_rank: int

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        *,
        planner_url: str | None = None,
        token: str | None = None,
        lease_s: float | None = None,
        without_planner: WithoutPlanner | None = None,
    ) -> RankSettings:
        """Read the settings; an empty variable counts as not set.

        Args:
            environ: Environment variables.
            planner_url: Address of the planner; takes precedence, like the following ones.
            token: Token for the planner.
            lease_s: Lease in s.
            without_planner: `last-plan` or `default-clocks`.

        Raises:
            ValueError: A variable cannot be used; the text names it.
        """
        return cls(
            planner_url=planner_url or environ.get("FLYBALL_PLANNER_URL") or None,
            token=token or environ.get("FLYBALL_TOKEN") or None,
            lease_s=_lease_s(environ) if lease_s is None else lease_s,
            without_planner=without_planner or _without_planner(environ),
            local_rank=_local_rank(environ),
        )

    def open_planner(self) -> PlannerClient | None:
        """Open a client of the planner; None: no planner is set.

        Raises:
            ValueError: The address or token is invalid.
        """
        if self.planner_url is None:
            return None
        return PlannerClient(self.planner_url, token=self.token)


def _lease_s(environ: Mapping[str, str]) -> float:
    text = environ.get("FLYBALL_LEASE_S")
    if not text:
        return DEFAULT_LEASE_S
    try:
        lease_s = float(text)
    except ValueError:
        lease_s = math.nan
    if not 0 < lease_s < math.inf:
        raise ValueError(f"FLYBALL_LEASE_S must be a number of seconds above 0, not {text!r}")
    return lease_s


def _without_planner(environ: Mapping[str, str]) -> WithoutPlanner:
    text = environ.get("FLYBALL_WITHOUT_PLANNER") or "last-plan"
    check_without_planner("FLYBALL_WITHOUT_PLANNER", text)
    return cast("WithoutPlanner", text)


def check_without_planner(name: str, value: str) -> None:
    """Raise ValueError unless the value is one of `WithoutPlanner`."""
    if value not in get_args(WithoutPlanner):
        raise ValueError(f"{name} must be last-plan or default-clocks, not {value!r}")


def _local_rank(environ: Mapping[str, str]) -> int:
    text = environ.get("LOCAL_RANK") or "0"
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"LOCAL_RANK must be a whole number, not {text!r}")
    return int(text)
