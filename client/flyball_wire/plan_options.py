"""Options of a plan, declared once, and the names that they take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Annotated, TypedDict

from flyball_pipeline.instruction import Checkpoint
from flyball_profiles.clock_transitions import MAX_TRANSITION_S, ClockTransitions
from flyball_wire.options import NumValues, Option, OptionError, options_of
from flyball_wire.strictness import Sent, StrictFields
from flyball_wire.targets import TARGET_FORM, is_target


class Policy(StrEnum):
    """Rule that gives each instruction its clock."""

    BASELINE = "baseline"
    UNIFORM = "uniform"
    ENVELOPE = "envelope"
    GLOBAL = "global"
    CONSTANT = "constant"
    FRONTIER = "frontier"


class Reconfigure(StrEnum):
    """EnvPipe's reconfiguration: rule that raises clocks on the critical path."""

    DEFAULT = "default"
    GREEDY = "greedy"
    BALANCED = "balanced"


class Effort(StrEnum):
    """Effort of the search; a higher effort takes longer and ends nearer to the bound."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


DEFAULT_SCHEDULE = "1f1b"
DEFAULT_TARGET = "fastest"
MAX_RESERVE = 0.5
MAX_GPUS_IN_NODE = 1024
_ENVPIPE = (Policy.BASELINE, Policy.UNIFORM, Policy.ENVELOPE)
# Headings in the help of `flyball plan`, and the options below them.
PIPELINE, GPUS, CLOCKS = "pipeline", "GPUs", "clocks"
_gpus, _clocks = partial(Option, group=GPUS), partial(Option, group=CLOCKS)
_frontiers = partial(_clocks, policies=(Policy.FRONTIER,))
_frameworks = partial(Option, is_frameworks=True)

Order = tuple[tuple[tuple[str | int, ...], ...], ...]
"""Per stage, in the order of execution, `(kind, microbatch)` or `(kind, microbatch, chunk)`."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Sent):
    """Options that decide how a pipeline is planned."""

    schedule: Annotated[
        str,
        _frameworks(
            "name of a schedule (`gpipe`, `1f1b`, `interleaved-1f1b`, ...), `step` without a"
            " pipeline, `explicit` with an `order`, or `auto`, which only the offline commands"
            " take"
        ),
    ] = DEFAULT_SCHEDULE
    policy: Annotated[
        Policy,
        _clocks("rule that gives each instruction its clock", is_of_a_plan=True),
    ] = Policy.FRONTIER
    reconfigure: Annotated[
        Reconfigure | None,
        _clocks(
            "EnvPipe's reconfiguration, `default` for none",
            policies=_ENVPIPE,
            may_idle=True,
            if_null="`default` for policy `uniform`, else `balanced`, as in EnvPipe's evaluation",
            offline="none for policy uniform, else balanced",
            is_of_a_plan=True,
        ),
    ] = None
    target: Annotated[
        str,
        _clocks(
            "`fastest`, `slowdown:5%`, `deadline:2.9` (s), `least-energy`, `power:8000` (average"
            " W) or `power:limit` (the sum of the GPUs' enforced power limits)",
            more="EnvPipe's policies support `fastest` only",
            form=TARGET_FORM,
            check=is_target,
            is_of_a_plan=True,
        ),
    ] = DEFAULT_TARGET
    effort: Annotated[Effort, _frontiers("search effort", may_idle=True)] = Effort.NORMAL
    reserve: Annotated[
        float | None,
        _frontiers(
            "share by which instructions may take longer than profiled without making the iteration"
            " longer, as far as the pipeline has slack",
            bounds=(0, MAX_RESERVE),
            is_share=True,
            if_null="chosen from the scatter of the profiled times, or of the job's own if the"
            " profile has none",
            offline="auto: chosen from the scatter of the profiled times, 0 if the profile has"
            " none",
            null_word="auto",
            example="0.01",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        _gpus(
            "name in the GPU table (`a100`), which gives blocking power and times of clock changes",
            flag_help="entry of the GPU table (a100), or a file (./mine.toml)",
            key="gpu_type",
        ),
    ] = None
    blocking_power_w: Annotated[
        tuple[float, ...] | None,
        _gpus(
            "power of a GPU that waits in communication in W, one value or one per stage",
            bounds=(0, 100_000),
            num_values=NumValues.ONE_OR_PER_STAGE,
            if_null="the value that the GPU table has for `gpu`",
            offline="from --gpu",
            flag="--blocking-power",
            example="70 or 70,84",
        ),
    ] = None
    transition_ms: Annotated[
        float | None,
        Option(
            "delay of each clock change, up or down, in ms",
            more="0: clocks change at once",
            bounds=(0, MAX_TRANSITION_S * 1e3),
            if_null="as in `transitions`",
            flag_help="delay in ms of each clock change, up or down; an iteration's first clock is"
            " then in force from its start",
            example="5",
        ),
    ] = None
    transitions: Annotated[
        Annotated[ClockTransitions, StrictFields()] | None,
        Option(
            "times of the GPUs' clock changes",
            more="It excludes `transition_ms`",
            if_null="those that the GPU table has for `gpu`, else clocks change at once",
        ),
    ] = None
    gpus_at_once: Annotated[
        int | None,
        _gpus(
            "number of GPUs of one stage in one node (tensor parallelism, or data-parallel"
            " pipelines)",
            more="They change their clocks together, and where calls queue the last one waits for"
            " the others",
            bounds=(1, 128),
            if_null="as the job's ranks register",
            offline="1",
            example="8",
        ),
    ] = None
    gpus_in_node: Annotated[
        int | None,
        _gpus(
            "number of GPUs of all stages in one node",
            more="Where their calls queue, a clock waits for a call of another stage too, and an"
            " iteration has no more changes than keep the calls within half of its time",
            bounds=(1, MAX_GPUS_IN_NODE),
            if_null="as the job's ranks register",
            offline="1",
            example="8",
        ),
    ] = None
    early_requests: Annotated[
        bool,
        _frontiers(
            "where clock changes take time, whether a clock may be requested before the previous"
            " instruction ends, so that it is in force when its own begins",
            may_idle=True,
            flag="--no-early-requests",
            flag_help="request each clock when the previous instruction ends, not before (default:"
            " earlier where clock changes take time and an instruction would wait for them)",
        ),
    ] = True
    max_switches: Annotated[
        int | None,
        _frontiers(
            "limit on clock changes of an iteration, over all stages",
            more="Not for target `power:`",
            if_null="no limit",
            is_of_a_plan=True,
            example="40",
        ),
    ] = None
    min_dwell_ms: Annotated[
        float | None,
        _frontiers(
            "minimum time from the request of a stage's clock to that of its next clock in ms",
            more="Not for target `power:`",
            bounds=(0, 60_000),
            if_null="none",
            is_of_a_plan=True,
            example="50",
        ),
    ] = None
    tail_ms: Annotated[
        float | None,
        _gpus(
            "part of an iteration outside its instructions (optimizer, all-reduce, loading) in ms",
            more="All GPUs wait during it",
            bounds=(0, 600_000),
            if_null="none, or as the job measures it",
            offline="0",
            example="20",
        ),
    ] = None
    transfer_ms: Annotated[
        tuple[float, ...] | None,
        _gpus(
            "time of a transfer from one stage to the next or back in ms, one value or one for each"
            " pair of neighbours",
            more="A transfer between other stages takes as long as the longest",
            bounds=(0, 10_000),
            num_values=NumValues.ONE_OR_PER_PAIR,
            if_null="none, or as the job measures them",
            offline="0",
            example="1.5 or 1.5,2",
        ),
    ] = None
    checkpoint: Annotated[
        Checkpoint | None,
        _frameworks(
            "microbatches whose forward is recomputed before their backward",
            schedules=("torchgpipe",),
            if_null=f"`{Checkpoint.EXCEPT_LAST}`",
            group=PIPELINE,
        ),
    ] = None
    order: Annotated[
        Order | None,
        _frameworks(
            "per stage, in the order of execution, `[kind, microbatch]` or `[kind, microbatch,"
            " chunk]`",
            schedules=("explicit",),
        ),
    ] = None
    virtual_stages: Annotated[
        tuple[tuple[int, ...], ...] | None,
        _frameworks(
            "with `order`: per stage, the position of each of its chunks in the model, from 0",
            if_null="one chunk per stage, in the order of the stages",
            flag="--order",
        ),
    ] = None
    extra_forwards: Annotated[
        tuple[int, ...] | None,
        _frameworks(
            "per stage, the forwards in front of its first backward beyond those of 1F1B",
            more="A job gives those that its ranks run",
            num_values=NumValues.EACH_STAGE,
            schedules=("envpipe",),
            if_null="as many as profile and memory allow, offline only",
            offline="as many as profile and memory allow",
            group=PIPELINE,
            example="3,2,1,0",
        ),
    ] = None
    activation_bytes: Annotated[
        tuple[int, ...] | None,
        _gpus(
            "activation memory per microbatch in flight in bytes, one value or one per stage",
            more="With `free_memory_bytes` it limits the extra forwards of `envpipe`, and an order"
            " that does not fit is refused",
            bounds=(1, None),
            num_values=NumValues.ONE_OR_PER_STAGE,
        ),
    ] = None
    free_memory_bytes: Annotated[
        tuple[int, ...] | None,
        _gpus(
            "memory that is free beyond what 1F1B uses in bytes, one value or one per stage",
            more="It goes with `activation_bytes`",
            num_values=NumValues.ONE_OR_PER_STAGE,
        ),
    ] = None

    @property
    def limits_changes(self) -> bool:
        """True if the clock changes of a plan are limited."""
        return self.max_switches is not None or self.min_dwell_ms is not None

    @property
    def transfer_s(self) -> tuple[float, ...]:
        """Times of transfers between neighbouring stages, s."""
        return tuple(time_ms / 1e3 for time_ms in self.transfer_ms or ())

    @property
    def reconfiguration(self) -> Reconfigure:
        """Reconfiguration that the policy runs with."""
        if self.reconfigure is not None:
            return self.reconfigure
        return Reconfigure.DEFAULT if self.policy == Policy.UNIFORM else Reconfigure.BALANCED


_OPTION_NAMES = tuple(field.name for field in fields(PlanOptions))


def plan_options(source: PlanOptions) -> PlanOptions:
    """Return only the plan options of an object with more fields, such as a job."""
    return PlanOptions(**{name: getattr(source, name) for name in _OPTION_NAMES})


class GivenOptions(TypedDict, total=False):
    """Types in which a script gives `attach` the options of PlanOptions, for type checkers."""

    policy: Policy | str | None
    reconfigure: Reconfigure | str | None
    target: str | None
    effort: Effort | str | None
    reserve: float | None
    transition_ms: float | None
    gpus_at_once: int | None
    gpus_in_node: int | None
    early_requests: bool | None
    max_switches: int | None
    min_dwell_ms: float | None
    tail_ms: float | None
    transfer_ms: Sequence[float] | float | None
    blocking_power_w: Sequence[float] | float | None
    gpu_type: str | None
    activation_bytes: Sequence[int] | int | None
    free_memory_bytes: Sequence[int] | int | None


@dataclass(frozen=True, kw_only=True)
class TargetChange(Sent):
    """Change of a job's planning options; null leaves a field as it is."""

    policy: Annotated[Policy | None, options_of(PlanOptions)["policy"]] = None
    reconfigure: Annotated[Reconfigure | None, options_of(PlanOptions)["reconfigure"]] = None
    target: Annotated[str | None, options_of(PlanOptions)["target"]] = None
    effort: Annotated[Effort | None, options_of(PlanOptions)["effort"]] = None


def check_together(
    options: PlanOptions, num_stages: int | None = None, given: Collection[str] = ()
) -> None:
    """Check that options which were read one by one go together.

    Args:
        options: of a plan.
        num_stages: number of its stages; None: not known yet.
        given: names of options that would be given for nothing where the policy does not use them.

    Raises:
        OptionError: two exclude each other, the policy or the schedule does not use one, or the
            number of values does not fit the stages.
    """
    for name, declared in options_of(type(options)).items():
        value = getattr(options, name)
        if value is None:
            continue
        names, used = declared.policies, str(options.policy)
        if declared.schedules:
            names, used = declared.schedules, options.schedule
        if names and used not in names and not (declared.may_idle and name not in given):
            raise OptionError(f"is for {declared.used_by()}, not {used}", field=name)
        if num_stages is not None and declared.has_list:
            _check_length(declared, len(value), num_stages)
    if options.transition_ms is not None and options.transitions is not None:
        raise OptionError("excludes transitions: give one of the two", field="transition_ms")
    if (options.activation_bytes is None) is not (options.free_memory_bytes is None):
        missing = "activation_bytes" if options.activation_bytes is None else "free_memory_bytes"
        raise OptionError(
            "must be given: activation_bytes and free_memory_bytes go together", field=missing
        )
    if options.virtual_stages is not None and options.order is None:
        raise OptionError("goes with an order only", field="virtual_stages")
    for name in ("max_switches", "min_dwell_ms"):
        if getattr(options, name) is not None and options.target.startswith("power:"):
            raise OptionError("is for targets of time, not for power:", field=name)


def _check_length(declared: Option, num_values: int, num_stages: int) -> None:
    allowed, words = {
        NumValues.ONE_OR_PER_STAGE: ({1, num_stages}, "give one, or one per stage"),
        NumValues.ONE_OR_PER_PAIR: (
            {1, num_stages - 1},
            f"give one, or one for each pair of neighbours, {num_stages - 1}",
        ),
        NumValues.EACH_STAGE: ({num_stages}, "give one per stage"),
    }[declared.num_values]
    if num_values not in allowed:
        raise OptionError(
            f"has {num_values} values for {num_stages} stages; {words}", field=declared.name
        )
