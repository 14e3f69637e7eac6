"""Two independent ways to time a pipeline, to hold the simulator against.

Neither uses the planning core's DAG: they know the rules of pipeline parallelism only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from flyball_profiles.stage_profile import InstructionKind

Order = Sequence[Sequence[tuple[InstructionKind, int, int]]]
"""Per stage, (kind, microbatch, chunk) in the order of execution; chunks are ignored."""

# What a neighbour's backward is called when its gradient is ready to be sent.
_SENDS_GRADIENT = {InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT}


def event_driven_finish_s(order: Order, durations_s: Sequence[float]) -> list[float]:
    """When each instruction finishes, by a clock that jumps from event to event.

    Args:
        order: per stage, what it runs.
        durations_s: of each instruction, stage after stage, s.

    Returns:
        Finish times in the order of `durations_s`, s.
    """
    first = [sum(len(stage) for stage in order[:index]) for index in range(len(order))]
    finish_s = [-1.0] * len(durations_s)
    arrived: set[tuple[str, int, int]] = set()
    position = [0] * len(order)
    busy = [False] * len(order)
    events: list[tuple[float, int]] = []
    now_s = 0.0
    while True:
        for stage, instructions in enumerate(order):
            if busy[stage] or position[stage] == len(instructions):
                continue
            if _has_input(instructions[position[stage]], stage, len(order), arrived):
                heapq.heappush(events, (now_s + durations_s[first[stage] + position[stage]], stage))
                busy[stage] = True
        if not events:
            return finish_s
        now_s, stage = heapq.heappop(events)
        finish_s[first[stage] + position[stage]] = now_s
        _send(order[stage][position[stage]], stage, arrived)
        position[stage] += 1
        busy[stage] = False


def longest_path_s(order: Order, durations_s: Sequence[float]) -> float:
    """The longest sum of durations along any path, by walking every path to its end, s."""
    nodes = [(stage, *unit) for stage, units in enumerate(order) for unit in units]

    def follows(node: int, other: int) -> bool:
        (stage, kind, microbatch, _), (stage2, kind2, microbatch2, _) = nodes[node], nodes[other]
        if stage == stage2:
            return other == node + 1
        if microbatch != microbatch2:
            return False
        if kind is InstructionKind.FORWARD:
            return kind2 is InstructionKind.FORWARD and stage2 == stage + 1
        return stage2 == stage - 1 and kind in _SENDS_GRADIENT and kind2 in _SENDS_GRADIENT

    successors = [
        [other for other in range(len(nodes)) if follows(node, other)] for node in range(len(nodes))
    ]

    def longest_from(node: int) -> float:
        return durations_s[node] + max(
            (longest_from(other) for other in successors[node]), default=0
        )

    return max(longest_from(node) for node in range(len(nodes)))


def _has_input(
    unit: tuple[InstructionKind, int, int],
    stage: int,
    num_stages: int,
    arrived: set[tuple[str, int, int]],
) -> bool:
    kind, microbatch, _ = unit
    if kind is InstructionKind.FORWARD:
        return stage == 0 or ("activation", microbatch, stage) in arrived
    if kind is InstructionKind.BACKWARD_WEIGHT:
        return ("own gradient", microbatch, stage) in arrived
    if stage == num_stages - 1:
        return ("activation", microbatch, stage + 1) in arrived
    return ("gradient", microbatch, stage) in arrived


def _send(
    unit: tuple[InstructionKind, int, int], stage: int, arrived: set[tuple[str, int, int]]
) -> None:
    kind, microbatch, _ = unit
    if kind is InstructionKind.FORWARD:
        arrived.add(("activation", microbatch, stage + 1))
    elif kind in _SENDS_GRADIENT:
        arrived.add(("gradient", microbatch, stage - 1))
        arrived.add(("own gradient", microbatch, stage))
