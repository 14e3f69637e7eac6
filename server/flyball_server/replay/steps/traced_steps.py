"""Recorded steps from traces: Chrome's Trace Event Format, as torch's profiler writes it.

A trace is of one rank. Instructions are ranges whose names match. On a GPU the host only launches
them, so an instruction takes from the begin of the first kernel that is launched in its range to
the end of the last, without those of NCCL. On the CPU operators count likewise, so a receive before
them does not. A range with neither takes its own time.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.steps.recorded_steps import (
    RecordedStep,
    StepRow,
    TimedInstruction,
    recorded_steps,
)

STEP = "step"
GROUPS = ("microbatch", "stage")
"""Groups of the expressions: the microbatch, and the part of the model, counted from 0."""

_KINDS = tuple(kind for kind in InstructionKind if kind != STEP)
# Thirty thousand years; beyond it is no time.
_MAX_TIME_US = 1e18
_KERNEL, _OPERATOR, _OF_DEVICE = "kernel", "cpu_op", "gpu_user_annotation"
_EXCHANGES = re.compile(r"nccl|rccl|c10d::|gloo:", re.IGNORECASE)
# Names of torch.distributed.pipelining: GPipe's, and those of the schedules in its runtime.
_DEFAULT_NAMES = {
    STEP: (r"ProfilerStep#(?P<step>\d+)",),
    InstructionKind.FORWARD: (
        r"Forward (?P<microbatch>\d+)",
        r"PP:(?P<stage>\d+)F(?P<microbatch>\d+)",
    ),
    InstructionKind.BACKWARD: (
        r"Backward (?P<microbatch>\d+)",
        r"PP:(?P<stage>\d+)B(?P<microbatch>\d+)",
    ),
    InstructionKind.BACKWARD_INPUT: (r"PP:(?P<stage>\d+)I(?P<microbatch>\d+)",),
    InstructionKind.BACKWARD_WEIGHT: (r"PP:(?P<stage>\d+)W(?P<microbatch>\d+)",),
}
# Schedule1F1B names nothing. With `with_stack=True` the profiler has torch's calls, which come in
# the order of the microbatches.
_CALLS = r".*torch/distributed/pipelining/stage\.py\(\d+\): {}_one_chunk"
_NAMES_OF_CALLS: dict[str, str] = {
    kind: _CALLS.format(kind) for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD)
}


class TraceNames:
    """Names of a trace's ranges, as regular expressions that match all of a name.

    Args:
        given: by `step` or kind of instruction, in place of torch's names.

    Raises:
        ValueError: a key or an expression cannot be used.
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        known = (STEP, *_KINDS)
        for key in given or {}:
            if key not in known:
                raise ValueError(f"unknown name {key[:40]!a}; known: {', '.join(known)}")
        #: Whether instructions have torch's names.
        self.are_torchs = not set(given or {}) - {STEP}
        names = _DEFAULT_NAMES | {key: (text,) for key, text in (given or {}).items()}
        self._expressions = {
            key: tuple(_compiled(key, text) for text in texts) for key, texts in names.items()
        }

    def step_of(self, name: str) -> tuple[bool, int | None]:
        """Return whether a range encloses a step, and the step's number if the name has it."""
        for expression in self._expressions[STEP]:
            if match := expression.fullmatch(name):
                return True, _number(match, STEP)
        return False, None

    def instruction_of(self, name: str) -> _Named | None:
        """Return kind and numbers of an instruction by its range's name; None: no instruction."""
        for kind in _KINDS:
            for expression in self._expressions.get(kind, ()):
                if match := expression.fullmatch(name):
                    return _Named(kind, _number(match, "stage"), _number(match, "microbatch"))
        return None


class _Named(NamedTuple):
    kind: InstructionKind
    #: Part of the model; None: the name has none.
    part: int | None
    microbatch: int | None


def _compiled(key: str, text: str) -> re.Pattern[str]:
    try:
        expression = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{key}={text[:40]}: {error}") from None
    allowed = (STEP,) if key == STEP else GROUPS
    if not set(expression.groupindex) <= set(allowed):
        raise ValueError(f"{key}={text[:40]}: groups may be called {', '.join(allowed)}")
    return expression


