"""Flyball in a DeepSpeed pipeline: one line in a training script, nothing forked.

    engine, *_ = deepspeed.initialize(model=PipelineModule(...), ...)
    session = flyball_integrations.deepspeed.pipeline.attach(engine, job_id="gpt")
    for _ in range(num_steps):
        engine.train_batch(data)
    flyball_integrations.deepspeed.pipeline.detach(engine)

Only attributes of this engine object are set, and `detach` removes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Unpack

import torch.distributed
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.session.instruction_timings import Transfer
from flyball_client.session.rank_session import RankSession
from flyball_integrations.deepspeed.engine_order import EagerP2P, EngineOrder
from flyball_integrations.deepspeed.settings import P2P, SCHEDULES
from flyball_integrations.shared.attach_options import (
    AttachOptions,
    announced_text,
    check_options,
)
from flyball_integrations.shared.attachment import Overrides, RankEnds, RankLayout
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_integrations.shared.instruction_hooks import (
    BufferMicrobatches,
    Execute,
    InstructionHooks,
    Instructions,
    InstructionWrapper,
)
from flyball_integrations.shared.loading.microbatch_reader import MicrobatchReader
from flyball_integrations.shared.loading.step_work import PipelineAnnouncer
from flyball_integrations.shared.one_order import on_all_ranks_or_none, order_text
from flyball_integrations.shared.run_order import order_to_run
from flyball_integrations.shared.transfer_timers import TransferTimer
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.envpipe import default_extra_forwards
from flyball_wire.messages import JobRegistration
from flyball_wire.orders import OtherOrder

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")
ScheduleChoice = Callable[[schedule.PipeSchedule], schedule.PipeSchedule]

# Direction of each, and the kind of instruction that it serves.
_TRANSFERS: dict[type, tuple[Transfer, str]] = {
    schedule.RecvActivation: ("receive", "forward"),
    schedule.RecvGrad: ("receive", "backward"),
    schedule.SendActivation: ("send", "forward"),
    schedule.SendGrad: ("send", "backward"),
}


class EnginePatch:
    """Hooks of one engine, in force from construction until `remove`.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        hooks: called in the order of execution.
        synchronize: waits until the device has finished what was launched; called before each
            hook of an instruction, so that clocks and times are those of the computation and
            not of its launch.
        around_step: returns the context of a training step.
        wrappers: of the instructions, between DeepSpeed's and the hooks, the innermost first.
        schedule_for: returns the schedule to run instead of DeepSpeed's.
        transfers: times receives and sends; None: they are not timed.
    """

    def __init__(
        self,
        engine: PipelineEngine,
        hooks: InstructionHooks,
        *,
        synchronize: Callable[[], None],
        around_step: Callable[[], AbstractContextManager[None]],
        wrappers: Sequence[InstructionWrapper] = (),
        schedule_for: ScheduleChoice | None = None,
        transfers: TransferTimer | None = None,
    ) -> None:
        self._engine = engine
        self._hooks = hooks
        self._synchronize = synchronize
        self._around_step = around_step
        self._transfers = transfers
        self._microbatches = BufferMicrobatches()
        self._is_training = False
        self._overrides = Overrides()
        instructions = dict(engine._INSTRUCTION_MAP)
        for wrap in wrappers:
            instructions = wrap(instructions)
        instructions[schedule.ForwardPass] = self._hooked(
            "forward", instructions[schedule.ForwardPass], self._microbatches.of_forward
        )
        instructions[schedule.BackwardPass] = self._hooked(
            "backward", instructions[schedule.BackwardPass], self._microbatches.of_backward
        )
        if transfers is not None:
            instructions |= self._timed_transfers(instructions, transfers)
        train_batch = self._wrapped_train_batch(engine.train_batch)
        self._overrides.set(engine, "_INSTRUCTION_MAP", instructions)
        self._overrides.set(engine, "train_batch", train_batch)
        if schedule_for is not None:
            execute = engine._exec_schedule
            self._overrides.set(
                engine, "_exec_schedule", lambda stock: execute(schedule_for(stock))
            )

    def remove(self) -> None:
        """Restore the engine's attributes."""
        self._overrides.remove()

    def _wrapped_train_batch(self, train_batch: Callable[P, T]) -> Callable[P, T]:
        def train_batch_on_planned_clocks(*args: P.args, **kwargs: P.kwargs) -> T:
            self._microbatches.clear()
            self._hooks.on_step_begin()
            self._is_training = True
            try:
                with self._around_step():
                    loss = train_batch(*args, **kwargs)
            except BaseException:
                if self._transfers is not None:
                    self._transfers.discard()
                self._hooks.on_step_failed()
                raise
            finally:
                self._is_training = False
            if self._transfers is not None:
                self._transfers.end_step()
            self._hooks.on_step_end()
            return loss

        return train_batch_on_planned_clocks

    def _hooked(
        self, kind: str, execute: Callable[..., T], microbatch_of: Callable[[int], int | None]
    ) -> Callable[..., T]:
        def execute_between_hooks(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> T:
            if not self._is_training:  # eval_batch runs the same ForwardPass
                return execute(engine, buffer_id=buffer_id, **kwargs)
            microbatch = microbatch_of(buffer_id)
            self._synchronize()
            if self._transfers is not None:
                self._transfers.report()
            self._hooks.on_instruction_begin(kind, microbatch=microbatch)
            result = execute(engine, buffer_id=buffer_id, **kwargs)
            self._synchronize()
            self._hooks.on_instruction_end(kind, microbatch=microbatch)
            return result

        return execute_between_hooks

    def _timed_transfers(
        self, instructions: Instructions, transfers: TransferTimer
    ) -> Instructions:
        return {
            pipe_instruction: self._timed(instructions[pipe_instruction], transfers, *names)
            for pipe_instruction, names in _TRANSFERS.items()
        }

    def _timed(
        self, execute: Execute, transfers: TransferTimer, transfer: Transfer, kind: str
    ) -> Execute:
        def execute_timed(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            if not self._is_training:
                return execute(engine, buffer_id=buffer_id, **kwargs)
            transfers.begin()
            result = execute(engine, buffer_id=buffer_id, **kwargs)
            # What is received belongs to the next instruction of its kind, whatever the buffer.
            is_send = transfer == "send"
            microbatch = self._microbatches.of_sent(kind, buffer_id) if is_send else None
            transfers.end(transfer, kind, microbatch)
            return result

        return execute_timed


class _Attachment(NamedTuple):
    """State that `detach` closes and `microbatches` uses."""

    opened: ExitStack
    #: None: the work of steps is not announced.
    announcer: PipelineAnnouncer | None


_ATTACHMENT = "_flyball_attachment"
_ENVPIPE = "envpipe"
_IN_CONFIG = "or the same keys in the block flyball of the DeepSpeed config"
_OTHER_ORDERS = (
    OtherOrder(schedule="1f1b", line=f'attach(..., schedule="1f1b"), {_IN_CONFIG}'),
    OtherOrder(
        schedule=_ENVPIPE,
        line='attach(..., schedule="envpipe", p2p="pulled", extra_forwards=[{extra_forwards}]),'
        f" {_IN_CONFIG}",
    ),
)


def attach(
    engine: PipelineEngine,
    *,
    job_id: str,
    schedule: Literal["1f1b", "envpipe"] = "1f1b",
    p2p: Literal["stock", "eager", "pulled"] = "stock",
    extra_forwards: Sequence[int] | None = None,
    **options: Unpack[AttachOptions],
) -> RankSession:
    """Let the planner set the clocks of this rank; call it once on every rank.

    Rank 0 registers the job (stages, microbatches and order as the engine has them), every rank
    registers itself. While the planner is away or has no plan, training goes on at the GPU's
    default clocks. `engine.eval_batch` stays untouched: it runs at whatever clock is in force.

    All ranks wait here for each other and compare their orders.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        job_id: the job's name at the planner; the same on all ranks.
        schedule: the order to run, from the first step on: DeepSpeed's own, or EnvPipe's.
        p2p: `stock` leaves DeepSpeed's; `eager` posts sends at once (gloo only); `pulled` is
            DeepSpeed's, with sends where the neighbour receives. EnvPipe's order needs one of the
            last two.
        extra_forwards: with `envpipe`: for each stage, the forwards in front of its first backward
            beyond those of 1F1B, each of which holds a microbatch's activations; default: one for
            each later stage.
        options: how to plan, and the rank's planner and GPU;
            `help("flyball_integrations.shared.attach_options")` describes them.

    Returns:
        The rank's session, already started.

    Raises:
        ValueError: Flyball is already attached, an argument or a variable of the environment
            cannot be used, arguments do not go together, or another rank has failed, runs another
            order or has not called this within 10 minutes. Nothing stays open then.
        TypeError: there is no such option.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    with ExitStack() as opened:
        with on_all_ranks_or_none() as joining:
            check_options(attach, options)
            _check(engine, schedule=schedule, p2p=p2p, extra_forwards=extra_forwards)
            registration = _registration(engine, schedule, extra_forwards)
            order = order_to_run(registration)
            joining.order = order_text(registration, beside=f", p2p {p2p}{announced_text(options)}")
            layout = RankLayout(
                rank=engine.global_rank,
                stage=engine.stage_id,
                dp_rank=engine.grid.get_data_parallel_rank(),
                # DeepSpeed's "model parallel rank" counts the stages too; a slice is a tensor's.
                tp_rank=engine.grid.get_slice_parallel_rank(),
            )
            ends = RankEnds(
                opened,
                options,
                device=engine.device,
                job_id=job_id,
                layout=layout,
                initial_step=engine.global_steps,
            )
            hooks = ends.device_hooks()
            session = ends.open_session(hooks=hooks)
        with on_all_ranks_or_none():
            # Gradients are averaged once a step: the engine refuses ZeRO 2 and 3.
            ends.start(session, coupling="step")
        _hook(ends, engine, session, hooks, order=order, p2p=p2p)
        ends.register(registration, session, partial(_with_microbatches, registration))
        # `detach` closes all of it, the last first.
        announcer = PipelineAnnouncer(session, hooks) if ends.announces_work else None
        vars(engine)[_ATTACHMENT] = _Attachment(opened.pop_all(), announcer)
    return session


def detach(engine: PipelineEngine) -> None:
    """Restore the clock and the engine exactly; call it once on every rank.

    Without an attachment it has no effect.
    """
    attachment: _Attachment | None = vars(engine).pop(_ATTACHMENT, None)
    if attachment is not None:
        attachment.opened.close()


def microbatches(
    engine: PipelineEngine, loader: Iterable[B] | None = None, *, lengths: Callable[[B], Any]
) -> Iterator[B]:
    """Return an iterator for `train_batch`, which announces each step while the step before runs.

    Give `announces_work=True` to `attach` on all ranks, and call this on those that read, of the
    first and the last stage, or on all; both must read the same. Microbatches and their order are
    the loader's; with each, about one of the next step is read. The loader's `state_dict` is the
    position before what was read ahead.

    Args:
        engine: that Flyball is attached to.
        loader: of microbatches, or an iterator, as `train_batch` takes it; None: the engine's own,
            which then reads what this returns.
        lengths: returns the lengths of a microbatch's sequences in tokens: a list or a CPU tensor.
            Or a float, the time of the microbatch over that in the profile.

    Raises:
        ValueError: Flyball is not attached with `announces_work=True`, or there is no loader.
    """
    attachment: _Attachment | None = vars(engine).get(_ATTACHMENT)
    if attachment is None or attachment.announcer is None:
        raise ValueError("attach Flyball to this engine with announces_work=True before")
    is_engines = loader is None
    source = engine.data_iterator if is_engines else loader
    if source is None:
        if is_engines and not (engine.is_first_stage() or engine.is_last_stage()):
            return iter(())
        raise ValueError("the engine has no training data; give the loader")
    reader = MicrobatchReader(
        source,
        lengths=lengths,
        announcer=attachment.announcer,
        num_microbatches=lambda: int(engine.micro_batches),
    )
    if is_engines:
        engine.data_iterator = reader
    return reader


def _registration(
    engine: PipelineEngine, schedule: str, extra_forwards: Sequence[int] | None
) -> JobRegistration:
    """Return the registration of the pipeline with its order, without planning options."""
    extra = None
    if schedule == _ENVPIPE:
        default = default_extra_forwards(engine.num_stages, engine.micro_batches)
        extra = default if extra_forwards is None else tuple(extra_forwards)
    return JobRegistration(
        num_stages=engine.num_stages,
        num_microbatches=engine.micro_batches,
        num_ranks=torch.distributed.get_world_size(),
        schedule=schedule,
        extra_forwards=extra,
        other_orders=_OTHER_ORDERS,
    )


def _with_microbatches(registration: JobRegistration, num_microbatches: int) -> JobRegistration:
    """Return the registration for another number of microbatches, which runs DeepSpeed's order."""
    if num_microbatches == registration.num_microbatches:
        return registration
    return replace(
        registration, num_microbatches=num_microbatches, schedule="1f1b", extra_forwards=None
    )


def _hook(
    ends: RankEnds,
    engine: PipelineEngine,
    session: RankSession,
    hooks: DeviceHooks,
    *,
    order: Schedule | None,
    p2p: str,
) -> None:
    """Hook the session into the engine; every rank must call it at the same time."""
    eager = engine_order = None
    if p2p == "eager":
        eager = EagerP2P(engine.grid)
        ends.opened.callback(eager.close)
    if order is not None:
        engine_order = EngineOrder(engine, order, eager=eager)
        ends.opened.callback(engine_order.close)
    patch = EnginePatch(
        engine,
        hooks.of(session),
        synchronize=hooks.synchronize,
        around_step=nullcontext if eager is None else eager.in_force,
        wrappers=[part.wrap for part in (eager, engine_order) if part is not None],
        schedule_for=None if engine_order is None else engine_order.schedule_for,
        transfers=hooks.transfer_timer(session),
    )
    ends.opened.callback(patch.remove)


def _check(
    engine: PipelineEngine, *, schedule: str, p2p: str, extra_forwards: Sequence[int] | None
) -> None:
    if _ATTACHMENT in vars(engine):
        raise ValueError("Flyball is already attached to this engine; call detach(engine) first")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if p2p not in P2P:
        raise ValueError(f"p2p must be one of {', '.join(P2P)}, not {p2p!r}")
    if schedule != "1f1b" and p2p == "stock":
        raise ValueError(
            f"schedule={schedule!r} needs p2p='eager' (gloo) or p2p='pulled': with DeepSpeed's"
            " own sends, which wait for the neighbour, its order would deadlock"
        )
    if schedule != _ENVPIPE and extra_forwards is not None:
        raise ValueError(f"extra_forwards is for schedule='envpipe', not {schedule!r}")
