"""The options that `attach` of every integration takes, described once.

    attach(engine, job_id="gpt", target="slowdown:5%", profiling="online", lease_s=60)

Each is a keyword. One that is None counts as not given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import Any, TypedDict, cast

from flyball_client.gpu._base import GpuDevice, InstructionObserver
from flyball_client.session.rank_settings import Timing, WithoutPlanner
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import read_transitions
from flyball_wire.messages import Adaptation, Profiling
from flyball_wire.plan_options import Effort, Policy, Reconfigure

_NAMES: Mapping[str, type[StrEnum]] = {
    "policy": Policy,
    "reconfigure": Reconfigure,
    "effort": Effort,
    "profiling": Profiling,
    "adaptation": Adaptation,
}


class PlanningOptions(TypedDict, total=False):
    """Planning options that the job is registered with; the same on all ranks.

    `flyball_wire.plan_options.PlanOptions` and `flyball_wire.messages.JobSpec` describe them and
    have their defaults.

    Attributes:
        gpu_type: name in the GPU table (`a100`), which gives blocking power and times of clock
            changes; `gpu` in PlanOptions.
        blocking_power_w: power of a waiting GPU in W, one value or one per stage; takes
            precedence over `gpu_type`. One of the two is needed unless `profiling` is `online`.
        transition_ms: exact delay of each clock change in ms; 0: clocks change at once.
        transitions: times of the GPUs' clock changes, or the path of a TOML file with them
            (docs/profiling.md); excludes `transition_ms`. Default: those of `gpu_type`.
        gpus_at_once: number of GPUs of one stage in one node, whose clock changes queue. Default:
            as the ranks register.
        gpus_in_node: number of GPUs of all stages in one node, which set clocks one at a time.
            Default: as the ranks register.
        early_requests: false: request each clock when the instruction before ends, not within it.
        max_switches: limit on clock changes of a step, over all stages.
        min_dwell_ms: minimum time between two clock changes of a stage in ms.
        tail_ms: part of a step outside its instructions in ms. Default: as the job measures it.
        transfer_ms: time of a transfer between neighbouring stages in ms, one value or one for each
            pair of neighbours. Default: as the job measures them.
        activation_bytes: activation memory per microbatch in bytes, one value or one per stage;
            with `free_memory_bytes` it limits the orders that the planner advises.
        free_memory_bytes: memory that is free beyond what 1F1B uses in bytes, likewise.
    """

    gpu_type: str | None
    blocking_power_w: Sequence[float] | float | None
    policy: Policy | str | None
    reconfigure: Reconfigure | str | None
    target: str | None
    effort: Effort | str | None
    profiling: Profiling | str | None
    profiling_slowdown: float | None
    adaptation: Adaptation | str | None
    reserve: float | None
    transition_ms: float | None
    transitions: ClockTransitions | str | Path | None
    gpus_at_once: int | None
    gpus_in_node: int | None
    early_requests: bool | None
    max_switches: int | None
    min_dwell_ms: float | None
    tail_ms: float | None
    transfer_ms: Sequence[float] | float | None
    activation_bytes: Sequence[int] | int | None
    free_memory_bytes: Sequence[int] | int | None


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
    """

    planner_url: str | None
    token: str | None
    without_planner: WithoutPlanner | None
    lease_s: float | None
    gpu: GpuDevice | None
    strict: bool | None
    timing: Timing | None
    observer: InstructionObserver | None


class AttachOptions(PlanningOptions, RankOptions, total=False):
    """All options that `attach` has in every integration."""


def check_options(attach: Callable[..., object], options: Mapping[str, object]) -> None:
    """Check that all names are options of `attach`.

    Args:
        attach: function that received the options.
        options: the other keyword arguments.

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
        ValueError: an option with one value or several is neither a number nor a list of numbers,
            the file of `transitions` cannot be used, or an option is none of its names.
    """
    given = cast("Mapping[str, Any]", options)
    fields = {
        name: given[name]
        for name in sorted(PlanningOptions.__optional_keys__)
        if given.get(name) is not None
    }
    if "gpu_type" in fields:
        fields["gpu"] = fields.pop("gpu_type")
    for name, names in _NAMES.items():
        if name in fields:
            fields[name] = _named(name, fields[name], names)
    for name, unit in (("blocking_power_w", "watts"), ("transfer_ms", "ms")):
        if name in fields:
            fields[name] = _numbers(name, fields[name], unit)
    for name in ("activation_bytes", "free_memory_bytes"):
        if name in fields:
            fields[name] = tuple(map(int, _numbers(name, fields[name], "bytes")))
    if isinstance(fields.get("transitions"), str | Path):
        fields["transitions"] = read_transitions(Path(fields["transitions"]))
    return fields


def _named(option: str, given: object, names: type[StrEnum]) -> StrEnum:
    if given not in set(names):
        raise ValueError(f"{option} must be one of {', '.join(names)}, not {given!r}")
    return names(cast("str", given))


def _numbers(name: str, given: object, unit: str) -> tuple[float, ...]:
    """Return the number for all stages, or one per stage."""
    values: tuple[object, ...] = (given,)
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        # An array without dimensions cannot be gone through.
        with suppress(TypeError):
            values = tuple(cast("Iterable[object]", given))
    numbers = tuple(map(_finite_or_none, values))
    if None in numbers:
        raise ValueError(
            f"{name} must be a finite number of {unit}, or one per stage, not {given!r}"
        )
    return cast("tuple[float, ...]", numbers)


def _finite_or_none(value: object) -> float | None:
    # A truth value counts as a number in Python; numpy's own does not.
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None