def _number(match: re.Match[str], group: str) -> int | None:
    text = match.groupdict().get(group)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RecordingError(f"{match[0][:40]!a}: {group} is no whole number")
    return int(text)


class _Range(NamedTuple):
    name: str
    begin_us: float
    end_us: float

    def __str__(self) -> str:
        return f"{self.name[:40]!a} at {self.begin_us / 1e3:.3f} ms"


class _Run(NamedTuple):
    """An instruction that ran."""

    step: int
    named: _Named
    range: _Range
    time_s: float


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """Instructions in the trace of one rank."""

    #: In the order of execution; each has a microbatch.
    runs: tuple[_Run, ...]
    #: Rank in torch.distributed; None: the trace does not have it.
    rank: int | None
    #: Ranks of its pipeline, by stage; empty: the trace does not have them.
    pipeline: tuple[int, ...]

    @property
    def parts(self) -> frozenset[int | None]:
        """Parts of the model that it computes."""
        return frozenset(run.named.part for run in self.runs)


def read_trace(document: object, names: TraceNames) -> RankTrace:
    """Read the trace of one rank.

    Args:
        document: content of the JSON file.
        names: of the ranges that are instructions and steps.

    Raises:
        RecordingError: it is no trace, or its ranges are no instructions in steps.
    """
    events = _Events(document)
    by_begin = sorted(events.ranges(), key=lambda each: each.begin_us)
    instructions = _instructions(by_begin, names)
    if not instructions and names.are_torchs:
        instructions = _instructions(by_begin, TraceNames(_NAMES_OF_CALLS))
    if not instructions:
        raise RecordingError(
            "no range is called as an instruction; of torch's Schedule1F1B record with"
            " profile(..., with_stack=True), of others give --trace-names KIND=REGEX"
        )
    for (first, _), (second, _) in itertools.pairwise(instructions):
        if second.begin_us < first.end_us:
            raise RecordingError(f"{second} begins before {first} has ended")
    times_s = _times_s([of_range for of_range, _ in instructions], events)
    steps = _steps_of(instructions, _marks(by_begin, names))
    runs = [
        _Run(step, named, of_range, time_s)
        for step, (of_range, named), time_s in zip(steps, instructions, times_s, strict=True)
        if step is not None
    ]
    if not runs:
        raise RecordingError("no instruction is within a range of a step")
    rank, pipeline = _places_in(document)
    return RankTrace(runs=tuple(_numbered(runs)), rank=rank, pipeline=pipeline)


def _instructions(ranges: Iterable[_Range], names: TraceNames) -> list[tuple[_Range, _Named]]:
    found = ((of_range, names.instruction_of(of_range.name)) for of_range in ranges)
    return [(of_range, named) for of_range, named in found if named is not None]


class _Events:
    """Events of a trace.

    Args:
        document: object with a list `traceEvents`, or that list.
    """

    def __init__(self, document: object) -> None:
        found: object = _object(document).get("traceEvents", document)
        events = _list(found)
        if not isinstance(found, list):
            raise RecordingError("no trace: a list traceEvents is missing")
        all_events = [(number, _object(event)) for number, event in enumerate(events)]
        self._all = [event for event in all_events if isinstance(event[1].get("name", ""), str)]
        self.has_kernels = any(event.get("cat") == _KERNEL for _, event in self._all)

    def ranges(self) -> Iterator[_Range]:
        """Yield the host's ranges, complete ones and those with a begin and an end."""
        begun: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for number, event in self._all:
            phase = event.get("ph")
            if event.get("cat") in (_OF_DEVICE, _KERNEL, _OPERATOR):
                continue
            if phase == "X":
                yield self._range(number, event)
            elif phase in ("B", "E"):
                of_thread = begun.setdefault((f"{event.get('pid')}", f"{event.get('tid')}"), [])
                time_us = _time_us(number, event, "ts")
                if phase == "B":
                    of_thread.append((event.get("name", ""), time_us))
                elif of_thread:
                    yield _Range(*of_thread.pop(), time_us)

    def computations(self) -> Iterator[tuple[float, _Range]]:
        """Yield the kernels, or without any the operators, each with when it was launched, us."""
        if not self.has_kernels:
            for number, event in self._all:
                if event.get("cat") == _OPERATOR and event.get("ph") == "X":
                    operator = self._range(number, event)
                    yield operator.begin_us, operator
            return
        launched_us = {
            _correlation(event): _time_us(number, event, "ts")
            for number, event in self._all
            if str(event.get("cat")).endswith(("_runtime", "_driver")) and _correlation(event)
        }
        for number, event in self._all:
            launch_us = launched_us.get(_correlation(event))
            if event.get("cat") == _KERNEL and launch_us is not None:
                yield launch_us, self._range(number, event)

    def _range(self, number: int, event: Mapping[str, Any]) -> _Range:
        begin_us, time_us = _time_us(number, event, "ts"), _time_us(number, event, "dur")
        return _Range(event.get("name", ""), begin_us, begin_us + time_us)


