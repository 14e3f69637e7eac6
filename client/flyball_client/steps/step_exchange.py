"""A rank's part in the steps of a job that announces work: from a step's work to its clocks.

During a step, a thread that only polls finds the next step's clocks: it gathers what the ranks of
the pipeline announce, has the helper time the pipeline at its highest clocks, finds the slowest
pipeline with the other ranks, and has the helper choose clocks; the only pipeline's helper is asked
once. A rank that is alone has no thread: its hooks ask, and what they ask with does not wait. What
is not there as the step before ends is not waited for: the step runs at the highest clocks on this
rank.

Each rank takes part in one exchange for each step, in order, with work or without. Ranks that are
at different steps, and an exchange that fails or takes too long, end step plans on this rank.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.agreement import (
    AgreementError,
    Coupling,
    Pending,
    StepAgreement,
    check_coupling,
)
from flyball_client.steps.news import News, Stopped
from flyball_client.steps.rank_slowness import RankSlowness, Slowness
from flyball_client.steps.step_message import (
    StepMessage,
    clocks_in_force_mhz,
    common_load,
    read_messages,
)
from flyball_client.steps.step_plans import PlanKey, StepDeadlines, StepLoad, StepPlan
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.work import StepWork, step_work
from flyball_wire.measurements import StepPlanReport

_logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0
"""Time in s for the other ranks to come to an exchange: that of a checkpoint or an evaluation."""

# Time in s for the helper's answer.
_HELPER_TIMEOUT_S = 10.0
# Pauses between two looks at an exchange, s: the longest is a share of a step's time.
_FIRST_PAUSE_S, _PAUSE_OF_STEP, _PAUSES_S = 0.0005, 0.02, (0.01, 0.1)
_JOIN_S = 0.5
# Steps of which the shortest gap before a step is taken for the next one's.
_NUM_GAPS = 8
# Steps whose work or plan is kept until they have run.
_MAX_KEPT = 64
# Steps in a row whose clocks came too late, from which on that is said.
_MANY_LATE = 10

T = TypeVar("T")


class _Announced(NamedTuple):
    """Work of a step, as this rank's caller has announced it."""

    work: StepWork
    slowest_s: float | None
    coupling: Coupling | None


class _Decided(NamedTuple):
    """Clocks of a step, decided as the step before ends or as it begins."""

    step: int
    plan: PlanKey
    #: None: the highest clocks.
    own: StepPlan | None


class _StepTimes(NamedTuple):
    """Time of each segment of a step at the highest clocks, s; empty: not known."""

    step: int
    times_s: tuple[float, ...]


