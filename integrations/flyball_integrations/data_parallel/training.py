"""Flyball in a training loop without a pipeline, in three lines.

    flyball_integrations.data_parallel.attach(model, job_id="llama")
    for batch in batches:
        with flyball_integrations.data_parallel.training_step(model):
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    flyball_integrations.data_parallel.detach(model)

Where the lengths of sequences differ, `steps(loader, lengths=...)` announces the work of each step.
To the planner it is a pipeline of one stage, with one instruction: the whole step. With
`num_microbatches` it is one of the forward and the backward of each microbatch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeVar, Unpack
from weakref import WeakKeyDictionary

import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh

from flyball_client.session.rank_session import RankSession
from flyball_client.steps.agreement import Coupling
from flyball_integrations.data_parallel.microbatches import MicrobatchSteps, meets_in_microbatch
from flyball_integrations.data_parallel.rank_waits import RankWaits, coupling_of, hook_waits
from flyball_integrations.shared.attach_options import AttachOptions, check_options
from flyball_integrations.shared.attachment import Overrides, RankEnds, RankLayout
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_integrations.shared.loading.step_loader import StepLoader
from flyball_integrations.shared.loading.step_work import (
    BatchLengths,
    PipelineAnnouncer,
    StepAnnouncer,
    read_lengths,
)
from flyball_integrations.shared.rank_places import find_place_without_pipeline
from flyball_integrations.shared.whole_steps import STEP, WholeSteps
from flyball_wire.messages import JobRegistration
from flyball_wire.plan_options import DEFAULT_SCHEDULE

_logger = logging.getLogger(__name__)

B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class _Attachment:
    """State that `detach` closes and `training_step` uses."""

    opened: ExitStack
    steps: WholeSteps | MicrobatchSteps
    #: None: the work of steps is not announced.
    announcer: StepAnnouncer | None


class _WholeStepAnnouncer:
    """Announcer of steps that are one instruction each."""

    def __init__(self, session: RankSession, waits: RankWaits, coupling: Coupling) -> None:
        self._session = session
        self._waits = waits
        self._coupling = coupling
        self._is_over = False

    @property
    def next_step(self) -> int:
        return self._session.current_step

    def announce(self, work: Sequence[BatchLengths], step: int) -> None:
        meets_often = self._waits.most_averaging > 1 or (
            self._coupling == "instruction" and len(work) > 1
        )
        if meets_often and not self._is_over:
            self._is_over = True
            _logger.warning(
                "steps are no longer announced: with several batches in a step the ranks meet in"
                " each, and one clock for the whole step would make them wait; give attach"
                " num_microbatches, or use DistributedDataParallel with no_sync() in all but the"
                " last batch"
            )
        if not self._is_over:
            self._session.announce_step([whole_work(work)], step=step)


class _MicrobatchAnnouncer(PipelineAnnouncer):
    """Announcer of steps whose microbatches' forwards and backwards are instructions.

    Nothing is announced before a step has shown where ranks meet. Where DistributedDataParallel
    averages in the last microbatch alone, as with `no_sync`, the step has one deadline: several
    would let it take longer.
    """

    def __init__(
        self, session: RankSession, hooks: DeviceHooks, steps: MicrobatchSteps, coupling: Coupling
    ) -> None:
        super().__init__(session, hooks)
        self._steps = steps
        self._coupling = coupling
        self._is_over = False

    def announce(self, work: Sequence[BatchLengths], step: int) -> None:
        """Announce a step by the lengths of each microbatch."""
        meetings, coupling = self._steps.meetings, self._coupling
        if coupling != "step" and not meetings.are_known:
            return
        if coupling == "backward" and meetings.at_ends:
            coupling = "step"
        if coupling == "step" or meetings.in_each:
            self._session.announce_step(work, step=step, coupling=coupling)
        elif not self._is_over:
            self._is_over = True
            _logger.warning(
                "steps are no longer announced: ranks wait for each other in some microbatches and"
                " not in others"
            )


def whole_work(batches: Sequence[BatchLengths]) -> BatchLengths:
    """Return the work of a step of these batches: all lengths, or the mean of factors."""
    factors = [given for given in batches if isinstance(given, float)]
    if len(factors) == len(batches):
        return math.fsum(factors) / len(factors)
    return [length for given in batches if not isinstance(given, float) for length in given]


# Beside the models: one that is copied or pickled takes nothing of it along.
_attachments: WeakKeyDictionary[torch.nn.Module, _Attachment] = WeakKeyDictionary()


def attach(
    model: torch.nn.Module,
    *,
    job_id: str,
    device_mesh: DeviceMesh | None = None,
    dp_rank: int | None = None,
    tp_rank: int | None = None,
    cp_rank: int | None = None,
    initial_step: int = 0,
    num_microbatches: int | None = None,
    **options: Unpack[AttachOptions],
) -> RankSession:
    """Attach the planner's clocks to this rank, and return its session, already started.

    Call it once on every rank, after DistributedDataParallel or `fully_shard`. Global rank 0
    registers the job, every rank registers itself. Without planner or plan, training runs at the
    GPU's default clocks. What `training_step` encloses is a step, and nothing else is.

    Args:
        model: the module that the loop calls.
        job_id: the job's name at the planner; the same on all ranks.
        device_mesh: mesh of all ranks; default: that of the parameters that are DTensors, else
            every rank is one of data parallelism.
        dp_rank: rank in data parallelism, from 0, instead of a mesh; 0 if only tp or cp is given.
        tp_rank: likewise in tensor parallelism.
        cp_rank: likewise in context parallelism.
        initial_step: number of the first step, where training resumes.
        num_microbatches: number of batches in a step, each a call of the model and a backward,
            where ranks meet in each, as FSDP2's do, or in the last one, as with `no_sync`. Each
            forward and each backward then has a clock of its own. None: the step has one.
        options: how to plan, and the rank's planner and GPU;
            `help("flyball_integrations.shared.attach_options")` describes them.

    Raises:
        ValueError: Flyball is already attached, the model has no parameters, or an argument or
            environment variable cannot be used. Nothing stays open then.
        TypeError: there is no such option, or the model is no module.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    check_options(attach, options)
    if num_microbatches is not None and num_microbatches < 1:
        raise ValueError(f"num_microbatches must be at least 1, not {num_microbatches}")
    device = _device_of(model)
    given = {"dp_rank": dp_rank, "tp_rank": tp_rank, "cp_rank": cp_rank}
    layout = _layout(model, device_mesh, given)
    with ExitStack() as opened:
        ends = RankEnds(
            opened, options, device=device, job_id=job_id, layout=layout, initial_step=initial_step
        )
        hook = _hook_steps if num_microbatches is None else _hook_microbatches
        session, coupling, hooked_steps, announcer = hook(opened, ends, model, device)
        ends.start(session, coupling=coupling)
        _register(ends, session, num_microbatches)
        _attachments[model] = _Attachment(
            opened=opened.pop_all(),
            steps=hooked_steps,
            announcer=announcer if ends.announces_work else None,
        )
    return session


