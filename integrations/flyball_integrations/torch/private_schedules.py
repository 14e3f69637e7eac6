"""Everything that Flyball uses of torch.distributed.pipelining, most of it private.

`check_schedule` names in one line what another version of torch lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch.distributed.pipelining import schedules

from flyball_integrations.shared.attachment import Overrides

# An object of one of torch's schedule classes, and one of its PipelineStage objects.
PipelineSchedule = Any
PipelineStage = Any
Wait = Callable[[Sequence[Any]], None]

TESTED_TORCH = "2.13.0"
_MODULE_NAMES = (
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "Schedule1F1B",
    "ScheduleGPipe",
    "_Action",
    "_ComputationType",
    "_PipelineScheduleRuntime",
    "_wait_batch_p2p",
)
_SCHEDULE_NAMES = (
    "_has_backward",
    "_internal_losses",
    "_loss_fn",
    "_maybe_compute_loss",
    "_n_microbatches",
    "_step_microbatches",
    "pipeline_order",
    "scale_grads",
    "step",
)
_STAGE_NAMES = (
    "backward_one_chunk",
    "backward_weight_one_chunk",
    "device",
    "forward_one_chunk",
    "group",
    "group_rank",
    "group_size",
    "is_last",
    "num_stages",
    "stage_index",
    "stage_index_to_group_rank",
    "submod",
)
_ACTION_NAMES = ("computation_type", "microbatch_index", "stage_index", "sub_actions")
_SINGLE_NAMES = ("_initialize_stage",)
_RUNTIME_NAMES = ("_initialize_stages", "_prepare_schedule_with_comms", "_step_microbatches")
# torch's letter for a computation, and the name of its kind.
_KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
_OVERLAPPED = "OVERLAP_F_B"


class Computation(NamedTuple):
    """One computation of a pipeline rank.

    Attributes:
        kind: `forward`, `backward`, `backward_input` or `backward_weight`.
        microbatch: from 0.
        virtual_stage: torch's stage index: the position in the model.
    """

    kind: str
    microbatch: int
    virtual_stage: int


def check_schedule(schedule: PipelineSchedule) -> None:
    """Check that Flyball can be attached to a schedule.

    Raises:
        ValueError: it does not train, its order is unknown, a custom function computes instead
            of its stages, or torch lacks a name that is used here.
    """
    _check_names((schedules, _MODULE_NAMES))
    if not isinstance(
        schedule, (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti)
    ):
        raise ValueError(
            "attach takes a schedule of torch.distributed.pipelining, not"
            f" {type(schedule).__name__}"
        )
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    _check_names(
        (schedules._Action, _ACTION_NAMES),
        (schedules.PipelineScheduleSingle, _SINGLE_NAMES),
        (schedules._PipelineScheduleRuntime, _RUNTIME_NAMES),
        (schedule, _SCHEDULE_NAMES),
        *((stage, _STAGE_NAMES) for stage in stages),
    )
    if not schedule._has_backward:
        raise ValueError("the schedule has no loss_fn, so it does not train; give it one")
    _check_custom_functions(schedule)
    if not _is_multi(schedule) and name_of(schedule) is None:
        raise ValueError(
            f"{type(schedule).__name__} runs its microbatches in its own way, so their order is"
            " unknown; use Schedule1F1B, ScheduleGPipe or a schedule of several stages"
        )
    if not _actions_by_rank(schedule):
        raise ValueError(
            f"{type(schedule).__name__} has no pipeline_order, so its order is unknown"
        )


def stages_of(schedule: PipelineSchedule) -> tuple[PipelineStage, ...]:
    """Return this rank's stages in the order of the model; the position is the chunk's number."""
    stages = schedule._stages if _is_multi(schedule) else [schedule._stage]
    return tuple(sorted(stages, key=lambda stage: cast("int", stage.stage_index)))


def is_training(schedule: PipelineSchedule) -> bool:
    """Return whether a `step` runs backwards now: `eval` calls it without."""
    return bool(schedule._has_backward)


def num_microbatches_of(schedule: PipelineSchedule) -> int:
    """Return the number of microbatches of a `step`."""
    return cast("int", schedule._n_microbatches)


def name_of(schedule: PipelineSchedule) -> str | None:
    """Return the planner's name of a schedule that it generates as torch runs it; None: none.

    These two have a loop of their own in torch, and `pipeline_order` is not what it runs: the
    last rank of 1F1B counts its forwards from 1 there. A class derived from one of them has its
    name where it has its loop.
    """
    names = {
        schedules.ScheduleGPipe._step_microbatches: "gpipe",
        schedules.Schedule1F1B._step_microbatches: "1f1b",
    }
    return names.get(type(schedule)._step_microbatches)


def computations_of(schedule: PipelineSchedule) -> tuple[tuple[Computation, ...], ...]:
    """Return the computations of each pipeline rank in a step, in the order of execution."""
    return tuple(
        tuple(
            Computation(
                _KINDS[part.computation_type.value], part.microbatch_index, part.stage_index
            )
            for action in actions
            if action is not None  # a pause in torch's drawing, which is not executed
            for part in action.sub_actions or (action,)
            if part.computation_type.value in _KINDS
        )
        for _, actions in sorted(_actions_by_rank(schedule).items())
    )


@contextmanager
def waits_replaced(timed: Callable[[Wait], Wait]) -> Iterator[None]:
    """Replace the wait of all of torch's schedules for messages inside the block."""
    wait = schedules._wait_batch_p2p
    schedules._wait_batch_p2p = timed(wait)
    try:
        yield
    finally:
        schedules._wait_batch_p2p = wait


