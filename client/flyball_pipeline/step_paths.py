"""Longest paths through the instructions of a step, in plain lists.

Instructions are places in topological order. Meetings cut the step into segments, each of which
begins when the segment before has ended on all ranks, so a path stays in its segment and its times
count from the segment's begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_pipeline.dag import NONE, DependencyDag


class StepPaths:
    """Order, edges and segments of a pipeline's step.

    Args:
        dag: what waits for what; its tail does not count.
        meeting: per node, the meeting that ends its segment; empty: all one.
    """

    def __init__(self, dag: DependencyDag, meeting: Sequence[int] = ()) -> None:
        num, stage = dag.num_nodes, dag.stage
        #: Per place, its node.
        self.nodes = dag.topological_order
        place_of = [0] * num
        for place, node in enumerate(self.nodes):
            place_of[node] = place
        #: Per place, its stage; its meeting; whether it is its stage's first.
        self.stage = [stage[node] for node in self.nodes]
        self.meeting = [meeting[node] if meeting else 0 for node in self.nodes]
        self.is_first = [dag.order_predecessor[node] == NONE for node in self.nodes]
        #: Per stage, its places in their order.
        self.places_of_stage: list[list[int]] = [[] for _ in range(1 + max(stage))]
        for place, of_stage in enumerate(self.stage):
            self.places_of_stage[of_stage].append(place)
        self.num_meetings = 1 + max(self.meeting)
        # `num` stands for no place: sums of its paths are 0.
        #: Per place, the place before it on its stage and segment, that of its input on another
        #: stage, and that transfer's time, s.
        self.before, self.source, self.transfer_s = [num] * num, [num] * num, [0.0] * num
        #: Per place, the one after it on its stage and segment, the one that takes its output on
        #: another stage, and that transfer's time, s.
        after, taker, out_s = [num] * num, [num] * num, [0.0] * num
        #: Per place, the place after it on its stage, in any segment.
        self.next_of_stage = [num] * num
        for place, node in enumerate(self.nodes):
            if (before := dag.order_predecessor[node]) != NONE:
                before = place_of[before]
                self.next_of_stage[before] = place
                if self.meeting[before] == self.meeting[place]:
                    self.before[place], after[before] = before, place
            source = dag.data_predecessor[node]
            # Its own stage's output is there in any case: it stands before it in the order.
            if source == NONE or stage[source] == stage[node]:
                continue
            source = place_of[source]
            if self.meeting[source] != self.meeting[place]:
                continue
            assert taker[source] == num  # noqa: S101 - no output is sent to two stages
            self.source[place], taker[source] = source, place
            self.transfer_s[place] = out_s[source] = dag.input_delay_s[node]
        #: Per place, `before`, `source` and `transfer_s`.
        self.edges = list(zip(self.before, self.source, self.transfer_s, strict=True))
        self._backward = list(zip(range(num), after, taker, out_s, strict=True))[::-1]

    @property
    def num_places(self) -> int:
        """Number of instructions."""
        return len(self.nodes)

    def ends_s(self, times_s: Sequence[float]) -> list[float]:
        """Return the end of each place after its segment's begin, s, and a 0.

        Args:
            times_s: Per place, its duration, s.
        """
        ends_s = [0.0] * (len(times_s) + 1)
        place = 0
        for (before, source, transfer_s), time_s in zip(self.edges, times_s, strict=True):
            free_s = ends_s[before]
            input_s = ends_s[source] + transfer_s
            ends_s[place] = (free_s if free_s > input_s else input_s) + time_s
            place += 1  # noqa: SIM113 - a counter is faster here than enumerate's tuples
        return ends_s

    def rests_s(self, times_s: Sequence[float]) -> list[float]:
        """Return the longest path of each segment from the end of each place on, s."""
        num = len(times_s)
        with_own_s = [0.0] * (num + 1)
        rests_s = [0.0] * num
        for place, after, taker, out_s in self._backward:
            after_s = with_own_s[after]
            taken_s = with_own_s[taker] + out_s
            rest_s = after_s if after_s > taken_s else taken_s
            rests_s[place] = rest_s
            with_own_s[place] = rest_s + times_s[place]
        return rests_s

    def segment_times_s(self, ends_s: Sequence[float]) -> list[float]:
        """Return the time of each segment, s."""
        times_s = [0.0] * self.num_meetings
        for meeting, end_s in zip(self.meeting, ends_s, strict=False):
            times_s[meeting] = max(times_s[meeting], end_s)
        return times_s

    def stretch(
        self,
        times_s: list[float],
        least_s: Sequence[float],
        most_s: Sequence[float],
        segments_s: Sequence[float],
        rounds: int,
        *,
        is_squared: bool = False,
    ) -> None:
        """Stretch each duration by its segment's time over its longest path, some times over.

        Args:
            times_s: per place, its duration, s; is changed.
            least_s: per place, its shortest duration, s.
            most_s: per place, its longest duration, s.
            segments_s: time of each segment, s.
            rounds: number of times.
            is_squared: stretch by the square of that, which is sooner done, and may be too much.
        """
        with_own_s = [0.0] * (len(times_s) + 1)
        for _ in range(rounds):
            ends_s = self.ends_s(times_s)
            segment_s = segments_s[-1]
            is_single = len(segments_s) == 1
            for place, after, taker, out_s in self._backward:
                rest_s = with_own_s[after]
                taken_s = with_own_s[taker] + out_s
                if taken_s > rest_s:  # noqa: PLR1730 - faster than max()
                    rest_s = taken_s
                time_s = times_s[place]
                with_own_s[place] = rest_s + time_s
                if not is_single:
                    segment_s = segments_s[self.meeting[place]]
                share = segment_s / (ends_s[place] + rest_s)
                time_s *= share * share if is_squared else share
                if time_s > most_s[place]:
                    time_s = most_s[place]
                elif time_s < least_s[place]:
                    time_s = least_s[place]
                times_s[place] = time_s

    def stretched_ratios(
        self,
        least_s: Sequence[float],
        segments_s: Sequence[float],
        group: Sequence[int],
        most: Sequence[float],
        rounds: int,
    ) -> list[float]:
        """Return how far each group stretches, by the least of its members each time.

        Args:
            least_s: per place, its shortest duration, s.
            segments_s: time of each segment, s.
            group: per place, its group.
            most: per group, the most by which its durations stretch.
            rounds: number of times.
        """
        ratios = [1.0] * len(most)
        segment_of = [segments_s[meeting] for meeting in self.meeting]
        for _ in range(rounds):
            times_s = [
                ratios[number] * time_s for number, time_s in zip(group, least_s, strict=True)
            ]
            ends_s, rests_s = self.ends_s(times_s), self.rests_s(times_s)
            longest_s = [0.0] * len(most)
            places = zip(group, ends_s, rests_s, segment_of, strict=False)
            for number, end_s, rest_s, segment_s in places:
                share = (end_s + rest_s) / segment_s
                longest_s[number] = max(longest_s[number], share)
            ratios = [
                max(1.0, min(ratio / share, limit))
                for ratio, share, limit in zip(ratios, longest_s, most, strict=True)
            ]
        return ratios