_Hooked = tuple[RankSession, Coupling, WholeSteps | MicrobatchSteps, StepAnnouncer]
"""Session of a rank whose model is hooked, and what belongs to it."""


def _hook_steps(
    opened: ExitStack, ends: RankEnds, model: torch.nn.Module, device: torch.device
) -> _Hooked:
    """Open a session of steps that are one instruction each."""
    session = ends.open_session()
    waits = RankWaits(session, device=device)
    steps = WholeSteps(session, synchronize=_synchronize(device), inside=waits.in_step)
    _hook_waits(opened, model, waits, has_microbatches=False)
    coupling = coupling_of(model, num_ranks=_rank_and_size()[1])
    return session, coupling, steps, _WholeStepAnnouncer(session, waits, coupling)


def _hook_microbatches(
    opened: ExitStack, ends: RankEnds, model: torch.nn.Module, device: torch.device
) -> _Hooked:
    """Open a session of steps whose forwards and backwards are instructions."""
    hooks = ends.device_hooks()
    session = ends.open_session(hooks=hooks)
    waits = RankWaits(session, device=device, hooks=hooks)
    # Before the hooks of waits, which so are called first.
    steps = MicrobatchSteps(
        model,
        hooks.of(session),
        waits,
        synchronize=hooks.synchronize,
        meets=meets_in_microbatch(model),
    )
    opened.callback(steps.remove)
    _hook_waits(opened, model, waits, has_microbatches=True)
    coupling = coupling_of(model, num_ranks=_rank_and_size()[1], has_microbatches=True)
    return session, coupling, steps, _MicrobatchAnnouncer(session, hooks, steps, coupling)


def _hook_waits(
    opened: ExitStack, model: torch.nn.Module, waits: RankWaits, *, has_microbatches: bool
) -> None:
    overrides = Overrides()
    opened.callback(overrides.remove)
    _, num_ranks = _rank_and_size()
    opened.callback(
        hook_waits(model, waits, overrides, num_ranks=num_ranks, has_microbatches=has_microbatches)
    )


