"""Flyball in a DeepSpeed pipeline: one line in a training script, nothing forked.

    engine, *_ = deepspeed.initialize(model=PipelineModule(...), ...)
    session = flyball_integrations.deepspeed.pipeline.attach(engine, job_id="gpt")
    for _ in range(num_steps):
        engine.train_batch(data)
    flyball_integrations.deepspeed.pipeline.detach(engine)

Only attributes of this engine object are set, and `detach` removes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Literal, ParamSpec, TypeVar, Unpack

import torch.distributed
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.session.instruction_timings import Transfer
from flyball_client.session.rank_session import RankSession
from flyball_integrations.deepspeed.activation_memory import ActivationMeter
from flyball_integrations.deepspeed.order_switch import EagerP2P, OrderSwitch
from flyball_integrations.deepspeed.settings import P2P, SCHEDULES
from flyball_integrations.shared.attach_options import AttachOptions, check_options
from flyball_integrations.shared.attachment import Overrides, RankEnds, RankLayout
from flyball_integrations.shared.instruction_hooks import (
    BufferMicrobatches,
    Execute,
    InstructionHooks,
    Instructions,
    InstructionWrapper,
)
from flyball_integrations.shared.order_agreement import RankPlace, open_negotiation
from flyball_integrations.shared.rank_memory import check_free_memory
from flyball_integrations.shared.transfer_timers import TransferTimer
from flyball_wire.messages import JobRegistration

P = ParamSpec("P")
T = TypeVar("T")
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
        around_hooks: returns the context of a training step and its hooks.
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
        around_hooks: Callable[[], AbstractContextManager[None]] = nullcontext,
        wrappers: Sequence[InstructionWrapper] = (),
        schedule_for: ScheduleChoice | None = None,
        transfers: TransferTimer | None = None,
    ) -> None:
        self._engine = engine
        self._hooks = hooks
        self._synchronize = synchronize
        self._around_step = around_step
        self._around_hooks = around_hooks
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
            with self._around_hooks():
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


_ATTACHMENT = "_flyball_attachment"
# The orders that DeepSpeed can be led through: whole forwards and backwards, one chunk a stage.
_AUTO = "auto:envpipe,gpipe"


def attach(
    engine: PipelineEngine,
    *,
    job_id: str,
    schedule: Literal["1f1b", "gpipe", "envpipe", "auto"] = "1f1b",
    p2p: Literal["stock", "eager", "pulled"] = "stock",
    free_memory_bytes: int | None = None,
    **options: Unpack[AttachOptions],
) -> RankSession:
    """Let the planner set the clocks of this rank; call it once on every rank.

    Rank 0 registers the job (stages and microbatches as the engine has them), every rank
    registers itself. While the planner is away or has no plan, training goes on at the GPU's
    default clocks. `engine.eval_batch` stays untouched: it runs at whatever clock is in force.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        job_id: the job's name at the planner; the same on all ranks.
        schedule: the order to run once there is a plan; `auto`: that of the three which needs
            the least energy, as the planner finds. Until then, and with `1f1b` always, it is
            DeepSpeed's own.
        p2p: `stock` leaves DeepSpeed's; `eager` posts sends at once (gloo only, see
            eager_p2p.py); `pulled` is DeepSpeed's, with sends where the neighbour receives.
            The last two are those that other orders than 1F1B can be run with.
        free_memory_bytes: bytes of this rank's device free beside what 1F1B holds; default:
            found on a GPU, when two steps are over. Bounds the order of the plan.
        options: how to plan, and the rank's planner and GPU;
            `help("flyball_integrations.shared.attach_options")` describes them.

    Returns:
        The rank's session, already started.

    Raises:
        ValueError: Flyball is already attached, an argument or a variable of the environment
            cannot be used, arguments do not go together, or free memory must be given.
            Nothing stays open then.
        TypeError: there is no such option.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    check_options(attach, options)
    if _ATTACHMENT in vars(engine):
        raise ValueError("Flyball is already attached to this engine; call detach(engine) first")
    _check_names(schedule=schedule, p2p=p2p, policy=options.get("policy"))
    if schedule != "1f1b":
        _check_orders(engine, schedule=schedule, p2p=p2p, free_memory_bytes=free_memory_bytes)
    with ExitStack() as opened:
        ends = RankEnds(
            opened,
            options,
            job_id=job_id,
            layout=_layout(engine),
            initial_step=engine.global_steps,
        )
        session = _open_session(ends, engine, schedule, p2p, free_memory_bytes)
        # `detach` closes all of it, the last first.
        vars(engine)[_ATTACHMENT] = opened.pop_all()
    return session


