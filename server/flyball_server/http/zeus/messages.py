"""Zeus's addresses and types, as in `zeus.optimizer.pipeline_frequency.common` 0.16.0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from flyball_wire.messages import JobSpec
from flyball_wire.options import options_of
from flyball_wire.strictness import Sent

REGISTER_JOB = "/register_job"
REGISTER_RANK = "/register_rank/{job_id}"
SCHEDULE = "/schedule/{job_id}"
RESULT = "/result/{job_id}"

_ABOUT_A_JOB = tuple(
    template.removesuffix("{job_id}") for template in (REGISTER_RANK, SCHEDULE, RESULT)
)


def is_zeus_path(path: str) -> bool:
    """Return whether a path is one of Zeus's."""
    return path == REGISTER_JOB or path.startswith(_ABOUT_A_JOB)


def job_of(path: str) -> str:
    """Return the job in one of Zeus's paths; empty: none."""
    prefix = next(filter(path.startswith, _ABOUT_A_JOB), None)
    return "" if prefix is None else path.removeprefix(prefix)


@dataclass(frozen=True, kw_only=True)
class JobInfo(Sent):
    """A job, registered by its rank 0.

    Attributes:
        job_id: empty; the planner chooses it.
        job_metadata: text of the training script; see `job_metadata.py`.
    """

    pp_degree: Annotated[int, options_of(JobSpec)["num_stages"]]
    dp_degree: int
    tp_degree: int
    world_size: Annotated[int, options_of(JobSpec)["num_ranks"]]
    job_id: str = ""
    job_metadata: str | None = None


@dataclass(frozen=True, kw_only=True)
class RankInfo(Sent):
    """A rank.

    Attributes:
        available_frequencies: SM clocks of its GPU, MHz.
    """

    rank: int
    dp_rank: int
    pp_rank: int
    tp_rank: int
    available_frequencies: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FrequencySchedule:
    """Plan of a rank: name and MHz of each instruction of an iteration, in order of execution."""

    rank: int
    frequencies: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class PostedIterations(Sent):
    """Measured iterations of a rank; the client of 0.16.0 posts none.

    Attributes:
        iter_time: time of each iteration, s.
        iter_energy: energy of each iteration, J.
        time_breakdown, energy_breakdown: figures of instructions, which are not stored.
    """

    rank: int
    iter_time: tuple[float, ...]
    iter_energy: tuple[float, ...]
    time_breakdown: dict[str, list[list[float]]] = field(
        default_factory=dict[str, list[list[float]]]
    )
    energy_breakdown: dict[str, list[list[float]]] = field(
        default_factory=dict[str, list[list[float]]]
    )
