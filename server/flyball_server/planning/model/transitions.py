"""One iteration where clock changes take time: when each instruction runs, and at which clocks.

The clock f1 of an instruction that occupies [s, e] was requested at r, while f0 was in force, and
takes effect at r + L. With T(f) and E(f) its time and energy at a clock,

    x = clamp(r + L - s, 0, T(f0))          seconds at the old clock
    e - s = x + T(f1) (1 - x / T(f0))
    E = E(f0) x / T(f0) + E(f1) (1 - x / T(f0)).

Where L is longer than an instruction several changes are on their way, and each has its share of
the instructions that it falls into; one that would take effect after a later request's is dropped.

A clock is requested when the instruction before ends, ahead of the receive, unless `ClockRequest`
says otherwise; no request is made for the clock that was requested last. An iteration follows one
of the same plan: its first clock was requested when the last instruction before it ended, and what
of the delay the rest of that iteration does not cover is charged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.model.clocked_instructions import ClockedInstructions
from flyball_server.planning.model.dag import NONE
from flyball_server.planning.model.pipeline_model import PipelineModel

# Of iterations one after the other, from one whose first clocks are in force.
NUM_ITERATIONS = 3


@dataclass(frozen=True, kw_only=True)
class TransitionRun:
    """One iteration under late clock changes, per instruction of `ClockedInstructions`.

    Attributes:
        start_s, duration_s, finish_s: s.
        energy_j: energy of the instruction, without waiting, J.
        late_s: part of the duration at other clocks than the instruction's own, s.
        in_force: per stage, from when on which clock is in force, in order of time; the first one
            is so as the iteration begins, the last ones may come after its end.
    """

    start_s: list[float]
    duration_s: list[float]
    finish_s: list[float]
    energy_j: list[float]
    late_s: list[float]
    in_force: list[list[tuple[float, int]]]

    @property
    def end_s(self) -> float:
        """End of the last instruction, s."""
        return max(self.finish_s)


_OnTheirWay = list[tuple[float, int]]
"""Times of effect in s and clocks, in order of time, of one stage."""


@dataclass(kw_only=True)
class _StageClocks:
    """Clocks of the stages at some time.

    Attributes:
        in_force: per stage, its clock.
        on_their_way: per stage.
        requested_s: per stage, when the next iteration's first clock was requested, s; None: all
            first clocks are in force.
    """

    in_force: list[int]
    on_their_way: list[_OnTheirWay]
    requested_s: list[float] | None = field(default=None)

    def later(self, time_s: float, finish_s: list[float]) -> _StageClocks:
        """Return the same with times from this one on, and requests made at `finish_s`."""
        return _StageClocks(
            in_force=list(self.in_force),
            on_their_way=[
                [(effect_s - time_s, clock) for effect_s, clock in of_stage]
                for of_stage in self.on_their_way
            ],
            requested_s=[each_s - time_s for each_s in finish_s],
        )


class TransitionSimulator:
    """Iterations of one pipeline under late clock changes.

    Args:
        model: the pipeline.
        transitions: times of clock changes; None: the model's own.
    """

    def __init__(self, model: PipelineModel, transitions: ClockTransitions | None = None) -> None:
        transitions = transitions or model.transitions or ClockTransitions.exact(0.0)
        self._clocked = clocked = model.clocked
        self._requests = model.requests
        self._up_s, self._down_s = transitions.up_p50_s, transitions.down_p50_s
        self._starts_settled = transitions.starts_settled
        self._times_s = [clocked.times_s[group] for group in clocked.group]
        self._energies_j = [clocked.energies_j[group] for group in clocked.group]

    def delays_s(self, clocks: Sequence[int]) -> list[float]:
        """Return the median delay of each instruction's request, s; 0 where none is made."""
        before = self._clocked.before
        # A lower index is a higher clock.
        return [
            0.0
            if clock == clocks[before[instruction]]
            else self._up_s
            if clock < clocks[before[instruction]]
            else self._down_s
            for instruction, clock in enumerate(clocks)
        ]

    def num_switches(self, clocks: Sequence[int]) -> int:
        """Return the number of requests of an iteration, that of each stage's first clock too."""
        before = self._clocked.before
        return sum(clock != clocks[one] for clock, one in zip(clocks, before, strict=True))

    def run(
        self,
        clocks: Sequence[int],
        delays_s: Sequence[float] | None = None,
        *,
        least_period_s: float = 0.0,
    ) -> TransitionRun:
        """Return one iteration, after others of the same plan.

        Args:
            clocks: per instruction, its clock, as `ClockedInstructions.clocks` returns them.
            delays_s: per instruction, the delay of its request in s, not negative; None: the
                median, up and down.
            least_period_s: time from one iteration's begin to the next one's, where that is
                longer than this pipeline's own, s.

        Raises:
            ValueError: the clock changes between a request and its instruction.
        """
        delays_s = self.delays_s(clocks) if delays_s is None else delays_s
        after = self._checked(clocks)
        clocked = self._clocked
        at = _StageClocks(
            in_force=[clocks[first] for first in clocked.first],
            on_their_way=[[] for _ in clocked.first],
        )
        run = self._iteration(clocks, delays_s, after, at)
        for _ in range(1 if self._starts_settled else NUM_ITERATIONS - 1):
            period_s = max(run.end_s + clocked.dag.tail_s, least_period_s)
            if self._starts_settled or not self._is_late(clocks, delays_s, at, run, period_s):
                break
            at = at.later(period_s, [run.finish_s[last] for last in clocked.last])
            run = self._iteration(clocks, delays_s, after, at)
        return run

    def _checked(self, clocks: Sequence[int]) -> dict[int, tuple[int, float]]:
        """Return instruction and offset in s by the instruction that its request follows."""
        after: dict[int, tuple[int, float]] = {}
        for instruction, request in self._requests.items():
            before = self._clocked.before[instruction]
            kept = clocks[before]
            while before not in (NONE, request.after) and clocks[before] == kept:
                before = self._clocked.dag.order_predecessor[before]
            if before == NONE or before != request.after or clocks[before] != kept:
                raise ValueError(
                    f"instruction {instruction} cannot be requested after {request.after}: it is"
                    " not before it on its stage, or the clock changes between them"
                )
            is_settled = self._starts_settled and instruction in self._clocked.first
            if clocks[instruction] != kept and not is_settled:
                after[request.after] = instruction, request.offset_s
        return after

    def _is_late(
        self,
        clocks: Sequence[int],
        delays_s: Sequence[float],
        at: _StageClocks,
        run: TransitionRun,
        period_s: float,
    ) -> bool:
        """Return whether a change is still on its way when a stage's next iteration begins."""
        clocked = self._clocked
        return any(
            any(effect_s > period_s + run.start_s[first] for effect_s, _ in at.on_their_way[stage])
            or (
                clocks[first] != clocks[last]
                and run.finish_s[last] + delays_s[first] > period_s + run.start_s[first]
            )
            for stage, (first, last) in enumerate(zip(clocked.first, clocked.last, strict=True))
        )

    def _iteration(
        self,
        clocks: Sequence[int],
        delays_s: Sequence[float],
        after: Mapping[int, tuple[int, float]],
        at: _StageClocks,
    ) -> TransitionRun:
        """Run the instructions; `at` is of the iteration's begin, and then of its end."""
        clocked, times_s, energies_j = self._clocked, self._times_s, self._energies_j
        dag, num = clocked.dag, clocked.num_instructions
        order, data, stage_of = dag.order_predecessor, dag.data_predecessor, dag.stage
        transfer_s = dag.input_delay_s
        start_s, duration_s, energy_j, late_s = ([0.0] * num for _ in range(4))
        finish_s = [0.0] * (num + 1)  # the last one stands for NONE
        requests = _Requests(clocked, clocks, delays_s, at)
        is_early = {instruction for instruction, _ in after.values()}
        for instruction in dag.topological_order:
            stage, before = stage_of[instruction], order[instruction]
            free_s, source_s = finish_s[before], finish_s[data[instruction]]
            source_s += transfer_s[instruction]
            now_s = free_s if free_s > source_s else source_s
            start_s[instruction] = now_s
            if instruction in is_early:
                requests.hasten(instruction, now_s)
            elif before == NONE:
                requests.make_first(instruction)
            elif clocks[instruction] != clocks[before]:
                requests.make(instruction, free_s)
            early = after.get(instruction)
            if early is not None:
                requests.make(early[0], now_s + early[1])
            clock, on_their_way = at.in_force[stage], at.on_their_way[stage]
            if not on_their_way:
                took_s = times_s[instruction][clock]
                energy_j[instruction] = energies_j[instruction][clock]
            else:
                took_s, energy_j[instruction], at.in_force[stage] = _compute(
                    now_s, times_s[instruction], energies_j[instruction], clock, on_their_way
                )
                late_s[instruction] = _late_s(
                    requests.effects[stage], clocks[instruction], now_s, now_s + took_s
                )
            duration_s[instruction] = took_s
            finish_s[instruction] = now_s + took_s
        finish_s.pop()
        return TransitionRun(
            start_s=start_s,
            duration_s=duration_s,
            finish_s=finish_s,
            energy_j=energy_j,
            late_s=late_s,
            in_force=requests.effects,
        )


