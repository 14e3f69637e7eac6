"""Flyball in Megatron-Core's pipeline schedules: one line before training.

    session = flyball_integrations.megatron.pipeline.attach(
        config, job_id="gpt", num_microbatches=get_num_microbatches()
    )
    forward_backward_func = get_forward_backward_func()  # after attach
    for _ in range(num_steps):
        forward_backward_func(...)
        optimizer.step()
    flyball_integrations.megatron.pipeline.detach()

Megatron's schedules are functions of a module, so there is one attachment in a process.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Literal, Unpack

import megatron.core
import torch
import torch.distributed
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import schedules

from flyball_client.session.rank_session import RankSession
from flyball_client.steps.agreement import Coupling
from flyball_integrations.megatron.order import (
    interleaved,
    one_f_one_b,
    registration_of,
)
from flyball_integrations.megatron.timers import HookedTimers
from flyball_integrations.megatron.training import MegatronTraining
from flyball_integrations.shared.attach_options import (
    AttachOptions,
    announced_text,
    check_options,
)
from flyball_integrations.shared.attachment import Overrides, RankEnds, RankLayout
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_integrations.shared.loading.microbatch_reader import MicrobatchReader
from flyball_integrations.shared.loading.step_work import PipelineAnnouncer
from flyball_integrations.shared.one_order import on_all_ranks_or_none, order_text
from flyball_integrations.shared.whole_steps import WholeSteps
from flyball_pipeline.schedule import Schedule
from flyball_wire.messages import JobRegistration, Profiling
from flyball_wire.plan_options import Policy

CALLS = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
_NAMES = (
    *CALLS,
    "forward_step",
    "backward_step",
    "get_schedule_table",
    "get_pp_rank_microbatches",
)
_PARAMETER = "p2p_communicator"
_TESTED_VERSIONS = "0.14.0, 0.15.3 and 0.16.1"


def check_names(schedules: Any, *, version: str) -> None:  # noqa: ANN401 - a module without types
    """Check that `megatron.core.pipeline_parallel.schedules` has all names that are used.

    Raises:
        ValueError: a name is missing.
    """
    missing = [name for name in _NAMES if not hasattr(schedules, name)]
    if not missing:
        of_warmup = inspect.signature(schedules.get_pp_rank_microbatches).parameters
        missing = [] if _PARAMETER in of_warmup else [f"{_PARAMETER} of get_pp_rank_microbatches"]
    if missing:
        raise ValueError(
            f"megatron-core {version} has no {missing[0]} in its schedules,"
            f" which Flyball uses; it is tested with megatron-core {_TESTED_VERSIONS}"
        )


Function = Callable[..., Any]


def patch_schedules(
    schedules: Any,  # noqa: ANN401 - a module without types
    training: MegatronTraining,
    overrides: Overrides,
) -> None:
    """Wrap every call, forward and backward of Megatron's schedules."""
    wrappers = _Wrappers(training)
    for name in CALLS:
        overrides.set(schedules, name, wrappers.around_call(getattr(schedules, name)))
    forward, backward = schedules.forward_step, schedules.backward_step
    overrides.set(schedules, "forward_step", wrappers.around_forward(forward))
    overrides.set(schedules, "backward_step", wrappers.around_backward(backward))


