"""Recorded steps at chosen clocks: time and energy by the recorded times.

All pipelines wait for the slowest pipeline of the step. Where clock changes take time, steps run
one after the other by discrete events: a clock is requested when the instruction before it ends, a
step's first one when the step before ends, and a GPU computes on at the clock that is in force.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from flyball_pipeline.dag import NONE
from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.replay.steps.step_models import PipelineStep, StepModel

Clocks = Sequence[Sequence[int]]
"""Per pipeline of a step and node, its clock, MHz."""

# Standard deviations of a normal distribution between its median and its 95th percentile.
_NORMAL_P95 = 1.645


class JudgedStep(NamedTuple):
    """One step of all pipelines."""

    #: Time of the slowest pipeline, s.
    time_s: float
    #: Energy of all GPUs, waiting included, J.
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class NodeQueue:
    """Calls that set clocks, one at a time in a node."""

    #: Duration of a call, s.
    call_s: float
    #: Number of a node's pipelines, which are numbered one after the other.
    num_pipelines: int


def judged_at_once(pipelines: Sequence[PipelineStep], clocks: Clocks) -> JudgedStep:
    """Return a step whose clocks change at once."""
    time_s = net_j = 0.0
    for pipeline, of_pipeline in zip(pipelines, clocks, strict=True):
        model = pipeline.model
        both = [by_clock[mhz] for by_clock, mhz in zip(model.by_clock, of_pipeline, strict=True)]
        factors = pipeline.factors
        durations_s = [factor * time for factor, (time, _) in zip(factors, both, strict=True)]
        time_s = max(time_s, *earliest_finish_s(model.dag, durations_s))
        net_j += sum(factor * cost_j for factor, (_, cost_j) in zip(factors, both, strict=True))
    return JudgedStep(
        time_s, net_j + time_s * sum(each.model.waiting_power_w for each in pipelines)
    )


class _Gpu:
    """The GPU of a stage of a pipeline."""

    def __init__(self, pipeline: int, stage: int, mhz: int) -> None:
        self.pipeline, self.stage = pipeline, stage
        #: Clock in force, and the clock that was requested last, MHz.
        self.mhz = self.asked_mhz = mhz
        #: Number of changes begun, and the newest that took effect.
        self.num_begun = self.newest = 0
        #: Clock of the change that was begun last, and one that waits for its call, MHz.
        self.begun_mhz, self.waiting_mhz = mhz, 0
        #: Instructions of this step that it has ended, and when the last of them did, s.
        self.num_ended, self.free_s = 0, 0.0
        self.nodes: tuple[int, ...] = ()
        #: What is left of the instruction that runs, since when, s; 0: none runs.
        self.left, self.since_s = 0.0, 0.0
        #: Number of times that the end of an instruction was foreseen anew.
        self.num_foreseen = 0

    @property
    def node(self) -> int:
        """Return the instruction that runs or is next."""
        return self.nodes[self.num_ended]


class LateJudge:
    """Steps one after the other, with late clock changes.

    Args:
        transitions: times of clock changes; each delay is drawn from a log-normal distribution
            through the median and the 95th percentile of its direction.
        seed: of the draws.
        gap_s: time from a step's end to the next step's begin, s, which is not counted.
        queue: queue of a node's calls; None: calls do not wait for each other.
    """

    def __init__(
        self,
        transitions: ClockTransitions,
        *,
        seed: int = 0,
        gap_s: float = 0.0,
        queue: NodeQueue | None = None,
    ) -> None:
        self._transitions, self._gap_s, self._queue = transitions, gap_s, queue
        self._rng = random.Random(seed)
        self._gpus: dict[tuple[int, int], _Gpu] = {}
        self._calls: dict[int, deque[_Gpu]] = {}
        self._is_calling: dict[int, bool] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._now_s = 0.0
        self._pipelines: Sequence[PipelineStep] = ()
        self._clocks: Clocks = ()
        self._ends_s: list[list[float]] = []
        self._takers: dict[int, list[int]] = {}
        self._num_left, self._net_j = 0, 0.0

    def judged(self, pipelines: Sequence[PipelineStep], clocks: Clocks) -> JudgedStep:
        """Return the next step."""
        self._pipelines, self._clocks, self._net_j = pipelines, clocks, 0.0
        self._ends_s = [[math.inf] * each.model.dag.num_nodes for each in pipelines]
        self._num_left = sum(each.model.dag.num_nodes for each in pipelines)
        asked_s, begin_s = self._now_s, self._now_s + self._gap_s
        for number, pipeline in enumerate(pipelines):
            for stage, nodes in enumerate(_nodes_of_stages(pipeline.model)):
                gpu = self._gpus.get((pipeline.dp_rank, stage))
                if gpu is None:
                    highest_mhz = max(pipeline.model.by_clock[nodes[0]])
                    gpu = _Gpu(number, stage, highest_mhz)
                    self._gpus[pipeline.dp_rank, stage] = gpu
                gpu.pipeline, gpu.nodes, gpu.num_ended, gpu.free_s = number, nodes, 0, begin_s
                self._request(gpu, asked_s)
                self._at(begin_s, partial(self._start, gpu))
        while self._num_left:
            self._now_s, _, happens = heapq.heappop(self._events)
            happens()
        time_s = self._now_s - begin_s
        power_w = sum(each.model.waiting_power_w for each in pipelines)
        return JudgedStep(time_s, self._net_j + time_s * power_w)

    def _at(self, time_s: float, happens: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, happens))

    def _request(self, gpu: _Gpu, now_s: float) -> None:
        """Request the clock of the next instruction."""
        mhz = self._clocks[gpu.pipeline][gpu.node]
        if mhz == gpu.asked_mhz:
            return
        gpu.asked_mhz = mhz
        if not gpu.num_ended and self._transitions.starts_settled:
            gpu.num_begun += 1
            gpu.mhz, gpu.begun_mhz, gpu.newest = mhz, mhz, gpu.num_begun
        elif self._queue is None:
            self._begin_change(gpu, mhz, now_s)
        elif gpu.waiting_mhz:
            gpu.waiting_mhz = mhz  # the newest request replaces one that waits
        else:
            gpu.waiting_mhz = mhz
            node = self._pipelines[gpu.pipeline].dp_rank // self._queue.num_pipelines
            self._calls.setdefault(node, deque()).append(gpu)
            if not self._is_calling.get(node):
                self._call(node, now_s)

    def _call(self, node: int, now_s: float) -> None:
        """Make the next call of a node, where one waits."""
        assert self._queue is not None  # noqa: S101 - only a queue calls this
        calls = self._calls[node]
        self._is_calling[node] = bool(calls)
        if calls:
            gpu = calls.popleft()
            mhz, gpu.waiting_mhz = gpu.waiting_mhz, 0
            self._begin_change(gpu, mhz, now_s)
            end_s = now_s + self._queue.call_s
            self._at(end_s, lambda: self._call(node, end_s))

    def _begin_change(self, gpu: _Gpu, mhz: int, now_s: float) -> None:
        times, is_up = self._transitions, mhz > gpu.begun_mhz
        median_s, high_s = (
            (times.up_p50_s, times.up_p95_s) if is_up else (times.down_p50_s, times.down_p95_s)
        )
        delay_s = median_s
        if high_s > median_s > 0:
            delay_s *= (high_s / median_s) ** (self._rng.gauss(0, 1) / _NORMAL_P95)
        gpu.begun_mhz = mhz
        gpu.num_begun += 1
        number = gpu.num_begun
        self._at(now_s + delay_s, lambda: self._take_effect(gpu, mhz, number))

    def _take_effect(self, gpu: _Gpu, mhz: int, number: int) -> None:
        if number < gpu.newest:
            return  # a later request overtook it
        gpu.newest = number
        if gpu.left:
            self._advance(gpu)
        gpu.mhz = mhz
        if gpu.left:
            self._foresee_end(gpu)

    def _at_clock(self, gpu: _Gpu) -> tuple[float, float]:
        """Return time and cost of the instruction that runs, at the clock in force, s and J."""
        pipeline = self._pipelines[gpu.pipeline]
        factor = pipeline.factors[gpu.node]
        time_s, cost_j = pipeline.model.by_clock[gpu.node][gpu.mhz]
        return factor * time_s, factor * cost_j

    def _advance(self, gpu: _Gpu) -> None:
        """Count what has run since the clock changed."""
        time_s, cost_j = self._at_clock(gpu)
        share = min((self._now_s - gpu.since_s) / time_s, gpu.left)
        gpu.left, gpu.since_s = gpu.left - share, self._now_s
        self._net_j += share * cost_j

    def _foresee_end(self, gpu: _Gpu) -> None:
        gpu.num_foreseen += 1
        number, (time_s, _) = gpu.num_foreseen, self._at_clock(gpu)
        self._at(self._now_s + gpu.left * time_s, lambda: self._end(gpu, number))

    def _start(self, gpu: _Gpu) -> None:
        """Start the next instruction, if it waits for nothing."""
        if gpu.left or gpu.num_ended == len(gpu.nodes) or gpu.free_s > self._now_s:
            return
        dag, node = self._pipelines[gpu.pipeline].model.dag, gpu.node
        source = dag.data_predecessor[node]
        if source != NONE:
            input_s = self._ends_s[gpu.pipeline][source] + dag.input_delay_s[node]
            if input_s > self._now_s:
                if input_s < math.inf:
                    self._at(input_s, lambda: self._start(gpu))
                return
        gpu.left, gpu.since_s = 1.0, self._now_s
        self._foresee_end(gpu)

    def _end(self, gpu: _Gpu, number: int) -> None:
        if number != gpu.num_foreseen or not gpu.left:
            return  # the clock changed meanwhile
        _, cost_j = self._at_clock(gpu)
        self._net_j += gpu.left * cost_j
        node, model = gpu.node, self._pipelines[gpu.pipeline].model
        self._ends_s[gpu.pipeline][node] = gpu.free_s = self._now_s
        gpu.left = 0.0
        gpu.num_ended += 1
        self._num_left -= 1
        if gpu.num_ended < len(gpu.nodes):
            self._request(gpu, self._now_s)
            self._start(gpu)
        taker = self._taker_of(model)[node]
        dp_rank = self._pipelines[gpu.pipeline].dp_rank
        if taker not in {NONE, gpu.stage}:
            self._start(self._gpus[dp_rank, taker])

    def _taker_of(self, model: StepModel) -> list[int]:
        """Return per node the stage that waits for its output."""
        takers = self._takers.get(id(model))
        if takers is None:
            takers = [NONE] * model.dag.num_nodes
            for node, source in enumerate(model.dag.data_predecessor):
                if source != NONE and model.dag.stage[source] != model.dag.stage[node]:
                    takers[source] = model.dag.stage[node]
            self._takers[id(model)] = takers
        return takers


@dataclass(frozen=True, kw_only=True)
class JudgedBy:
    """World that steps are judged in."""

    #: Times of clock changes; None: they take none.
    transitions: ClockTransitions | None = None
    #: Time from a step's end, where the next first clock is requested, to the next begin, s.
    gap_s: float = 0.0
    #: Queue of a node's calls; None: there is none.
    queue: NodeQueue | None = None

    def judged(
        self, steps: Sequence[Sequence[PipelineStep]], clocks: Iterable[Clocks], seed: int
    ) -> list[JudgedStep]:
        """Return each step at these clocks."""
        both = zip(steps, clocks, strict=True)
        if self.transitions is None:
            return [judged_at_once(*of_step) for of_step in both]
        judge = LateJudge(self.transitions, seed=seed, gap_s=self.gap_s, queue=self.queue)
        return [judge.judged(*of_step) for of_step in both]


AT_ONCE = JudgedBy()


def _nodes_of_stages(model: StepModel) -> list[tuple[int, ...]]:
    nodes: list[list[int]] = [[] for _ in range(1 + max(model.dag.stage))]
    for node, stage in enumerate(model.dag.stage):
        nodes[stage].append(node)
    return [tuple(of_stage) for of_stage in nodes]