def _time_us(number: int, event: Mapping[str, Any], key: str) -> float:
    found = event.get(key, 0 if key == "dur" else None)
    if not isinstance(found, int | float) or not abs(found) < _MAX_TIME_US:
        raise RecordingError(f"traceEvents[{number}].{key} must be a number of us")
    return float(found)


def _correlation(event: Mapping[str, Any]) -> str:
    return str(_object(event.get("args")).get("correlation", ""))


def _times_s(ranges: Sequence[_Range], events: _Events) -> list[float]:
    """Return the time of each range's computation, s."""
    begins_us = [each.begin_us for each in ranges]
    found: dict[int, tuple[float, float]] = {}
    for launched_us, computation in events.computations():
        place = bisect.bisect_right(begins_us, launched_us) - 1
        if place < 0 or launched_us > ranges[place].end_us:
            continue
        if _EXCHANGES.match(computation.name):
            continue
        first_us, last_us = found.get(place, (math.inf, -math.inf))
        found[place] = (min(first_us, computation.begin_us), max(last_us, computation.end_us))
    spans = (found.get(place, (each.begin_us, each.end_us)) for place, each in enumerate(ranges))
    return [(last_us - first_us) / 1e6 for first_us, last_us in spans]


def _marks(ranges: Iterable[_Range], names: TraceNames) -> list[tuple[_Range, int]]:
    """Return the ranges that enclose steps, with the numbers of the steps."""
    marks: list[tuple[_Range, int]] = []
    for mark in ranges:
        is_step, number = names.step_of(mark.name)
        if is_step:
            marks.append((mark, len(marks) if number is None else number))
    return marks


def _steps_of(
    instructions: Sequence[tuple[_Range, _Named]], marks: Sequence[tuple[_Range, int]]
) -> Iterator[int | None]:
    """Yield the step of each instruction; None: it is in none.

    Without ranges of steps, a step begins where one of its instructions comes again.
    """
    if not marks and any(named.microbatch is None for _, named in instructions):
        raise RecordingError(
            "no range is called as a step, and names have no microbatch; give --trace-names"
            " step=REGEX"
        )
    begins_us = [mark.begin_us for mark, _ in marks]
    step = 0
    seen: set[_Named] = set()
    for of_range, named in instructions:
        if marks:
            place = bisect.bisect_right(begins_us, of_range.begin_us) - 1
            is_in_it = place >= 0 and of_range.begin_us < marks[place][0].end_us
            yield marks[place][1] if is_in_it else None
            continue
        if named in seen:
            step += 1
            seen.clear()
        seen.add(named)
        yield step


def _numbered(runs: Iterable[_Run]) -> Iterator[_Run]:
    """Yield the runs, with microbatches in the order in which they came where names have none."""
    counts = Counter[tuple[int, _Named]]()
    for run in runs:
        if run.named.microbatch is not None:
            yield run
            continue
        key = (run.step, run.named)
        yield run._replace(named=run.named._replace(microbatch=counts[key]))
        counts[key] += 1