class _Requests:
    """Requests of one iteration.

    Args:
        clocked: the instructions.
        clocks: per instruction, its clock.
        delays_s: per instruction, the delay of its request, s.
        at: the stages at the iteration's begin; changes that are requested are put on their way.

    Attributes:
        effects: per stage, times of effect in s and clocks of all that took or will take effect.
    """

    def __init__(
        self,
        clocked: ClockedInstructions,
        clocks: Sequence[int],
        delays_s: Sequence[float],
        at: _StageClocks,
    ) -> None:
        self._clocked, self._clocks, self._delays_s, self._at = clocked, clocks, delays_s, at
        # Per stage, the instruction whose clock was requested last, and when.
        self._newest: list[tuple[int, float]] = [(NONE, 0.0)] * len(clocked.first)
        self.effects: list[_OnTheirWay] = [
            [(0.0, clock), *on_their_way]
            for clock, on_their_way in zip(at.in_force, at.on_their_way, strict=True)
        ]

    def make(self, instruction: int, now_s: float) -> None:
        """Request an instruction's clock."""
        stage, effect_s = self._clocked.dag.stage[instruction], now_s + self._delays_s[instruction]
        # All effects of an iteration begin with the clock in force at its begin.
        for effects, num_kept in ((self._at.on_their_way[stage], 0), (self.effects[stage], 1)):
            while len(effects) > num_kept and effects[-1][0] >= effect_s:  # overtaken
                effects.pop()
            effects.append((effect_s, self._clocks[instruction]))
        self._newest[stage] = instruction, now_s

    def hasten(self, instruction: int, now_s: float) -> None:
        """Request an instruction's clock now, where its request would come later."""
        newest, request_s = self._newest[self._clocked.dag.stage[instruction]]
        if newest == instruction and request_s > now_s:
            self.make(instruction, now_s)

    def make_first(self, instruction: int) -> None:
        """Request the clock of a stage's first instruction, if it was not the last one's."""
        stage, requested_s = self._clocked.dag.stage[instruction], self._at.requested_s
        last = self._clocked.last[stage]
        if requested_s is not None and self._clocks[instruction] != self._clocks[last]:
            self.make(instruction, requested_s[stage])


