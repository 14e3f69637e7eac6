"""Plans of Perseus: `freqs_pipeline_*.py` of lowtime and Zeus, `N.sched.json` of the artifact."""

from __future__ import annotations

import json

from flyball_server.cli.convert.foreign_plan import (
    ForeignPlan,
    kind_of,
    kinds_of,
    literal_stages,
    named_schedule,
    one_f_one_b,
    order_of_kinds,
)
from flyball_server.planning.errors import PlanningError
from flyball_server.replay.perseus_artifact import (
    ArtifactWorkload,
    RankClocks,
    computing_commands,
    plan_clocks,
)
from flyball_server.replay.recorded_runs import RecordingError
from flyball_wire.codec import decode_list
from flyball_wire.errors import CodecError


def plan_of_freqs(text: str) -> ForeignPlan:
    """Read a list of `(instruction, MHz)` per stage, or of MHz alone, which are of 1F1B.

    Raises:
        PlanningError: it is something else; names the place.
    """
    stages = literal_stages(text)
    if all(isinstance(item, int) for items in stages for item in items):
        lengths = {len(items) for items in stages}
        if len(lengths) > 1 or min(lengths) % 2:
            raise PlanningError(
                "clocks without instructions must be two for each microbatch on every stage",
                field="stages",
            )
        clocks = tuple(tuple(_clock(item) for item in items) for items in stages)
        schedule = one_f_one_b(len(stages), len(stages[0]) // 2)
        return ForeignPlan(schedule=schedule, clocks_mhz=clocks)
    kinds, by_stage = [], []
    for stage, items in enumerate(stages):
        pairs = [_pair(item, f"stages[{stage}][{at}]") for at, item in enumerate(items)]
        kinds.append(
            [kind_of(name, f"stages[{stage}][{at}]") for at, (name, _) in enumerate(pairs)]
        )
        by_stage.append(tuple(_clock(clock) for _, clock in pairs))
    return ForeignPlan(schedule=named_schedule(order_of_kinds(kinds)), clocks_mhz=tuple(by_stage))


def freqs_text(plan: ForeignPlan) -> str:
    """Return the plan as lowtime writes it and Zeus's PointSolution reads it.

    Raises:
        PlanningError: it has no clocks, or microbatches do not run in turn.
    """
    rows = [
        [(str(kind), clock_mhz) for kind, clock_mhz in zip(kinds, clocks, strict=True)]
        for kinds, clocks in zip(
            kinds_of(plan.schedule, "freqs_pipeline_*.py"), plan.clocks, strict=True
        )
    ]
    return "[\n" + "".join(f"{row},\n" for row in rows) + "]\n"


def plan_of_sched_json(text: str, folder_name: str, shape: tuple[int, int] | None) -> ForeignPlan:
    """Read each rank's clock for every command of Merak's 1F1B; forwards' and backwards' count.

    Args:
        text: the file.
        folder_name: of its folder, which names the workload in the artifact.
        shape: number of stages and of microbatches; None: as the folder's name says.

    Raises:
        PlanningError: the shape is unknown or another, or clocks cannot be right.
    """
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanningError(f"not JSON ({error})", field="document") from None
    num_ranks = len(document) if isinstance(document, list) else 0
    try:
        workload = ArtifactWorkload.of_folder(folder_name, "")
    except RecordingError:
        if shape is None:
            raise PlanningError(
                "the folder's name does not give the pipeline's shape; give --stages and"
                " --microbatches",
                field="document",
            ) from None
    if shape is not None:
        workload = _workload(num_ranks, *shape)
    try:
        clocks = plan_clocks(decode_list(RankClocks, document), workload)
    except (RecordingError, CodecError) as error:
        raise PlanningError(str(error), field="document") from None
    return ForeignPlan(
        schedule=one_f_one_b(workload.pp, workload.num_microbatches), clocks_mhz=clocks
    )


def sched_json_text(plan: ForeignPlan, num_ranks: int | None) -> str:
    """Return a clock for each command of each rank; rank r is of stage r mod the stages.

    Commands between two computations get the clock of the next computation, those at the end
    that of the last.

    Args:
        plan: a plan of 1F1B.
        num_ranks: a multiple of the number of stages; None: one pipeline.

    Raises:
        PlanningError: the order is another, or ranks are no whole pipelines.
    """
    num_stages, num_microbatches = plan.schedule.num_stages, plan.schedule.num_microbatches
    usual = one_f_one_b(num_stages, num_microbatches)
    if plan.schedule.stages != usual.stages or plan.order.virtual_stages:
        raise PlanningError(
            f"Merak runs 1F1B, and the plan is for {plan.schedule.name}", field="stages"
        )
    ranks = _workload(num_stages if num_ranks is None else num_ranks, num_stages, num_microbatches)
    by_stage: list[list[int]] = []
    for stage, clocks in enumerate(plan.clocks):
        places, num_commands = computing_commands(stage, num_stages, num_microbatches)
        states: list[int] = []
        for place, clock_mhz in zip(places, clocks, strict=True):
            states += [clock_mhz] * (place + 1 - len(states))
        by_stage.append(states + [clocks[-1]] * (num_commands - len(states)))
    return (
        json.dumps(
            [
                {"rank": rank, "power_states": by_stage[rank % num_stages]}
                for rank in range(ranks.num_ranks)
            ]
        )
        + "\n"
    )


def _workload(num_ranks: int, num_stages: int, num_microbatches: int) -> ArtifactWorkload:
    if num_ranks < 1 or num_ranks % num_stages:
        raise PlanningError(
            f"{num_ranks} ranks do not fill pipelines of {num_stages} stages", field="document"
        )
    return ArtifactWorkload(
        model="",
        partition="",
        gpu="",
        dp=num_ranks // num_stages,
        pp=num_stages,
        tp=1,
        microbatch_size=1,
        num_microbatches=num_microbatches,
    )


def _pair(item: object, where: str) -> tuple[object, object]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise PlanningError("must be (instruction, MHz)", field=where)
    return item[0], item[1]


def _clock(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlanningError(
            f"a clock must be a whole number of MHz, not {str(value)[:40]}", field="stages"
        )
    if value == 0:
        raise PlanningError(
            "a frequency of 0 leaves the clock as it is, and a plan here sets every clock; write"
            " the clock to set",
            field="stages",
        )
    return value
