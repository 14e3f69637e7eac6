"""The options that `attach` of every integration takes, described once.

    attach(engine, job_id="gpt", target="slowdown:5%", profiling="online", lease_s=60)

Each is a keyword. One that is None counts as not given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, cast

from flyball_client.gpu._base import GpuDevice, InstructionObserver
from flyball_client.session.rank_settings import Timing, WithoutPlanner
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import read_transitions
from flyball_wire.messages import Adaptation, JobSpec, Profiling
from flyball_wire.options import Option, options_of
from flyball_wire.plan_options import GivenOptions, PlanOptions, check_together

#: Options of PlanningOptions, by the name of the registered field.
ATTACHED_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {name: declared for name, declared in options_of(JobSpec).items() if not declared.is_frameworks}
)

ANNOUNCES_WORK = Option(name="announces_work", kind=bool)


class PlanningOptions(GivenOptions, total=False):
    """Planning options that the job is registered with; the same on all ranks.

    `flyball_wire.plan_options.PlanOptions` and `flyball_wire.messages.JobSpec` declare them, with
    bounds and defaults; docs/commands.md has them as a table. A path as `transitions` is that of a
    TOML file.
    """

    transitions: ClockTransitions | str | Path | None
    profiling: Profiling | str | None
    profiling_slowdown: float | None
    adaptation: Adaptation | str | None
    max_work_error: float | None


class RankOptions(TypedDict, total=False):
    """Planner and GPU of this rank's session.

    Attributes:
        planner_url: address of the planner; default: `FLYBALL_PLANNER_URL`, else no planner is
            used.
        token: token for the planner; default: `FLYBALL_TOKEN`.
        without_planner: clocks while the planner cannot be reached, `last-plan` or
            `default-clocks`; default: `FLYBALL_WITHOUT_PLANNER`, else `last-plan`.
        lease_s: time in s without a hook after which the clock is restored; default:
            `FLYBALL_LEASE_S`, else 30.
        gpu: GPU whose clock is set; default: the GPU of this process's local rank, or with
            `FLYBALL_GPU=emulated:PROFILE.csv` an emulated one of this rank's stage.
        strict: True: raise an error if the machine lacks a GPU, shared memory or the right to
            set clocks; False: log it, and train without; default: `FLYBALL_STRICT`, else False.
        timing: `stream`: hooks are called as the GPU reaches them, and the host launches ahead;
            `synchronize`: the host waits for the GPU before each hook; default:
            `FLYBALL_TIMING`, else `stream`.
        observer: receiver of each instruction's begin and end; default: `gpu` itself if it is
            emulated, else none.
        announces_work: True: the work of each step is announced before it, and each step gets
            clocks of its own, on which the ranks agree over gloo; give all ranks the same; default:
            False.
    """

    planner_url: str | None
    token: str | None
    without_planner: WithoutPlanner | None
    lease_s: float | None
    gpu: GpuDevice | None
    strict: bool | None
    timing: Timing | None
    observer: InstructionObserver | None
    announces_work: bool | None


class AttachOptions(PlanningOptions, RankOptions, total=False):
    """All options that `attach` has in every integration."""


def announces_work(options: RankOptions) -> bool:
    """Return whether the work of steps is announced.

    Raises:
        ValueError: the option is neither True nor False.
    """
    given = options.get("announces_work")
    return given is not None and bool(ANNOUNCES_WORK.read(given))


def announced_text(options: RankOptions) -> str:
    """Return what ranks that announce work have in common, behind their order; empty: nothing."""
    return ", work announced" if announces_work(options) else ""


def check_options(attach: Callable[..., object], options: Mapping[str, object]) -> None:
    """Check that all names are options of `attach`.

    Raises:
        TypeError: A name is not an option; the text names it and the function.
    """
    for name in options:
        if name in AttachOptions.__optional_keys__:
            continue
        known = [*inspect.signature(attach).parameters, *AttachOptions.__optional_keys__]
        likely = get_close_matches(name, sorted(known), n=1)
        hint = f"did you mean {likely[0]!r}?" if likely else f"see {__name__}"
        raise TypeError(
            f"{attach.__module__}.{attach.__qualname__}() got an unexpected keyword argument"
            f" {name!r}; {hint}"
        )


def registered_fields(options: PlanningOptions) -> dict[str, Any]:
    """Return the fields of a JobRegistration that the options set; others keep their defaults.

    Raises:
        ValueError: an option is out of its bounds or goes with none of the others, or the file of
            `transitions` cannot be used.
    """
    given = cast("Mapping[str, Any]", options)
    fields = {
        name: declared.read(given[declared.keyword]) if declared.is_readable else given[name]
        for name, declared in ATTACHED_OPTIONS.items()
        if given.get(declared.keyword) is not None
    }
    if isinstance(fields.get("transitions"), str | Path):
        fields["transitions"] = read_transitions(Path(fields["transitions"]))
    planned = {name: value for name, value in fields.items() if name in options_of(PlanOptions)}
    check_together(PlanOptions(**planned))
    return fields