def _late_s(effects: _OnTheirWay, clock: int, start_s: float, finish_s: float) -> float:
    """Return how long another clock than this one is in force between two times, s."""
    late_s, until_s = 0.0, finish_s
    for effect_s, other in reversed(effects):
        if until_s <= start_s:
            break
        if effect_s < until_s:
            if other != clock:
                late_s += until_s - max(effect_s, start_s)
            until_s = effect_s
    return late_s


def _compute(
    start_s: float,
    times_s: Sequence[float],
    energies_j: Sequence[float],
    clock: int,
    on_their_way: _OnTheirWay,
) -> tuple[float, float, int]:
    """Run an instruction from `start_s` on; drop the changes that took effect meanwhile.

    Returns:
        Its duration in s, its energy in J, and the clock at its end.
    """
    left, energy_j, now_s = 1.0, 0.0, start_s
    num_past = 0
    for effect_s, next_clock in on_their_way:
        if effect_s > now_s:
            time_s = times_s[clock]
            if now_s + left * time_s <= effect_s:
                break
            share = (effect_s - now_s) / time_s
            left -= share
            energy_j += share * energies_j[clock]
            now_s = effect_s
        clock = next_clock
        num_past += 1
    del on_their_way[:num_past]
    return (now_s - start_s) + left * times_s[clock], energy_j + left * energies_j[clock], clock