def run_in_order(
    schedule: PipelineSchedule, orders: Sequence[Sequence[Computation]], overrides: Overrides
) -> None:
    """Run the training steps of a schedule in another order.

    torch's own runtime makes the sends and receives that the order needs, and none of them waits
    for the neighbour. Stage, losses, initialization and `step` stay the schedule's, and an
    evaluation in between its own.

    Args:
        schedule: with one stage per rank.
        orders: of every pipeline rank; they can run together.
        overrides: restores the schedule's own order.
    """
    (stage,) = stages_of(schedule)
    # torch's runtime puts an equal one in its place.
    overrides.set(stage, "stage_index_to_group_rank", stage.stage_index_to_group_rank)
    own, runtime = schedule._step_microbatches, _in_order(schedule, orders)

    def step_microbatches(*args: object, **kwargs: object) -> object:
        run = runtime._step_microbatches if is_training(schedule) else own
        return run(*args, **kwargs)

    overrides.set(schedule, "_step_microbatches", step_microbatches)


def rehearse(schedule: PipelineSchedule, orders: Sequence[Sequence[Computation]]) -> None:
    """Check before training that this version of torch can run another order.

    Args:
        schedule: with one stage per rank; it does not change.
        orders: of every pipeline rank, as in `run_in_order`.

    Raises:
        ValueError: this torch cannot.
    """
    overrides = Overrides()
    try:
        run_in_order(schedule, orders, overrides)
    except Exception as error:
        # Any exception: another version may differ in its private parts.
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(
            f"torch {torch.__version__} cannot run another order of this schedule ({problem});"
            f" use order='own', or torch {TESTED_TORCH}, with which it is tested"
        ) from error
    finally:
        overrides.remove()


def _in_order(
    schedule: PipelineSchedule, orders: Sequence[Sequence[Computation]]
) -> PipelineSchedule:
    """Return a runtime with a `_step_microbatches` that runs the schedule in another order."""
    runtime = schedules._PipelineScheduleRuntime(
        [schedule._stage],
        schedule._n_microbatches,
        loss_fn=schedule._loss_fn,
        scale_grads=schedule.scale_grads,
    )
    vars(runtime).update(
        _internal_losses=schedule._internal_losses,
        _maybe_compute_loss=schedule._maybe_compute_loss,
        _initialize_stages=schedule._initialize_stage,
    )
    runtime._prepare_schedule_with_comms(_actions(orders))
    return runtime


def has_pairs(schedule: PipelineSchedule) -> bool:
    """Return whether any rank runs a forward and a backward as a pair; of no schedule, False."""
    executed = getattr(schedule, "pipeline_order_with_comms", None) or {}
    # Older versions of torch have no `sub_actions`; `check_schedule` refuses them.
    return any(
        getattr(action, "sub_actions", None) for order in executed.values() for action in order
    )


def send_at_once(schedule: PipelineSchedule, overrides: Overrides) -> None:
    """Split the overlapped pairs of a schedule: the same order, with sends in between.

    torch runs a pair's forward, then its backward, and sends both results afterwards; so the
    next rank waits for the forward's although it is ready. All ranks must call it.

    Args:
        schedule: without a custom function for such a pair.
        overrides: puts the pairs back.
    """
    if not has_pairs(schedule):
        return
    for target in (schedule, *stages_of(schedule)):
        # torch replaces it by an equal mapping.
        overrides.set(target, "stage_index_to_group_rank", target.stage_index_to_group_rank)
    overrides.set(schedule, "pipeline_order_with_comms", schedule.pipeline_order_with_comms)
    schedule._prepare_schedule_with_comms(_actions(computations_of(schedule)))


def _is_multi(schedule: PipelineSchedule) -> bool:
    return isinstance(schedule, schedules.PipelineScheduleMulti)


def _check_custom_functions(schedule: PipelineSchedule) -> None:
    """Refuse functions that torch runs instead of the stages' methods, which no hook sees."""
    for kind in getattr(schedule, "_comp_type_to_function_map", {}):
        if kind.value == _OVERLAPPED:
            raise ValueError(
                "the schedule has a custom function for OVERLAP_F_B: a forward and a backward"
                " that run at the same time cannot have a clock each; do not register it"
            )
        if kind.value in _KINDS:
            raise ValueError(
                f"the schedule has a custom function for {kind.name}, which runs in the place"
                " of its stages' methods, where Flyball's hooks are; do not register it"
            )


def _actions_by_rank(schedule: PipelineSchedule) -> dict[int, list[Any]]:
    """Return the executed actions, with transfers where torch has them; empty: no order."""
    executed = getattr(schedule, "pipeline_order_with_comms", None) or schedule.pipeline_order
    return cast("dict[int, list[Any]]", executed or {})


def _actions(orders: Sequence[Sequence[Computation]]) -> dict[int, list[Any]]:
    """Return torch's actions of each pipeline rank."""
    kinds = {kind: schedules._ComputationType(letter) for letter, kind in _KINDS.items()}
    return {
        rank: [
            schedules._Action(
                instruction.virtual_stage, kinds[instruction.kind], instruction.microbatch
            )
            for instruction in order
        ]
        for rank, order in enumerate(orders)
    }


def _check_names(*uses: tuple[object, Iterable[str]]) -> None:
    """Check that objects of torch have the attributes that are used here."""
    missing = [name for target, names in uses for name in names if not hasattr(target, name)]
    if missing:
        raise ValueError(
            f"torch {torch.__version__} has no {missing[0]} in its pipelining, which Flyball"
            f" uses; it is tested with torch {TESTED_TORCH}"
        )
