"""Schedule `auto`: among the orders that can be run, the one with the least energy at the target.

`auto:NAME,NAME` names the orders to compare, besides 1F1B: those that a framework can run, or the
V-shaped ones where the profile's chunks lie so.

All candidates get the same deadline, from 1F1B at the highest clocks. A candidate's bound says
what none of its plans can beat; plans are made in the order of rising bounds, until the best plan
is below all bounds that are left. So no order that is left out could have been better, and few
candidates are planned at all; among those that are, the plans that were found decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedules.table import InAuto, schedules_in_auto
from flyball_server.planning.errors import PlanningError, TargetUnreachableError
from flyball_server.planning.frontier.noise_reserve import solver_with_reserve
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import RELATIVE_TIME_TOLERANCE, time_and_energy
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_server.planning.policies.frontier import choice_with
from flyball_server.planning.request_options import rounded_up
from flyball_wire.plan_options import PlanOptions
from flyball_wire.plans.plan import ConsideredSchedule
from flyball_wire.targets import Target, parse_target

AUTO = "auto"
REFERENCE = "1f1b"
# Of the time: plans for one power budget end at deadlines found by bisection.
SAME_TIME = 1e-4


@dataclass(frozen=True, kw_only=True)
class ScheduleChoice:
    """The order that was chosen, with its plan and what was found of the others.

    Attributes:
        choice: its clocks.
        target: the target that its plan meets, as an option; a deadline is that of 1F1B.
        is_final: false: orders were compared with the reserve that was chosen for 1F1B; the
            order's own plan is another.
    """

    name: str
    model: PipelineModel
    choice: PolicyChoice
    target: str
    is_final: bool
    considered: tuple[ConsideredSchedule, ...]


@dataclass(kw_only=True)
class _Candidate:
    """An order that can be run; choice, time and energy are of its plan, once there is one."""

    name: str
    model: PipelineModel
    solver: DeadlineSolver
    target: Target
    bound_j: float
    choice: PolicyChoice | None = None
    iteration_time_s: float | None = None
    energy_j: float = math.inf

    @property
    def target_text(self) -> str:
        """Target as an option."""
        kind, value = self.target.kind, self.target.value
        return kind if kind == "least-energy" else f"{kind}:{value!r}"


def is_auto(schedule: str) -> bool:
    """Return whether a schedule's name asks for a choice: `auto`, or `auto:envpipe,zb-h1`."""
    return schedule.partition(":")[0] == AUTO


def candidate_schedules(schedule: str) -> tuple[str, ...]:
    """Return the orders that `auto` or `auto:NAME,NAME` compares: 1F1B, then those named.

    Raises:
        PlanningError: a name is none that can be compared.
    """
    _, colon, names = schedule.partition(":")
    if not colon:
        return schedules_in_auto(InAuto.ALWAYS)
    wanted = [name.strip() for name in names.split(",")]
    known = schedules_in_auto(InAuto.ALWAYS, InAuto.NAMED)
    for name in wanted:
        if name not in known:
            raise PlanningError(
                f"auto has no schedule {name!r}; known: {', '.join(known)}", field="schedule"
            )
    return tuple(dict.fromkeys((REFERENCE, *wanted)))


def choose_schedule(
    models: Mapping[str, PipelineModel | PipelineError],
    options: PlanOptions,
    report: Callable[[str], None],
    *,
    reference: str = REFERENCE,
) -> ScheduleChoice:
    """Return the order with the least energy at the target.

    For a power budget the one whose plan is fastest, though not faster than the reference at the
    highest clocks; of plans that take equally long, the one with the least energy.

    Args:
        models: by name, the pipeline under that order, or why it cannot run.
        options: target, effort and reserve of each plan.
        report: callback that receives the name of each order before it is planned.
        reference: name of the order that the target and the others are relative to.

    Raises:
        PlanningError: the reference itself cannot run, or the target is none.
        TargetUnreachableError: no order meets the target.
    """
    first = models[reference]
    if isinstance(first, PipelineError):
        raise first
    baseline_s, _ = time_and_energy(first, first.baseline())
    target = _with_deadline(parse_target(options.target), baseline_s)
    deadline_s = target.value if target.kind == "deadline" else math.inf
    solver, reserve = solver_with_reserve(first.without_transitions(), options, deadline_s)
    search = _Search(
        reference=reference,
        target=target,
        baseline_s=baseline_s,
        options=replace(options, reserve=reserve.share),
        report=report,
    )
    for name, model in models.items():
        report(f"planning {name}")
        search.add(name, model, solver if name == reference else None)
    best = search.best()
    if best is None or best.choice is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in search.why_not.items())
        raise TargetUnreachableError(
            f"no order meets {options.target!r}: {reasons}",
            field="target",
            nearest_target=search.nearest_target,
        )
    return ScheduleChoice(
        name=best.name,
        model=best.model,
        choice=replace(best.choice, reserve=reserve),
        target=best.target_text,
        is_final=reserve.choice is None,
        considered=tuple(search.considered(name) for name in models),
    )