def detach(engine: PipelineEngine) -> None:
    """Restore the clock and the engine exactly; call it once on every rank.

    Without an attachment it has no effect.
    """
    attachment: ExitStack | None = vars(engine).pop(_ATTACHMENT, None)
    if attachment is not None:
        attachment.close()


def _layout(engine: PipelineEngine) -> RankLayout:
    return RankLayout(
        rank=engine.global_rank,
        stage=engine.stage_id,
        dp_rank=engine.grid.get_data_parallel_rank(),
        # DeepSpeed's "model parallel rank" counts the stages too; a slice is a tensor's.
        tp_rank=engine.grid.get_slice_parallel_rank(),
    )


def _registration(engine: PipelineEngine, schedule: str) -> JobRegistration:
    """Return the registration of the pipeline, without planning options."""
    return JobRegistration(
        num_stages=engine.num_stages,
        num_microbatches=engine.micro_batches,
        num_ranks=torch.distributed.get_world_size(),
        schedule=_AUTO if schedule == "auto" else schedule,
    )


def _open_session(
    ends: RankEnds,
    engine: PipelineEngine,
    schedule: str,
    p2p: str,
    free_memory_bytes: int | None,
) -> RankSession:
    """Return the started session, hooked into the engine, and register the job."""
    registering = ends.registering(_registration(engine, schedule))
    # Checks come first; collective calls of all ranks come last.
    eager = None
    if p2p == "eager":
        eager = EagerP2P(engine.grid)
        ends.opened.callback(eager.close)
    orders = None
    if schedule != "1f1b":
        meter = ActivationMeter.of_device(engine.device)
        negotiation = open_negotiation(
            RankPlace(
                rank=engine.global_rank,
                stage=engine.stage_id,
                num_stages=engine.num_stages,
                num_microbatches=engine.micro_batches,
            ),
            meter,
            free_memory_bytes=free_memory_bytes,
            on_memory=registering.begin,
        )
        orders = OrderSwitch(engine, negotiation=negotiation, meter=meter, eager=eager)
        ends.opened.callback(orders.close)
    hooks = ends.device_hooks(engine.device, is_own_order=orders is None)
    session = ends.open_session(None if orders is None else orders.choose_plan, hooks=hooks)
    patch = EnginePatch(
        engine,
        hooks.of(session),
        synchronize=hooks.synchronize,
        around_step=nullcontext if eager is None else eager.in_force,
        around_hooks=nullcontext if orders is None else orders.around_step,
        wrappers=[part.wrap for part in (eager, orders) if part is not None],
        schedule_for=None if orders is None else orders.schedule_for,
        transfers=hooks.transfer_timer(session),
    )
    ends.opened.callback(patch.remove)
    session.start()
    if orders is None:
        registering.begin()
    return session


def _check_names(*, schedule: str, p2p: str, policy: str | None) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if p2p not in P2P:
        raise ValueError(f"p2p must be one of {', '.join(P2P)}, not {p2p!r}")
    if schedule == "auto" and policy not in {None, "frontier"}:
        raise ValueError(
            f"schedule='auto' compares frontiers, which policy={policy!r} does not have; leave"
            " policy out, or name a schedule"
        )


def _check_orders(
    engine: PipelineEngine, *, schedule: str, p2p: str, free_memory_bytes: int | None
) -> None:
    if p2p == "stock":
        raise ValueError(
            f"schedule={schedule!r} needs p2p='eager' (gloo) or p2p='pulled': with DeepSpeed's"
            " own sends, which wait for the neighbour, its order would deadlock"
        )
    check_free_memory(f"schedule={schedule!r}", free_memory_bytes, engine.device)