def _places_in(document: object) -> tuple[int | None, tuple[int, ...]]:
    """Return the rank, and the ranks of its pipeline, as torch's profiler writes them."""
    about = _object(_object(document).get("distributedInfo"))
    rank = about.get("rank")
    if not isinstance(rank, int):
        return None, ()
    for group in map(_object, _list(about.get("pg_config"))):
        ranks = _list(group.get("ranks"))
        if rank in ranks and re.search(r"(^|_)(pp|pipe)", str(group.get("pg_desc"))):
            return rank, tuple(ranks)
    return rank, ()


def _object(value: object) -> dict[str, Any]:
    """Return an object of JSON; of anything else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    """Return a list of JSON; of anything else an empty one."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


Place = tuple[int, int]
"""`dp_rank` and stage."""


def steps_of_traces(
    traces: Sequence[RankTrace], places: Sequence[Place] | None = None
) -> tuple[RecordedStep, ...]:
    """Return the steps that all traces have.

    Args:
        traces: one for each rank; of a tensor-parallel group one.
        places: of each; None: from their names and process groups.

    Raises:
        RecordingError: places are not known, or the ranks have no step together, or instructions
            are missing.
    """
    if places is not None and len(places) != len(traces):
        raise RecordingError(f"{len(places)} places for {len(traces)} traces")
    places = _found_places(traces) if places is None else places
    twice = next((place for place, count in Counter(places).items() if count > 1), None)
    if twice is not None:
        raise RecordingError(
            f"several traces are of dp_rank {twice[0]}, stage {twice[1]}; give one for each"
        )
    num_stages = 1 + max(stage for _, stage in places)
    first, *others = ({run.step for run in trace.runs} for trace in traces)
    steps = first.intersection(*others)
    if not steps:
        raise RecordingError("no step is in all traces")
    rows = [
        StepRow(
            step=run.step,
            dp_rank=dp_rank,
            stage=stage,
            begin_s=run.range.begin_us / 1e6,
            timed=TimedInstruction(_instruction(run, stage, num_stages), run.time_s),
            source=f"trace {number}, {run.range}",
        )
        for number, (trace, (dp_rank, stage)) in enumerate(zip(traces, places, strict=True), 1)
        for run in trace.runs
        if run.step in steps
    ]
    parts = {
        (part, stage)
        for trace, (_, stage) in zip(traces, places, strict=True)
        for part in trace.parts
        if part is not None
    }
    return recorded_steps(
        rows, is_v_shaped=any(part % num_stages != stage for part, stage in parts)
    )


def _instruction(run: _Run, stage: int, num_stages: int) -> Instruction:
    part, microbatch = run.named.part, cast("int", run.named.microbatch)
    if not run.time_s > 0:
        raise RecordingError(f"{run.range} takes no time")
    if part is None:
        return Instruction(run.named.kind, microbatch)
    if part % num_stages != stage and part != 2 * num_stages - 1 - stage:
        raise RecordingError(
            f"{run.range}: part {part} of the model runs on stage {stage} of {num_stages}; parts"
            " must be placed as in interleaved 1F1B, or in a V"
        )
    return Instruction(run.named.kind, microbatch, part // num_stages)


def _found_places(traces: Sequence[RankTrace]) -> list[Place]:
    stages = [_stage(trace) for trace in traces]
    if len(traces) == 1 and stages[0] is None:
        stages = [0]
    unknown = next((number for number, stage in enumerate(stages, 1) if stage is None), None)
    if unknown is not None:
        raise RecordingError(
            f"trace {unknown} has no stage in its names or process groups; give"
            " --trace-places DP_RANK:STAGE,..."
        )
    ranks = [number if each.rank is None else each.rank for number, each in enumerate(traces)]
    counts, found = Counter[int](), dict[int, Place]()
    for number in sorted(range(len(traces)), key=lambda number: ranks[number]):
        stage = cast("int", stages[number])
        found[number] = (counts[stage], stage)
        counts[stage] += 1
    return [found[number] for number in range(len(traces))]


def _stage(trace: RankTrace) -> int | None:
    parts = [part for part in trace.parts if part is not None]
    if parts:
        return min(parts)
    if trace.rank is None or not trace.pipeline:
        return None
    return trace.pipeline.index(trace.rank)