class _Search:
    """Search for the best order: bounds of all orders, and plans of as few as needed."""

    def __init__(
        self,
        *,
        reference: str,
        target: Target,
        baseline_s: float,
        options: PlanOptions,
        report: Callable[[str], None],
    ) -> None:
        self._reference = reference
        self._target = target
        self._baseline_s = baseline_s
        self._options = options
        self._report = report
        self._candidates: dict[str, _Candidate] = {}
        self.why_not: dict[str, str] = {}
        self._fastest_s: list[float] = []

    def add(
        self, name: str, model: PipelineModel | PipelineError, solver: DeadlineSolver | None
    ) -> None:
        """Add an order; a solver is made where none is given."""
        if isinstance(model, PipelineError):
            self.why_not[name] = str(model)
            return
        if solver is None:
            share = self._options.reserve or 0.0
            solver = DeadlineSolver(model.without_transitions(), reserve=share)
        target = self._target
        if target.kind == "deadline":
            if target.value * (1 + RELATIVE_TIME_TOLERANCE) < solver.fastest_time_s:
                self.why_not[name] = f"takes at least {solver.fastest_time_s:.6g} s"
                self._fastest_s.append(solver.fastest_time_s)
                return
            # The sums of equal orders' times may differ by their rounding.
            target = Target(kind="deadline", value=max(target.value, solver.fastest_time_s))
        self._candidates[name] = _Candidate(
            name=name,
            model=model,
            solver=solver,
            target=target,
            bound_j=_bound_j(solver, target),
        )

    @property
    def nearest_target(self) -> str | None:
        """Deadline of the fastest order of those that miss theirs; None: none does."""
        return f"deadline:{rounded_up(min(self._fastest_s))}" if self._fastest_s else None

    def best(self) -> _Candidate | None:
        best: _Candidate | None = None
        for candidate in sorted(self._candidates.values(), key=attrgetter("bound_j")):
            # The reference is planned in any case, to say what another order brings.
            is_beaten = best is not None and candidate.bound_j >= best.energy_j
            if is_beaten and candidate.name != self._reference:
                continue
            self._make_plan(candidate)
            if self._is_better(candidate, best):
                best = candidate
        return best

    def _is_better(self, candidate: _Candidate, other: _Candidate | None) -> bool:
        if candidate.iteration_time_s is None or other is None or other.iteration_time_s is None:
            return candidate.choice is not None
        if self._target.kind == "power":
            ratio = candidate.iteration_time_s / other.iteration_time_s
            if abs(ratio - 1) > SAME_TIME:
                return ratio < 1
        return candidate.energy_j < other.energy_j

    def considered(self, name: str) -> ConsideredSchedule:
        candidate, why_not = self._candidates.get(name), self.why_not.get(name)
        bound_j = time_s = energy_j = None
        if candidate is not None and why_not is None:
            bound_j = candidate.choice.lower_bound_j if candidate.choice else candidate.bound_j
            time_s = candidate.iteration_time_s
            energy_j = candidate.energy_j if candidate.choice else None
        return ConsideredSchedule(
            schedule=name,
            lower_bound_j=bound_j,
            iteration_time_s=time_s,
            energy_j=energy_j,
            why_not=why_not,
        )

    def _make_plan(self, candidate: _Candidate) -> None:
        """Its plan, or why none meets the target."""
        self._report(f"searching for clocks under {candidate.name}")
        model, solver = candidate.model, candidate.solver
        request = PolicyRequest(model=model, options=self._options)
        baseline_s = max(self._baseline_s, solver.fastest_time_s)
        try:
            choice = choice_with(solver, request, candidate.target, baseline_s)
        except TargetUnreachableError as error:
            self.why_not[candidate.name] = error.message
            return
        candidate.model = model.with_requests(choice.requests)
        candidate.choice = choice
        candidate.iteration_time_s, candidate.energy_j = time_and_energy(
            candidate.model, choice.assignment
        )


def _with_deadline(target: Target, baseline_s: float) -> Target:
    """Return the same deadline for all orders, from the reference's baseline."""
    if target.kind in {"fastest", "slowdown"}:
        return Target(kind="deadline", value=baseline_s * (1 + target.value))
    return target


def _bound_j(solver: DeadlineSolver, target: Target) -> float:
    """Return what no plan of this order can beat at the target, J.

    For a power budget nothing is known before a plan is made: 0.
    """
    if target.kind == "power":
        return 0.0
    deadline_s = math.inf if target.kind == "least-energy" else target.value
    return solver.bound_j(solver.relax(min(deadline_s, solver.slowest_time_s)))