def detach(model: torch.nn.Module) -> None:
    """Restore the clock and the model exactly; call it on every rank.

    Without an attachment it has no effect.
    """
    attachment = _attachments.pop(model, None)
    if attachment is not None:
        attachment.opened.close()


def training_step(model: torch.nn.Module) -> AbstractContextManager[None]:
    """Return a context for one training step: everything between two steps of the optimizer.

    With accumulated gradients it encloses the forwards and backwards of all of them. An exception
    restores the clock until the next step. While Flyball is not attached to the model it has no
    effect, and logs one warning.
    """
    attachment = _attachments.get(model)
    if attachment is None:
        _warn_unattached()
        return nullcontext()
    return attachment.steps.step()


def announcer_of(model: torch.nn.Module) -> StepAnnouncer | None:
    """Return the announcer of an attached model's steps; None: they are not announced."""
    attachment = _attachments.get(model)
    return None if attachment is None else attachment.announcer


def steps(
    loader: Iterable[B],
    *,
    lengths: Callable[[B], Any],
    accumulate: int | None = None,
    gives_lists: bool = True,
    model: torch.nn.Module | None = None,
) -> StepLoader[B]:
    """Return the loader's batches, each announced while the step before it runs.

    Give `announces_work=True` to `attach` on all ranks. Batches and their order are the loader's;
    one step is read ahead. `state_dict` of the loader, and of what this returns, is the position
    before that step. A pass reads nothing of the next pass, so `set_epoch` comes in time.

    Args:
        loader: of batches; may be passed over again for each epoch.
        lengths: returns the lengths of a batch's sequences in tokens, or of its images in patches:
            a list or a CPU tensor. Or a float, the time of the batch over that in the profile.
        accumulate: number of batches in a step, which then come as a list; None: one, as it is.
        gives_lists: False: with `accumulate`, batches come one by one all the same.
        model: that Flyball is attached to; None: the only model of this process.

    Raises:
        ValueError: `accumulate` is below 1.
    """

    def find_announcer() -> StepAnnouncer | None:
        attached = _attachments.get(model) if model is not None else None
        if model is None and len(_attachments) == 1:
            (attached,) = _attachments.values()
        if attached is None or attached.announcer is None:
            _warn_unannounced()
            return None
        return attached.announcer

    return StepLoader(
        loader,
        lengths=lambda batch: read_lengths(lengths(batch)),
        find_announcer=find_announcer,
        num_batches=accumulate,
        gives_lists=gives_lists,
    )


@cache
def _warn_unannounced() -> None:
    """Once in a process, as below."""
    _logger.warning(
        "steps() announces nothing: attach Flyball to one model with announces_work=True, or give"
        " steps() the model"
    )


@cache
def _warn_unattached() -> None:
    """Once in a process: a training loop would come here in every step."""
    _logger.warning("Flyball is not attached to this model, so training_step() does nothing")


def _device_of(model: torch.nn.Module) -> torch.device:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"attach takes the torch.nn.Module of the loop, not {type(model).__name__}")
    if model in _attachments:
        raise ValueError("Flyball is already attached to this model; call detach first")
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError("the model has no parameters, so there is nothing to train")
    return parameter.device


def _rank_and_size() -> tuple[int, int]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _layout(
    model: torch.nn.Module, mesh: DeviceMesh | None, given: Mapping[str, int | None]
) -> RankLayout:
    rank, _ = _rank_and_size()
    place = find_place_without_pipeline(model.parameters(), rank=rank, mesh=mesh, given=given)
    return RankLayout(rank=rank, stage=0, **asdict(place))


def _register(ends: RankEnds, session: RankSession, num_microbatches: int | None) -> None:
    """Register the job as a pipeline of one stage, and again where it has other microbatches."""
    _, num_ranks = _rank_and_size()

    def registration(num_microbatches: int, schedule: str = DEFAULT_SCHEDULE) -> JobRegistration:
        return JobRegistration(
            num_stages=1,
            num_microbatches=num_microbatches,
            num_ranks=num_ranks,
            schedule=schedule,
        )

    if num_microbatches is None:
        ends.register(registration(1, STEP), session)
    else:
        ends.register(registration(num_microbatches), session, registration)


def _synchronize(device: torch.device) -> Callable[[], None]:
    """Return a function that waits for the computations on the current stream."""
    if device.type == "cpu":
        return lambda: None
    device_module = torch.get_device_module(device)
    return lambda: device_module.current_stream(device).synchronize()