class StepExchange:
    """Announced work, exchanges and decided clocks of one rank.

    `announce`, `begin`, `clocks`, `end` and `learn` are called by the thread of the hooks and wait
    for nothing; `step_timed` and `step_planned` by the one that the helper's answers come on.

    Args:
        agreement: Exchanges with the other ranks; closed here.
        ask: Asks the helper without waiting, and returns whether there is one.
        take: Has the next plan that has come handed over to `step_planned`, without waiting;
            returns whether there was one.
        first_step: Number of the first step.
        stage: Stage of this rank.
        rank_name: Job and rank, for the log.
        clock_s: Clock of the times of its instructions, s.
        timeout_s: Time in s for the other ranks to come to an exchange.
    """

    def __init__(
        self,
        agreement: StepAgreement,
        *,
        ask: Callable[[StepLoad | StepDeadlines], bool],
        take: Callable[[], bool],
        first_step: int,
        stage: int,
        rank_name: str,
        clock_s: Callable[[], float] = time.monotonic,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._agreement, self._timeout_s = agreement, timeout_s
        self._ask, self._take = ask, take
        self._stage, self._rank_name = stage, rank_name
        self._announced: dict[int, _Announced] = {}
        # A rank that does not read the batch announces nothing, and waits for nothing.
        self._announces = False
        # Work of steps that are to come or run, as all ranks of the pipeline know it.
        self._works: dict[int, StepWork] = {}
        # Plans of steps to come.
        self._plans: dict[int, tuple[PlanKey, StepPlan]] = {}
        self._decided: _Decided | None = None
        # The step that has ended last, if it had a plan of its own.
        self._ended: _Decided | None = None
        self._unaware: PlanKey | None = None
        self._begun = first_step - 1
        # Steps to come that run at the highest clocks whatever comes.
        self._voided: set[int] = set()
        self._begun_s, self._longest_pause_s = time.monotonic(), _PAUSES_S[0]
        # As the last step ended, and from there to the begin of the last steps, s.
        self._clock_s = clock_s
        self._ended_s: float | None = None
        self._gaps_s = deque[float](maxlen=_NUM_GAPS)
        # Of the step after the begun one, and the last clock of the begun one.
        self._next_plan: PlanKey | None = None
        self._other_plans: Mapping[int, PlanKey] = {}
        self._last_mhz = 0
        self._slowness = RankSlowness()
        # Whose exchange is next, or in progress.
        self._step = first_step
        self._news = News()
        # The helper's last times, the step whose clocks it was asked for last and the plan for
        # that, and the step whose clocks have come last.
        self._times: _StepTimes | None = None
        self._asked: tuple[int, PlanKey] | None = None
        self._answered: int | None = None
        self._logged: set[str] = set()
        self._num_late = 0
        self._is_running = False
        self._is_alone = agreement.gather is None and agreement.greatest is None
        self._thread = threading.Thread(target=self._run, name="flyball-exchange", daemon=True)

    def start(self) -> None:
        """Begin with the exchanges; may be called once."""
        self._is_running = True
        if self._is_alone:
            self._wake()
        else:
            self._thread.start()

    def close(self) -> None:
        """Stop the thread, which ends within 0.5 s, and give up its exchange."""
        self._is_running = False
        self._news.stop()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        with suppress(Exception):
            self._agreement.close()

    # ------------------------------------------------------------------ the hooks

    def announce(
        self,
        step: int,
        work: Sequence[float | Sequence[float]],
        slowest_s: float | None = None,
        coupling: Coupling | None = None,
    ) -> None:
        """Announce a step's work; what cannot be used is logged once, and the step has none."""
        self._announces = True
        try:
            number = operator.index(step)
            if slowest_s is not None and not 0 < slowest_s < math.inf:
                raise PipelineError("must be a time above 0 s", field="slowest_s")
            if coupling is not None:
                check_coupling(coupling)
            announced = _Announced(step_work(work), slowest_s, coupling)
        except Exception as error:
            self._log_once("the work of step %s is not used", step, error)
            return
        if self._works.get(number, announced.work) != announced.work:
            self.void(number)  # what was announced before was wrong
        self._announced[number] = announced
        self._keep_work(number, announced.work)
        for late in tuple(self._announced):
            if late <= self._begun:
                self._announced.pop(late, None)
        self._wake()

    def void(self, step: int) -> None:
        """Let a step run at the highest clocks: another step was announced."""
        self._voided.add(step)
        self._plans.pop(step, None)
        self._works.pop(step, None)

    def num_microbatches(self, step: int) -> int | None:
        """Return the announced number of a step; None: not known."""
        work = self._works.get(step)
        return None if work is None else len(work)

    def begin(
        self,
        step: int,
        *,
        next_plan: PlanKey | None,
        other_plans: Mapping[int, PlanKey] = MappingProxyType({}),
        last_mhz: int,
    ) -> None:
        """Note that a step has begun.

        Args:
            step: Number of the step.
            next_plan: Plan in force at the next step; None: it has no step plans.
            other_plans: Plans that are in force there if its work has another number of
                microbatches, by that number.
            last_mhz: Clock of the step's last instruction on this rank, MHz; 0: not known.
        """
        now_s = time.monotonic()
        took_s, self._begun_s = now_s - self._begun_s, now_s
        self._longest_pause_s = min(max(_PAUSE_OF_STEP * took_s, _PAUSES_S[0]), _PAUSES_S[1])
        if self._ended_s is not None:
            self._gaps_s.append(self._clock_s() - self._ended_s)
            self._ended_s = None
        self._next_plan, self._other_plans, self._last_mhz = next_plan, other_plans, last_mhz
        self._begun = step
        for kept in (self._plans, self._works):
            for late in tuple(kept):
                if late < step:
                    kept.pop(late, None)
        if self._voided:
            self._voided = {voided for voided in self._voided if voided >= step}
        self._wake()

    def _wake(self) -> None:
        """Let the next exchange begin if it is due: in the thread, or here where a rank is alone.

        Each look of the thread takes time of the training.
        """
        if not self._is_alone:
            if self._is_due(self._step):
                self._news.tell()
            return
        try:
            while self._is_running and (step := self._step) <= self._begun + 1:
                is_announced = step in self._announced
                if step > self._begun and not is_announced:
                    return
                self._step = step + 1
                if is_announced:
                    self._exchange(step)
        except Exception as error:
            # That of this step alone: a signal's handler may have raised it.
            self._log_once("step %s gets no plan of its own", self._begun + 1, error)

    def _log_once(self, what: str, step: object, error: Exception) -> None:
        if what not in self._logged:
            self._logged.add(what)
            _logger.warning(f"%s: {what}: %s", self._rank_name, step, error)

    def clocks(self, plan: CompiledPlan, step: int) -> tuple[int, ...] | None:
        """Return the step's own clocks, or the highest where there are none, MHz.

        Called as the step before ends, and as the step begins: clocks that have come meanwhile, as
        of an epoch's first step, replace the highest. None: the step runs the plan's clocks, since
        its planner gives no step clocks of its own, though it knows of the work.
        """
        key = PlanKey(plan.version, plan.plan_id)
        if not plan.has_step_plans:
            return plan.highest_mhz if self._is_unaware(key) else None
        decided = self._decided
        if decided is None or (decided.step, decided.plan) != (step, key) or decided.own is None:
            self._take_plans()
            found_for, own = self._plans.pop(step, (None, None))
            if own is None or found_for != key or len(own.clocks_mhz) != len(plan.kinds):
                own = None
            self._decided = decided = _Decided(step, key, own)
        return plan.highest_mhz if decided.own is None else decided.own.clocks_mhz

    def _is_unaware(self, plan: PlanKey) -> bool:
        """Return whether a plan is the first since work is announced: made without knowing it."""
        if self._unaware is None and self._works:
            self._unaware = plan
        return plan == self._unaware

    def end(self, step: int, plan: PlanKey | None) -> tuple[StepWork | None, StepPlanReport | None]:
        """Return the work of a step that has run, and its own plan; `plan` None: not as planned."""
        work, decided = self._works.pop(step, None), self._decided
        self._ended = None
        if decided is None or decided.own is None or (decided.step, decided.plan) != (step, plan):
            return work, None
        self._ended, own = decided, decided.own
        return work, (own.slack, min(own.clocks_mhz), max(own.clocks_mhz), own.saved_j)

    def learn(self, times_s: Callable[[], Sequence[float]], highest_mhz: int) -> None:
        """Learn from the step that has ended last how slow this rank is, and note when it ended.

        Args:
            times_s: Returns the time of each of its instructions, s.
            highest_mhz: Highest clock of the GPU, MHz.
        """
        self._ended_s = self._clock_s()
        if self._ended is not None and self._ended.own is not None:
            self._slowness.add(self._ended.plan, self._ended.own, times_s(), highest_mhz)

    # ------------------------------------------------------------------ the helper's answers

    def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
        """Take the time of each segment at the highest clocks, s; empty: not known."""
        self._times = _StepTimes(step, times_s)
        self._news.tell()

    def _take_plans(self) -> None:
        """Take what the helper has answered, while it is asked for a plan."""
        for _ in range(_MAX_KEPT):
            asked = self._asked
            if asked is None or asked[0] == self._answered or not self._take():
                return

    def step_planned(self, plan: StepPlan) -> None:
        """Take a step's plan, for which no thread waits."""
        asked, step = self._asked, plan.step
        if asked is None or asked[0] != step:
            return
        self._answered = step
        if not plan.clocks_mhz:
            return
        if self._begun >= step:
            self._note_late()
            return
        self._num_late = 0
        self._plans[step] = asked[1], plan
        if step in self._voided:  # meanwhile
            self._plans.pop(step, None)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while True:
                self._news.until(lambda: self._is_due(self._step) or None)
                self._exchange(self._step)
                self._step += 1
        except Stopped:
            return
        except AgreementError as error:
            why = str(error)
        except Exception as error:
            why = repr(error)
        self._asked = None
        self._plans.clear()
        _logger.warning(
            "%s: steps have no plans of their own from now on, and run at the highest clocks"
            " where work is announced: %s",
            self._rank_name,
            why,
        )

    def _exchange(self, step: int) -> None:
        announced = self._announced.pop(step, None)
        # None: it is too late for a plan.
        plan, others = self._next_plan, self._other_plans
        if self._is_late(step):
            plan, others = None, dict[int, PlanKey]()
        load, messages = self._gather(step, plan, others, announced)
        deadlines = StepDeadlines(
            step,
            in_force_mhz=clocks_in_force_mhz(messages),
            gap_s=min(each.gap_s for each in messages),
            slowest_s=0.0 if announced is None else announced.slowest_s or 0.0,
        )
        if (greatest := self._agreement.greatest) is not None:
            plan = plan if load is None else load.plan
            times_s = () if load is None else self._times_s(load)
            deadlines = deadlines._replace(greatest_s=self._greatest(greatest, step, plan, times_s))
            if not deadlines.greatest_s:
                return
        if load is None:
            return
        self._take_plans()
        if self._asked is not None and self._asked[0] != self._answered:
            self._note_late()
        self._asked = step, load.plan
        if not self._ask(load._replace(deadlines=deadlines) if greatest is None else deadlines):
            self._asked = None

    def _is_late(self, step: int) -> bool:
        """Return whether a step gets no plan any more."""
        return self._begun >= step or step in self._voided

    def _note_late(self) -> None:
        self._num_late += 1
        if self._num_late == _MANY_LATE:
            _logger.warning(
                "%s: the clocks of %d steps in a row came after their step had begun, so these ran"
                " at the highest clocks: work is announced too late, steps are too short, or the"
                " helper process gets too little processor time",
                self._rank_name,
                _MANY_LATE,
            )

    def _is_due(self, step: int) -> bool:
        """Return whether a step's exchange begins, at the latest as the step itself does.

        A rank that announces waits for what it announces.
        """
        is_next = self._begun == step - 1
        return self._begun >= step or (is_next and (step in self._announced or not self._announces))

    def _gather(
        self,
        step: int,
        plan: PlanKey | None,
        others: Mapping[int, PlanKey],
        announced: _Announced | None,
    ) -> tuple[StepLoad | None, list[StepMessage]]:
        """Return the step's load, and the messages of the pipeline's ranks.

        None: the ranks have no work, or not the same plan.
        """
        own = StepMessage(
            step=step,
            plan=plan,
            other_plans=tuple(others.items()),
            stage=self._stage,
            last_mhz=self._last_mhz,
            gap_s=self._gap_s(),
            slowness=Slowness() if plan is None else self._slowness.of(plan),
        )
        own_work = None if announced is None else announced.work
        messages, work = [own], own_work
        if (gather := self._agreement.gather) is not None:
            messages, work = read_messages(self._result_of(gather(own.as_bytes(own_work))))
        if work is None:
            return None, messages
        self._keep_work(step, work)
        load = common_load(messages, work)
        if load is not None and announced is not None:
            load = load._replace(coupling=announced.coupling)
        return load, messages

    def _gap_s(self) -> float:
        """Return the least time between two of the last steps on this rank, s; 0: not known."""
        return max(0.0, min(self._gaps_s)) if len(self._gaps_s) == _NUM_GAPS else 0.0

    def _keep_work(self, step: int, work: StepWork) -> None:
        self._works[step] = work
        for oldest in sorted(self._works)[:-_MAX_KEPT]:
            self._works.pop(oldest, None)

    def _greatest(
        self,
        greatest: Callable[[Sequence[float]], Pending[list[float]]],
        step: int,
        plan: PlanKey | None,
        times_s: tuple[float, ...],
    ) -> tuple[float, ...]:
        """Return the slowest pipeline's times; empty: not all pipelines have the step's."""
        # Each number and its negative: the greatest of both are equal only if all ranks' are.
        common = (step, 0 if plan is None else plan.version, len(times_s))
        numbers = [number for value in common for number in (float(value), -float(value))]
        first_s = times_s[0] if times_s else 0.0
        found = self._result_of(greatest([*numbers, first_s]))
        are_equal = [high == -low for high, low in zip(found[0:6:2], found[1:6:2], strict=True)]
        if not are_equal[0]:
            raise AgreementError(
                f"pipelines are at different steps, {-found[1]:.0f} and {found[0]:.0f}"
            )
        if not all(are_equal) or not times_s:
            return ()
        if len(times_s) == 1:
            return (found[6],)
        return tuple(self._result_of(greatest(times_s)))

    def _times_s(self, load: StepLoad) -> tuple[float, ...]:
        """Return the helper's times of a step's segments, s; empty: there are none in time."""
        if not self._ask(load):
            return ()

        def poll() -> _StepTimes | None:
            times = self._times
            return times if times is not None and times.step == load.step else None

        found = self._news.until(
            poll, is_over=lambda: self._is_late(load.step), timeout_s=_HELPER_TIMEOUT_S
        )
        return () if found is None else found.times_s

    def _result_of(self, pending: Pending[T]) -> T:
        found = self._news.until(
            pending.result,
            timeout_s=self._timeout_s,
            pauses_s=(_FIRST_PAUSE_S, self._longest_pause_s),
        )
        if found is None:
            raise AgreementError(f"other ranks did not come within {self._timeout_s:g} s")
        return found