class _Wrappers:
    def __init__(self, training: MegatronTraining) -> None:
        self._training = training
        # Microbatch and chunk of an output, by the output's identity: Megatron keeps the output
        # until its backward, which has no number of its own.
        self._place_of_output: dict[int, tuple[int | None, int]] = {}

    def around_call(self, stock: Function) -> Function:
        @wraps(stock)
        def run_microbatches(*args: object, **kwargs: object) -> object:
            self._place_of_output.clear()
            with self._training.call(forward_only=bool(kwargs.get("forward_only", False))):
                return stock(*args, **kwargs)

        return run_microbatches

    def around_forward(self, stock: Function) -> Function:
        @wraps(stock)
        def forward_between_hooks(*args: object, **kwargs: Any) -> Any:  # noqa: ANN401 - Megatron's
            if not self._training.is_training:
                return stock(*args, **kwargs)
            place = kwargs.get("current_microbatch"), kwargs.get("vp_stage") or 0
            self._training.begin("forward", *place)
            result = stock(*args, **kwargs)
            self._training.end("forward", *place)
            self._place_of_output[_identity(result[0])] = place
            return result

        return forward_between_hooks

    def around_backward(self, stock: Function) -> Function:
        @wraps(stock)
        def backward_between_hooks(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Megatron's
            if not self._training.is_training:
                return stock(*args, **kwargs)
            output = args[1] if len(args) > 1 else kwargs.get("output_tensor")
            place = self._place_of_output.pop(_identity(output), (None, 0))
            self._training.begin("backward", *place)
            result = stock(*args, **kwargs)
            self._training.end("backward", *place)
            return result

        return backward_between_hooks


def _identity(output: object) -> int:
    """Return the identity of the output's first tensor, which Megatron may put in a list."""
    while isinstance(output, list | tuple) and output:
        output = output[0]
    return id(output)


_ATTACHMENT = "_flyball_attachment"
_HOOKS = ("patch", "timers")
_CONSTANT = (Policy.CONSTANT, Policy.GLOBAL)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Attachment:
    """State that `detach` closes, and `training_step` and `microbatches` use."""

    opened: ExitStack
    training_step: Callable[[], AbstractContextManager[None]]
    #: None: the work of steps is not announced.
    announcer: PipelineAnnouncer | None
    num_microbatches: int


def attach(
    config: Any,  # noqa: ANN401 - Megatron's ModelParallelConfig; its package has no types
    *,
    job_id: str,
    num_microbatches: int,
    hooks: Literal["patch", "timers"] = "patch",
    initial_step: int = 0,
    **options: Unpack[AttachOptions],
) -> RankSession:
    """Attach the planner's clocks to this rank, and return its session, already started.

    Call it once on every rank, after `initialize_model_parallel`, and with `hooks="patch"` before
    `get_forward_backward_func`. Rank 0 registers the job with the order that Megatron's schedule
    runs; every rank registers itself. Without planner or plan, training runs at the GPU's default
    clocks. All ranks wait here for each other and compare their orders. A call with
    `forward_only=True` is not hooked. Where the config leaves no place for hooks inside a step,
    each stage runs at one clock, and a step is a `training_step`.

    Args:
        config: the model's; with model chunks the first one's, which Megatron's schedules use.
        job_id: the job's name at the planner; the same on all ranks.
        num_microbatches: that `forward_backward_func` will be called with.
        hooks: `patch` rebinds functions of Megatron's module `schedules`; `timers` changes
            nothing of Megatron's and stands in `config.timers`, which times receives too.
        initial_step: number of the first step, where training resumes.
        options: how to plan, and the rank's planner and GPU;
            `help("flyball_integrations.shared.attach_options")` describes them.

    Raises:
        ValueError: Flyball is already attached, model parallelism is not initialized, an argument
            or environment variable cannot be used or does not go with the config, this Megatron
            lacks a hooked function, or another rank has failed, runs another order or has not
            called this within 10 minutes. Nothing stays open then.
        TypeError: there is no such option.
        GpuError, OSError: with `strict`, clocks of this rank's GPU cannot be set.
    """
    with ExitStack() as opened:
        with on_all_ranks_or_none() as joining:
            check_options(attach, options)
            _check(config, num_microbatches=num_microbatches, hooks=hooks)
            options = _possible_options(options, config, job_id)
            order = _order(config, num_microbatches)
            registration = _registration(order)
            joining.order = order_text(registration, beside=announced_text(options))
            layout = RankLayout(
                rank=torch.distributed.get_rank(),
                stage=parallel_state.get_pipeline_model_parallel_rank(),
                dp_rank=parallel_state.get_data_parallel_rank(),
                tp_rank=parallel_state.get_tensor_model_parallel_rank(),
                cp_rank=parallel_state.get_context_parallel_rank(),
            )
            ends = RankEnds(
                opened,
                options,
                device=_device(),
                job_id=job_id,
                layout=layout,
                initial_step=initial_step,
                num_chunks=order.num_chunks,
                has_whole_steps=_has_whole_steps(config),
            )
            device_hooks = ends.device_hooks()
            session = ends.open_session(hooks=device_hooks)
        with on_all_ranks_or_none():
            ends.start(session, coupling=_coupling_of(config))
        _warn_of_held_back_sends(ends, registration, config, job_id)
        step = _open_step(opened, config, order, session, device_hooks, hooks=hooks)
        ends.register(registration, session, lambda number: _registration(_order(config, number)))
        attachment = _Attachment(
            opened=opened.pop_all(),
            training_step=step,
            announcer=PipelineAnnouncer(session, device_hooks) if ends.announces_work else None,
            num_microbatches=num_microbatches,
        )
        setattr(schedules, _ATTACHMENT, attachment)
    return session


def detach() -> None:
    """Restore the clock and Megatron's module and config; call it once on every rank.

    Without an attachment it has no effect.
    """
    attachment: _Attachment | None = vars(schedules).pop(_ATTACHMENT, None)
    if attachment is not None:
        attachment.opened.close()


def microbatches(
    data_iterator: Any,  # noqa: ANN401 - whatever Megatron takes
    *,
    lengths: Callable[[Any], Any],
    num_microbatches: Callable[[], int] | None = None,
) -> Any:  # noqa: ANN401 - as it was given
    """Return the data iterator, whose steps are announced while the step before runs.

    Give `announces_work=True` to `attach` on all ranks, and call this on every rank with what
    Megatron has there: an iterator, a list of one for each model chunk, or None where nothing is
    read. A RerunDataIterator is returned itself and reads ahead inside, others in a list of the
    same length. Microbatches and their order stay; with each, about one of the next step is read.

    Args:
        data_iterator: of the training; not that of evaluations.
        lengths: returns the lengths of a microbatch's sequences in tokens, from what the iterator
            yields, on the host: a list or a CPU tensor. Or a float, the time of the microbatch over
            that in the profile.
        num_microbatches: returns the number of microbatches of a step, as Megatron's
            `get_num_microbatches`; None: it is that of `attach`.

    Raises:
        ValueError: Flyball is not attached with `announces_work=True`.
    """
    attachment: _Attachment | None = vars(schedules).get(_ATTACHMENT)
    if attachment is None or attachment.announcer is None:
        raise ValueError("attach Flyball to Megatron with announces_work=True before")
    if data_iterator is None:
        return None
    if isinstance(data_iterator, list | tuple):
        return [
            microbatches(iterator, lengths=lengths, num_microbatches=num_microbatches)
            for iterator in data_iterator
        ]
    number = attachment.num_microbatches
    is_rerun = type(data_iterator).__name__ == "RerunDataIterator"
    reader = MicrobatchReader(
        data_iterator.iterable if is_rerun else data_iterator,
        lengths=lengths,
        announcer=attachment.announcer,
        num_microbatches=num_microbatches or (lambda: number),
    )
    if not is_rerun:
        return reader
    data_iterator.iterable = reader
    return data_iterator


def training_step() -> AbstractContextManager[None]:
    """Return a context for all parts of a step, as the optimizer's.

    Without it a step is the call of `forward_backward_func`. While Flyball is not attached it has
    no effect, and logs one warning.
    """
    attachment: _Attachment | None = vars(schedules).get(_ATTACHMENT)
    if attachment is None:
        _warn_unattached()
        return nullcontext()
    return attachment.training_step()


@cache
def _warn_unattached() -> None:
    """Once in a process: a training loop would come here in every step."""
    _logger.warning("Flyball is not attached to Megatron, so training_step() does nothing")


def _warn_of_held_back_sends(
    ends: RankEnds,
    registration: JobRegistration,
    config: Any,  # noqa: ANN401 - as above
    job_id: str,
) -> None:
    """Warn on rank 0 where the config makes steps slower than a plan predicts."""
    if not ends.registers_job or registration.order is None or config.overlap_p2p_comm:
        return
    _logger.warning(
        "job %s: without overlap_p2p_comm an interleaved schedule sends a forward's output"
        " only after the next backward, which plans do not model: steps may take longer"
        " than planned, and than without a plan",
        job_id,
    )


def _open_step(
    opened: ExitStack,
    config: Any,  # noqa: ANN401 - as above
    order: Schedule,
    session: RankSession,
    device_hooks: DeviceHooks,
    *,
    hooks: Literal["patch", "timers"],
) -> Callable[[], AbstractContextManager[None]]:
    """Return what runs a step; hook Megatron's module, or its timers, which time transfers too."""
    if _has_whole_steps(config):
        return WholeSteps(session, synchronize=device_hooks.synchronize).step
    overrides = Overrides()
    opened.callback(overrides.remove)
    transfers = device_hooks.transfer_timer(session) if hooks == "timers" else None
    training = MegatronTraining(
        device_hooks.of(session), synchronize=device_hooks.synchronize, transfers=transfers
    )
    if transfers is None:
        patch_schedules(schedules, training, overrides)
    else:
        stage = parallel_state.get_pipeline_model_parallel_rank()
        timers = HookedTimers(
            config.timers, training, order=order.stages[stage], transfers=transfers
        )
        overrides.set(config, "timers", timers)
    return training.training_step


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _coupling_of(config: Any) -> Coupling:  # noqa: ANN401 - as above
    """Return where ranks of other pipelines are met: its experts', or once a step.

    It is unknown where steps are hooked as a whole.
    """
    if _has_whole_steps(config):
        return "unknown"
    num_experts = getattr(config, "expert_model_parallel_size", None) or 1
    return "instruction" if num_experts > 1 else "step"


def _order(config: Any, num_microbatches: int) -> Schedule:  # noqa: ANN401
    """Return the order of all stages, as `get_forward_backward_func` chooses the schedule."""
    num_stages = parallel_state.get_pipeline_model_parallel_world_size()
    num_chunks = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    if num_stages == 1 or num_chunks is None:
        return one_f_one_b(num_stages, num_microbatches)
    return interleaved(
        schedules,
        num_stages=num_stages,
        num_chunks=num_chunks,
        num_microbatches=num_microbatches,
        group_size=config.microbatch_group_size_per_vp_stage,
    )


def _registration(order: Schedule) -> JobRegistration:
    return registration_of(order, torch.distributed.get_world_size())


def _check(config: Any, *, num_microbatches: int, hooks: str) -> None:  # noqa: ANN401 - as above
    check_names(schedules, version=megatron.core.__version__)
    if hasattr(schedules, _ATTACHMENT):
        raise ValueError("Flyball is already attached to Megatron; call detach() first")
    if hooks not in _HOOKS:
        raise ValueError(f"hooks must be one of {', '.join(_HOOKS)}, not {hooks!r}")
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches must be at least 1, not {num_microbatches}")
    if not parallel_state.model_parallel_is_initialized():
        raise ValueError("call parallel_state.initialize_model_parallel before attach")


def _what_cannot_be_hooked(config: Any) -> str | None:  # noqa: ANN401 - as above
    """Return the option of the config under which no hook can run inside a step; None: none."""
    if getattr(config, "overlap_moe_expert_parallel_comm", False):
        return "overlap_moe_expert_parallel_comm"  # a forward and a backward as one computation
    # A name, or members of an enumeration, by version.
    if "full_iteration" in str(getattr(config, "cuda_graph_scope", "")):
        return "a CUDA graph of the full iteration"
    return None


def _has_whole_steps(config: Any) -> bool:  # noqa: ANN401 - as above
    return _what_cannot_be_hooked(config) is not None


def _possible_options(
    options: AttachOptions,
    config: Any,  # noqa: ANN401 - as above
    job_id: str,
) -> AttachOptions:
    """Return the options; where no hook can run inside a step, with policy `constant`.

    Raises:
        ValueError: then the policy is another, or the profile is to be measured in training.
    """
    unhooked = _what_cannot_be_hooked(config)
    if unhooked is None:
        return options
    policy = options.get("policy")
    if policy not in {None, *_CONSTANT}:
        raise ValueError(
            f"with {unhooked} clocks change between steps only: policy must be"
            f" {' or '.join(_CONSTANT)}, not {policy!r}"
        )
    if options.get("profiling") == Profiling.ONLINE:
        raise ValueError(
            f"with {unhooked} forwards and backwards cannot be measured in training: give a profile"
            " instead of profiling='online', measured without it"
        )
    _logger.warning(
        "job %s: with %s nothing is hooked inside a step: each stage runs at one clock (policy %s),"
        " and only steps within training_step() count",
        job_id,
        unhooked,
        policy or Policy.CONSTANT,
    )
    return {**options, "policy": policy or Policy.CONSTANT}
