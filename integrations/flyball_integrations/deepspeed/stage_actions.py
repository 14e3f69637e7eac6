"""Actions of a stage, computing and exchanging, in an order of the whole pipeline."""

from __future__ import annotations

from enum import Enum
from operator import itemgetter

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.schedule import Schedule


class Operation(Enum):
    """Operation of a stage: computation, or exchange with a neighbour."""

    RECEIVE_GRADIENT = "receive gradient"
    RECEIVE_ACTIVATION = "receive activation"
    SEND_GRADIENT = "send gradient"
    SEND_ACTIVATION = "send activation"
    FORWARD = "forward"
    BACKWARD = "backward"


Action = tuple[Operation, int]  # with its microbatch


def eager_actions(schedule: Schedule, stage: int) -> list[Action]:
    """Return a stage's actions where sends never wait: receive, compute, send, unit by unit.

    Raises:
        PipelineError: the order deadlocks.
    """
    build_dag(schedule)
    is_first, is_last = stage == 0, stage == schedule.num_stages - 1
    actions: list[Action] = []
    for kind, microbatch, _ in schedule.stages[stage]:
        is_forward = kind == InstructionKind.FORWARD
        names = _FORWARD_ACTIONS if is_forward else _BACKWARD_ACTIONS
        receives, sends = (not is_first, not is_last) if is_forward else (not is_last, not is_first)
        wanted = (receives, True, sends)
        actions += [(name, microbatch) for name, is_on in zip(names, wanted, strict=True) if is_on]
    return actions


def pulled_actions(schedule: Schedule, stage: int) -> list[Action]:
    """Return a stage's actions where a send waits for the receive; it cannot deadlock.

    All computations and all transfers of the pipeline get one common sequence: a transfer
    stands where its receiver is about to compute with it, had every forward taken 1 and every
    backward 2. Each stage does its part of that sequence. The first event of it that is not
    over is then the next one of every stage that takes part in it, so it can always happen.

    Raises:
        PipelineError: the order deadlocks in any case.
    """
    dag = build_dag(schedule)
    is_forward = [instruction.kind == InstructionKind.FORWARD for instruction in dag.instruction]
    time = [_FORWARD_TIME if forward else _BACKWARD_TIME for forward in is_forward]
    finish = earliest_finish_s(dag, time)
    events: list[tuple[tuple[float, int, int, int], Action]] = []
    for receiver, nodes in enumerate(dag.nodes_of(schedule)):
        for node in nodes:
            start, microbatch = finish[node] - time[node], dag.instruction[node].microbatch
            receive, compute, send = _FORWARD_ACTIONS if is_forward[node] else _BACKWARD_ACTIONS
            if receiver == stage:
                events.append(((start, 1, 0, receiver), (compute, microbatch)))
            source = receiver - 1 if is_forward[node] else receiver + 1
            if 0 <= source < schedule.num_stages:
                moment = (start, 0, int(is_forward[node]), receiver)
                if receiver == stage:
                    events.append((moment, (receive, microbatch)))
                elif source == stage:
                    events.append((moment, (send, microbatch)))
    return [action for _, action in sorted(events, key=itemgetter(0))]


_FORWARD_ACTIONS = (Operation.RECEIVE_ACTIVATION, Operation.FORWARD, Operation.SEND_ACTIVATION)
_BACKWARD_ACTIONS = (Operation.RECEIVE_GRADIENT, Operation.BACKWARD, Operation.SEND_GRADIENT)
_FORWARD_TIME, _BACKWARD_TIME = 1.0, 2.0
