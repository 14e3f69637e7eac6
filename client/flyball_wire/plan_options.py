"""Options of a plan, declared once, and the names that they take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated

from flyball_pipeline.instruction import Checkpoint
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_wire.strictness import Sent, StrictFields


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
    """Effort of the search; a higher one takes longer and ends nearer to the bound."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


DEFAULT_SCHEDULE = "1f1b"
DEFAULT_TARGET = "fastest"
MAX_RESERVE = 0.5
MAX_TAIL_MS, MAX_TRANSFER_MS = 600_000.0, 10_000.0
MAX_DWELL_MS = 60_000.0
MAX_GPUS_AT_ONCE = 128
MAX_GPUS_IN_NODE = 1024

Order = tuple[tuple[tuple[str | int, ...], ...], ...]
"""Per stage, in the order of execution, `(kind, microbatch)` or `(kind, microbatch, chunk)`."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Sent):
    """Options that decide how a pipeline is planned.

    Attributes:
        schedule: name of a schedule (`gpipe`, `1f1b`, `interleaved-1f1b`, ...), `step` without a
            pipeline, `explicit` with an `order`, or `auto`, which only the offline commands take.
        policy: rule that gives each instruction its clock.
        reconfigure: EnvPipe's reconfiguration, for EnvPipe's policies only; `default`: none. Null:
            `default` for policy `uniform`, else `balanced`, as in EnvPipe's evaluation.
        target: `fastest`, `slowdown:5%`, `deadline:2.9` (s), `least-energy` or
            `power:8000` (average W); EnvPipe's policies support `fastest` only.
        effort: search effort of policy `frontier`.
        reserve: share by which instructions may take longer than profiled without making the
            iteration longer, 0 to 0.5; null: chosen from the scatter of the profiled times, or of
            the job's own if the profile has none; only policy `frontier` uses it.
        transition_ms: delay in ms of each clock change, up or down, 0 to 10000; 0: clocks change
            at once; null: as in `transitions`.
        transitions: times of the GPUs' clock changes; null: those that the GPU table has for `gpu`,
            else clocks change at once. It excludes `transition_ms`.
        gpus_at_once: number of GPUs of one stage in one node, 1 to 128; they change their clocks
            together, and where calls queue the last one waits for the others. Null: as the job's
            ranks register.
        gpus_in_node: number of GPUs of all stages in one node, 1 to 1024. Where their calls queue,
            a clock waits for a call of another stage too, and an iteration has no more changes than
            keep the calls within half of its time. Null: as the job's ranks register.
        early_requests: where clock changes take time, whether a clock may be requested before the
            previous instruction ends, so that it is in force when its own begins. Only policy
            `frontier` uses it.
        max_switches: limit on clock changes of an iteration, over all stages, at least 0; null: no
            limit. Only policy `frontier` uses it, and not for `power:`.
        min_dwell_ms: minimum time in ms from the request of a stage's clock to that of its next
            one, 0 to 60000; null: none. Only policy `frontier` uses it, and not for `power:`.
        tail_ms: part of an iteration outside its instructions (optimizer, all-reduce, loading) in
            ms, 0 to 600000; null: none, or as the job measures it. All GPUs wait during it.
        transfer_ms: time of a transfer from one stage to the next or back in ms, 0 to 10000; one
            value or one for each pair of neighbours; null: none, or as the job measures them. A
            transfer between other stages takes as long as the longest.
        checkpoint: microbatches whose forward schedule `torchgpipe` recomputes before their
            backward; null: all but the last.
        order: order of schedule `explicit`: per stage, in the order of execution,
            `[kind, microbatch]` or `[kind, microbatch, chunk]`.
        virtual_stages: with `order`: per stage, the position of each of its chunks in the model,
            from 0; null: one chunk per stage, in the order of the stages.
        extra_forwards: for schedule `envpipe`: per stage, the forwards in front of its first
            backward beyond those of 1F1B; a job gives those that its ranks run. Null: as many as
            profile and memory allow, offline only.
        blocking_power_w: power of a GPU that waits in communication in W, one value for all
            stages or one per stage; null: the value that the GPU table has for `gpu`.
        gpu: name in the GPU table (`a100`), which gives blocking power and times of clock
            changes.
        activation_bytes: activation memory held per microbatch in bytes, one value or one per
            stage. With `free_memory_bytes` it limits the extra forwards of `envpipe`, and an order
            that does not fit is refused.
        free_memory_bytes: memory that is free beyond what 1F1B uses in bytes, one value or one
            per stage.
    """

    schedule: str = DEFAULT_SCHEDULE
    policy: Policy = Policy.FRONTIER
    reconfigure: Reconfigure | None = None
    target: str = DEFAULT_TARGET
    effort: Effort = Effort.NORMAL
    reserve: float | None = None
    transition_ms: float | None = None
    transitions: Annotated[ClockTransitions, StrictFields()] | None = None
    gpus_at_once: int | None = None
    gpus_in_node: int | None = None
    early_requests: bool = True
    max_switches: int | None = None
    min_dwell_ms: float | None = None
    tail_ms: float | None = None
    transfer_ms: tuple[float, ...] | None = None
    checkpoint: Checkpoint | None = None
    order: Order | None = None
    virtual_stages: tuple[tuple[int, ...], ...] | None = None
    extra_forwards: tuple[int, ...] | None = None
    blocking_power_w: tuple[float, ...] | None = None
    gpu: str | None = None
    activation_bytes: tuple[int, ...] | None = None
    free_memory_bytes: tuple[int, ...] | None = None

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


@dataclass(frozen=True, kw_only=True)
class TargetChange(Sent):
    """Change of a job's planning options; null leaves a field as it is."""

    policy: Policy | None = None
    reconfigure: Reconfigure | None = None
    target: str | None = None
    effort: Effort | None = None
