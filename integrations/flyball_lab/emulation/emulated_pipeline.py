"""Pipelines of emulated ranks that train in virtual time: instructions, messages, and waiting.

Each rank is a rank session with an emulated GPU, driven by the hooks as a training script
drives it. No iteration time is given here: time comes from the devices, the
order of each rank, and the messages it has to wait for. A message carries the moment it was sent,
and `run_step` runs the ranks in the order of virtual time, so each rank has a clock of its own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush

from flyball_client.gpu.emulated import EmulatedGpu, EmulatedGpuSettings, EmulatedNode, LeapingClock
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.rank_session import RankSession
from flyball_pipeline.instruction import GIVE_GRADIENT
from flyball_profiles.stage_profile import StageProfile
from flyball_wire.measurements import StepMeasurement
from flyball_wire.plans.rank_plan import rank_plan

Order = tuple[tuple[str, int], ...]
"""A rank's instructions as kind and microbatch, in the order of execution."""

_Channel = tuple[int, int, int]
"""Pipeline, sending stage and receiving stage."""

_Running = Generator["float | _Receive", None, None]
"""Yields the moment in s at which it goes on, or what it waits for."""


class EmulatedDeadlockError(Exception):
    """No rank can continue; the text names what each one waits for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EmulatedRank:
    """One rank of one pipeline."""

    pipeline: int
    stage: int
    order: Order
    session: RankSession
    gpu: EmulatedGpu
    clock: LeapingClock


@contextmanager
def planned_ranks(
    profile: StageProfile,
    stages: Sequence[Sequence[tuple[str, int, int]]],
    *,
    iteration_time_s: float,
    blocking_power_w: float,
    settings: EmulatedGpuSettings,
    requests: Sequence[Sequence[tuple[int, int, float]]] = (),
) -> Iterator[list[EmulatedRank]]:
    """Ranks of one pipeline that follow a plan without a planner, all on one node.

    Args:
        profile: profile that the GPUs emulate.
        stages: per stage, kind, microbatch and clock in MHz of each instruction, in order.
        iteration_time_s: iteration time that the plan predicts, s.
        blocking_power_w: power of a waiting GPU, W.
        settings: settings of the GPUs; each adds its stage to the seed.
        requests: per stage, rows of `RankPlan.requests`; empty: none.

    Raises:
        ValueError: `requests` has another number of stages.
        CodecError: rows do not fit the plan, as for a plan from a planner.
    """
    if requests and len(requests) != len(stages):
        raise ValueError(f"requests must be of {len(stages)} stages, not {len(requests)}")
    node = EmulatedNode()
    ranks: list[EmulatedRank] = []
    with ExitStack() as opened:
        for stage, of_stage in enumerate(stages):
            clock = LeapingClock()
            gpu = EmulatedGpu(
                profile,
                stage,
                blocking_power_w=blocking_power_w,
                settings=replace(settings, seed=settings.seed + stage),
                node=node,
                counter_period_s=1e-9,
                clock=clock,
            )
            session = RankSession(gpu=gpu, job_id="emulated", rank=stage, stage=stage, planner=None)
            opened.callback(session.close)
            plan = rank_plan(
                tuple((str(kind), microbatch, mhz, 0) for kind, microbatch, mhz in of_stage),
                job_id="emulated",
                version=1,
                stage=stage,
                first_step=0,
                predicted_iteration_time_s=iteration_time_s,
                requests=tuple(requests[stage]) if requests else (),
            )
            supported_mhz = gpu.supported_sm_clocks_mhz()
            session.plans.put(compile_plan(plan, stage=stage, supported_mhz=supported_mhz), 0)
            order = tuple((str(kind), microbatch) for kind, microbatch, _ in of_stage)
            ranks.append(
                EmulatedRank(
                    pipeline=0, stage=stage, order=order, session=session, gpu=gpu, clock=clock
                )
            )
        yield ranks


@dataclass(frozen=True, kw_only=True)
class _Receive:
    """Receive of a message that has not been sent yet; the text names it."""

    channel: _Channel
    text: str


@dataclass(frozen=True, kw_only=True)
class _Channels:
    """Messages by channel, each a microbatch and the moment of its arrival in s.

    Attributes:
        transfer_s: time of a message between each pair of neighbouring stages, s.
        sent: channels of the messages that the scheduler has not seen yet.
    """

    transfer_s: tuple[float, ...]
    queues: defaultdict[_Channel, deque[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    sent: list[_Channel] = field(default_factory=list)

    def send(self, channel: _Channel, microbatch: int, now_s: float) -> None:
        """Send a message."""
        arrives_s = now_s + self.transfer_s[min(channel[1:])]
        self.queues[channel].append((microbatch, arrives_s))
        self.sent.append(channel)


Work = Callable[[int, int], float]
"""Given pipeline and microbatch of a step, its work relative to the profile's."""


