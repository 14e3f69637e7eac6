"""Late clock changes, one instruction of one plan after the other: slow, and plain to follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.model.clocked_instructions import ClockedInstructions, ClockRequest
from flyball_server.planning.model.late_clocks import NUM_ITERATIONS
from flyball_server.planning.model.pipeline_model import PipelineModel


@dataclass
class Stage:
    """Clock of a stage, its changes on their way (effect in s, clock), and when it is free, s."""

    clock: int
    free_s: float
    changes: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def request(self, effect_s: float, clock: int) -> None:
        """Add a change; those that would take effect after it are dropped."""
        self.changes = [one for one in self.changes if one[0] < effect_s]
        self.changes.append((effect_s, clock))

    def compute(
        self, now_s: float, times_s: Sequence[float], energies_j: Sequence[float], own: int
    ) -> tuple[float, float, float]:
        """Run an instruction; return its duration, s, energy, J, and time at other clocks, s."""
        left, energy_j, late_s, begin_s = 1.0, 0.0, 0.0, now_s
        while True:
            while self.changes and self.changes[0][0] <= now_s:
                self.clock = self.changes.pop(0)[1]
            until_s = self.changes[0][0] if self.changes else float("inf")
            took_s = min(left * times_s[self.clock], until_s - now_s)
            share = took_s / times_s[self.clock]
            energy_j += share * energies_j[self.clock]
            late_s += took_s * (self.clock != own)
            now_s, is_over = now_s + took_s, until_s - now_s >= left * times_s[self.clock]
            left -= share
            if is_over:
                self.free_s = now_s
                return now_s - begin_s, energy_j, late_s


@dataclass
class Iteration:
    """Per instruction, as `LateTrace` has it."""

    start_s: list[float]
    duration_s: list[float]
    energy_j: list[float]
    late_s: list[float]


def run_one_by_one(
    model: PipelineModel,
    transitions: ClockTransitions,
    assignment: Sequence[int],
    delays_s: Sequence[float],
    least_period_s: float = 0.0,
) -> Iteration:
    """Return an iteration of a plan after others, as `LateClockSimulator.trace` does."""
    clocked, clocks = model.clocked, model.clocked.clocks(assignment)
    stages = [Stage(clock=clocks[first], free_s=0.0) for first in clocked.first]
    at_firsts = {*clocked.first} if transitions.starts_settled else set[int]()
    requests = {one: each for one, each in model.requests.items() if one not in at_firsts}
    begin_s, asked_s = 0.0, dict[int, float]()
    for number in range(NUM_ITERATIONS):
        run = _iteration(clocked, clocks, delays_s, requests, stages, begin_s, asked_s)
        ends_s = [start + took for start, took in zip(run.start_s, run.duration_s, strict=True)]
        period_s = max(max(ends_s) + clocked.dag.tail_s, least_period_s)
        begin_s, is_late = begin_s + period_s, False
        for stage, first, last in zip(stages, clocked.first, clocked.last, strict=True):
            if clocks[first] != clocks[last] and first not in requests:
                effect_s = stage.free_s + delays_s[first]
                is_late |= effect_s > begin_s + run.start_s[first]
            is_late |= any(effect_s > begin_s + run.start_s[first] for effect_s, _ in stage.changes)
        if transitions.starts_settled or not is_late or number == NUM_ITERATIONS - 1:
            return run
    raise AssertionError


def _iteration(
    clocked: ClockedInstructions,
    clocks: Sequence[int],
    delays_s: Sequence[float],
    requests: Mapping[int, ClockRequest],
    stages: list[Stage],
    begin_s: float,
    asked_s: dict[int, float],
) -> Iteration:
    """Run the instructions once; `asked_s` has times of requests ahead, by instruction."""
    dag, num = clocked.dag, clocked.num_instructions
    run = Iteration([0.0] * num, [0.0] * num, [0.0] * num, [0.0] * num)
    finish_s = [begin_s] * (num + 1)  # the last one stands for NONE
    changed = {one for one in range(num) if clocks[one] != clocks[clocked.before[one]]}
    if not begin_s:  # the first clocks are in force
        changed.difference_update(clocked.first)
    for one in dag.topological_order:
        stage = stages[dag.stage[one]]
        source_s = finish_s[dag.data_predecessor[one]] + dag.input_delay_s[one]
        now_s = max(finish_s[dag.order_predecessor[one]], source_s)
        if one in changed and one not in requests:
            stage.request(stage.free_s + delays_s[one], clocks[one])
        elif one in changed and asked_s[one] >= now_s:
            stage.request(now_s + delays_s[one], clocks[one])
        for other, request in requests.items():
            if request.after == one and clocks[other] != clocks[clocked.before[other]]:
                asked_s[other] = now_s + request.offset_s
                stage.request(asked_s[other] + delays_s[other], clocks[other])
        group = clocked.group[one]
        took_s, run.energy_j[one], run.late_s[one] = stage.compute(
            now_s, clocked.times_s[group], clocked.energies_j[group], clocks[one]
        )
        run.start_s[one], run.duration_s[one] = now_s - begin_s, took_s
        finish_s[one] = now_s + took_s
    return run