def run_step(
    ranks: Sequence[EmulatedRank],
    *,
    num_stages: int,
    transfer_time_s: float | Sequence[float] = 0.0,
    tail_time_s: float = 0.0,
    work: Work | None = None,
) -> tuple[StepMeasurement, ...]:
    """Train one step on all ranks; it ends for all with the slowest rank.

    Ranks run by discrete events, in the order of virtual time, so that clock calls of GPUs that
    share a node queue in the order in which they are made. Each session gets the time that its
    rank waited for a message (`on_transfer`), 0 s for a message that had arrived before.

    Args:
        ranks: of all data-parallel pipelines.
        num_stages: of a pipeline.
        transfer_time_s: from a message's sending to its arrival, s, not negative; what the
            sender or the receiver computes meanwhile goes on. One value, or one for each pair of
            neighbouring stages.
        tail_time_s: time from the last instruction to the end of the step, s, not negative.
        work: given pipeline and microbatch, the factor of its instructions' time and energy in this
            step, positive; None: all are as profiled.

    Returns:
        What each rank's session measured, in the order of the ranks.

    Raises:
        EmulatedDeadlockError: the orders of the ranks do not fit together.
        ValueError: a time is negative.
    """
    if isinstance(transfer_time_s, float | int):
        transfer_time_s = (transfer_time_s,) * (num_stages - 1)
    for name, times_s in (("transfer_time_s", transfer_time_s), ("tail_time_s", (tail_time_s,))):
        if not all(time_s >= 0 for time_s in times_s):
            raise ValueError(f"{name} must not be negative, not {times_s[0]}")
    for rank in ranks:
        rank.session.on_step_begin()
    channels = _Channels(transfer_s=tuple(transfer_time_s))
    _run_all([(rank, _instructions(rank, channels, num_stages, work)) for rank in ranks], channels)
    # The optimizer's step needs every gradient: the next step begins after the slowest rank.
    ended_s = max(rank.clock.now_s() for rank in ranks) + tail_time_s
    for rank in ranks:
        rank.clock.sleep_until(ended_s)
        rank.session.on_step_end()
    return tuple(rank.session.history[-1] for rank in ranks)


def _run_all(running: Sequence[tuple[EmulatedRank, _Running]], channels: _Channels) -> None:
    """Run the rank whose next event comes first, until all are done."""
    # Moments, places in `running`, which settle ties, and whether a timed request is due.
    events = [(rank.clock.now_s(), place, False) for place, (rank, _) in enumerate(running)]
    heapify(events)
    waiting: dict[_Channel, tuple[int, str]] = {}
    num_done = 0
    # Ranks that wait or are done, whose timed requests are events of their own.
    idle = set[int]()
    while events and num_done < len(running):
        moment_s, place, is_request = heappop(events)
        rank, instructions = running[place]
        if is_request:
            if place in idle and rank.gpu.timed_request_s() == moment_s:
                _make_timed_request(rank, moment_s)
            continue
        event = next(instructions, None)
        if isinstance(event, _Receive) or event is None:
            idle.add(place)
            if (request_s := rank.gpu.timed_request_s()) is not None:
                heappush(events, (request_s, place, True))
            if event is None:
                num_done += 1
            else:
                waiting[event.channel] = (place, event.text)
        else:
            heappush(events, (event, place, False))
        while channels.sent:
            channel = channels.sent.pop()
            if channel in waiting:
                receiver, _ = waiting.pop(channel)
                idle.remove(receiver)
                heappush(events, (running[receiver][0].clock.now_s(), receiver, False))
    if waiting:
        raise EmulatedDeadlockError(
            "the ranks wait for each other: "
            + "; ".join(
                f"stage {running[place][0].stage} for {text}"
                for place, text in sorted(waiting.values())
            )
        )


def _instructions(
    rank: EmulatedRank, channels: _Channels, num_stages: int, work: Work | None
) -> _Running:
    for position, (kind, microbatch) in enumerate(rank.order):
        received_from_s = rank.session.clock_s()
        source, target = _neighbours(kind, rank.stage, num_stages)
        if source is not None:
            channel = rank.pipeline, source, rank.stage
            queue = channels.queues[channel]
            if not queue:
                text = f"{kind} {microbatch} (position {position}) from stage {source}"
                yield _Receive(channel=channel, text=text)
            sent, arrives_s = queue.popleft()
            if sent != microbatch:
                raise EmulatedDeadlockError(
                    f"stage {rank.stage} receives microbatch {sent} of stage {source} where its"
                    f" order has {kind} {microbatch}"
                )
            yield from _pass_until(rank, partial(max, arrives_s, rank.clock.now_s()))
            rank.clock.sleep_until(arrives_s)
            time_s = rank.session.clock_s() - received_from_s
            rank.session.on_transfer("receive", kind, time_s=time_s, microbatch=microbatch)
        if work is not None:
            rank.gpu.set_slowdown(work(rank.pipeline, microbatch))
        rank.session.on_instruction_begin(kind, microbatch=microbatch)
        yield from _pass_until(rank, rank.gpu.completion_s)
        rank.session.on_instruction_end(kind, microbatch=microbatch)
        if target is not None:
            channel = rank.pipeline, rank.stage, target
            channels.send(channel, microbatch, rank.clock.now_s())


def _pass_until(rank: EmulatedRank, moment_s: Callable[[], float]) -> _Running:
    """Yield this moment, which timed requests may change; before it, make each at its own."""
    while (request_s := rank.gpu.timed_request_s()) is not None and request_s < moment_s():
        yield request_s
        _make_timed_request(rank, request_s)
    yield moment_s()


def _make_timed_request(rank: EmulatedRank, moment_s: float) -> None:
    rank.clock.sleep_until(moment_s)
    rank.gpu.timed_request_s()


def _neighbours(kind: str, stage: int, num_stages: int) -> tuple[int | None, int | None]:
    """Return the stage an instruction receives from, and the stage it sends to; None: none."""
    before = stage - 1 if stage > 0 else None
    after = stage + 1 if stage < num_stages - 1 else None
    if kind == "forward":
        return before, after
    if kind in GIVE_GRADIENT:
        return after, before
    return None, None
