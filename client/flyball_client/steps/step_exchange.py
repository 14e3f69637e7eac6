"""A rank's part in the steps of a job that announces work: from a step's work to its clocks.

During a step, a thread that only polls finds the next one's clocks: it gathers what the ranks of
the pipeline announce, has the helper time the pipeline at its highest clocks, finds the slowest
pipeline with the other ranks, and has the helper choose clocks. What is not there as the step
before ends is not waited for: the step runs at the highest clocks on this rank.

Each rank takes part in one exchange for each step, in order, with work or without. Ranks that are
at different steps, and an exchange that fails or takes too long, end step plans on this rank.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.agreement import AgreementError, Pending, StepAgreement
from flyball_client.steps.step_plans import StepDeadlines, StepLoad, StepPlan
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.work import StepWork, checked_work, step_work
from flyball_wire.messages import StepPlanReport

_logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0
"""Time in s for the other ranks to come to an exchange: that of a checkpoint or an evaluation."""

# Time in s for the helper's answer; it may be starting again.
_HELPER_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.01
_JOIN_S = 0.5
# Steps whose work or plan is kept until they have run.
_MAX_KEPT = 64
# A rank counts as slow from this share on, in the median of its last steps.
_SLOW, _NUM_RATIOS = 1.02, 5

T = TypeVar("T")


class _Stopped(Exception):  # noqa: N818 - no error
    """The rank ends."""


class _Announced(NamedTuple):
    """What a rank's caller has announced of a step."""

    work: StepWork
    slowest_s: float | None


class StepExchange:
    """Announced work, exchanges and decided clocks of one rank.

    `announce`, `begin`, `clocks` and `end` are called by the thread of the hooks and do no I/O;
    `step_timed` and `step_planned` by the one that the helper's answers come on.

    Args:
        agreement: Exchanges with the other ranks; closed here.
        ask: Asks the helper.
        first_step: Number of the first step.
        stage: Stage of this rank.
        rank_name: Job and rank, for the log.
        timeout_s: Time in s for the other ranks to come to an exchange.
    """

    def __init__(
        self,
        agreement: StepAgreement,
        *,
        ask: Callable[[StepLoad | StepDeadlines], None],
        first_step: int,
        stage: int,
        rank_name: str,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._agreement, self._ask, self._timeout_s = agreement, ask, timeout_s
        self._first_step, self._stage, self._rank_name = first_step, stage, rank_name
        self._announced: dict[int, _Announced] = {}
        #: Work of steps that are to come or run, as all ranks of the pipeline know it.
        self._works: dict[int, StepWork] = {}
        #: Plans of steps to come, with their version.
        self._plans: dict[int, tuple[int, StepPlan]] = {}
        self._decided: tuple[int, int, StepPlan | None] | None = None
        self._begun = first_step - 1
        # Of the step after the begun one, and of the begun one.
        self._next_version: int | None = None
        self._last_mhz = 0
        self._ratios: deque[float] = deque(maxlen=_NUM_RATIOS)
        self._ratios_of: int | None = None
        self._news = threading.Event()
        self._times: tuple[int, tuple[float, ...]] | None = None
        self._planned: StepPlan | None = None
        self._is_stopping = False
        self._is_over = False
        self._has_logged = False
        self._thread = threading.Thread(target=self._run, name="flyball-exchange", daemon=True)

    def start(self) -> None:
        """Start the thread; may be called once."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, which ends within 0.5 s, and give up its exchange."""
        self._is_stopping = True
        self._news.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        self._agreement.close()

    # ------------------------------------------------------------------ the hooks

    def announce(
        self, step: int, work: Sequence[float | Sequence[float]], slowest_s: float | None
    ) -> None:
        """Announce a step's work; what is no work is logged once, and the step has none."""
        try:
            self._announced[step] = _Announced(step_work(work), slowest_s)
        except (PipelineError, TypeError, ValueError) as error:
            if not self._has_logged:
                self._has_logged = True
                _logger.warning(
                    "%s: the work of step %d is not used: %s", self._rank_name, step, error
                )
        for late in [each for each in self._announced if each <= self._begun]:
            del self._announced[late]
        self._news.set()

    def begin(self, step: int, *, next_version: int | None, last_mhz: int) -> None:
        """Note that a step has begun.

        Args:
            step: Number of the step.
            next_version: Version of the plan in force at the next one; None: it has no step plans.
            last_mhz: Clock of the step's last instruction on this rank, MHz; 0: not known.
        """
        self._next_version, self._last_mhz = next_version, last_mhz
        self._begun = step
        self._news.set()

    def clocks(self, plan: CompiledPlan, step: int) -> tuple[int, ...]:
        """Return the step's own clocks, or the highest where there are none, MHz.

        The first call decides, as the step before ends.
        """
        if self._decided is None or self._decided[:2] != (step, plan.version):
            found = self._plans.get(step)
            is_own = found is not None and found[0] == plan.version
            has_all = is_own and found is not None and len(found[1].clocks_mhz) == len(plan.kinds)
            self._decided = step, plan.version, found[1] if has_all and found else None
            for late in [each for each in tuple(self._plans) if each <= step]:
                self._plans.pop(late, None)
        own = self._decided[2]
        return plan.highest_mhz if own is None else own.clocks_mhz

    def end(
        self, step: int, version: int | None, computed_s: Callable[[], float]
    ) -> tuple[StepWork | None, StepPlanReport | None]:
        """Return the work of a step that has run, and its own plan.

        Args:
            step: Number of the step.
            version: Version of the plan that it ran; None: none, or not as planned.
            computed_s: Returns the time of its instructions, s.
        """
        work = self._works.pop(step, None)
        for late in [each for each in tuple(self._works) if each < step]:
            self._works.pop(late, None)
        decided = self._decided
        if decided is None or decided[:2] != (step, version) or decided[2] is None:
            return work, None
        plan = decided[2]
        if self._ratios_of != version:
            # Another plan assumes other times.
            self._ratios_of = version
            self._ratios.clear()
        if plan.planned_s > 0:
            # What was planned counts the slowness that was known before.
            self._ratios.append(computed_s() / plan.planned_s * plan.slowness)
        mhz = plan.clocks_mhz
        return work, (plan.slack, min(mhz), max(mhz), plan.saved_j)

    # ------------------------------------------------------------------ the helper's answers

    def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
        """Take the time of each segment at the highest clocks, s; empty: not known."""
        self._times = step, times_s
        self._news.set()

    def step_planned(self, plan: StepPlan) -> None:
        """Take a step's plan."""
        self._planned = plan
        self._news.set()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        step = self._first_step
        try:
            while True:
                self._exchange(step)
                step += 1
        except _Stopped:
            return
        except AgreementError as error:
            why = str(error)
        except Exception as error:
            why = repr(error)
        self._is_over = True
        self._plans.clear()
        _logger.warning(
            "%s: steps have no plans of their own from now on, and run at the highest clocks"
            " where work is announced: %s",
            self._rank_name,
            why,
        )

    def _exchange(self, step: int) -> None:
        self._until(lambda: self._is_due(step) or None, None)
        announced = self._announced.pop(step, None)
        # None: it is too late for a plan.
        version = self._next_version if self._begun < step else None
        load, in_force_mhz = self._gather(step, version, announced)
        times_s = () if load is None else self._times_of(load)
        greatest_s = self._greatest(step, version, times_s)
        if load is None or not greatest_s:
            return
        if announced is not None and announced.slowest_s is not None:
            greatest_s = (*greatest_s[:-1], max(greatest_s[-1], announced.slowest_s))
        self._planned = None
        self._ask(StepDeadlines(step, greatest_s, in_force_mhz))
        planned = self._until(lambda: self._plan_of(step), _HELPER_TIMEOUT_S)
        if planned is not None and planned.clocks_mhz and step > self._begun:
            slowness = load.slowness[self._stage]
            self._plans[step] = load.version, planned._replace(slowness=slowness)

    def _is_due(self, step: int) -> bool:
        """Return whether a step's exchange begins: it is announced, or has begun without."""
        return self._begun >= step or (self._begun == step - 1 and step in self._announced)

    def _gather(
        self, step: int, version: int | None, announced: _Announced | None
    ) -> tuple[StepLoad | None, tuple[int, ...]]:
        """Return the step's load, and by stage the clock that is in force before it, MHz.

        None: the ranks have no work, or not the same version. Empty: a clock is not known.
        """
        own = _Said(
            step=step,
            version=version,
            stage=self._stage,
            last_mhz=self._last_mhz,
            slowness=self._slowness(),
            work=None if announced is None else announced.work,
        )
        messages = self._result_of(self._agreement.gather(own.as_bytes()))
        said = [_Said.from_bytes(message) for message in messages]
        steps = {each.step for each in said}
        if len(steps) > 1:
            raise AgreementError(
                f"ranks of the pipeline are at different steps, {min(steps)} and {max(steps)}"
            )
        works = {each.work for each in said if each.work is not None}
        if len(works) > 1:
            raise AgreementError(f"ranks announce different work for step {step}")
        if not works:
            return None, ()
        [work] = works
        self._works[step] = work
        while len(self._works) > _MAX_KEPT:
            self._works.pop(min(self._works), None)
        if version is None or {each.version for each in said} != {version}:
            return None, ()
        num_stages = 1 + max(each.stage for each in said)
        slowness, in_force_mhz = [1.0] * num_stages, [0] * num_stages
        for each in said:
            slowness[each.stage] = max(slowness[each.stage], each.slowness)
            in_force_mhz[each.stage] = max(in_force_mhz[each.stage], each.last_mhz)
        load = StepLoad(step, version, work, tuple(slowness))
        return load, tuple(in_force_mhz) if all(in_force_mhz) else ()

    def _greatest(
        self, step: int, version: int | None, times_s: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Return the slowest pipeline's times; empty: not all pipelines have the step's."""
        # Each number and its negative: the greatest of both are equal only if all ranks' are.
        common = (step, version or 0, len(times_s))
        numbers = [number for each in common for number in (float(each), -float(each))]
        first_s = times_s[0] if times_s else 0.0
        found = self._result_of(self._agreement.greatest([*numbers, first_s]))
        are_equal = [high == -low for high, low in zip(found[0:6:2], found[1:6:2], strict=True)]
        if not are_equal[0]:
            raise AgreementError(
                f"pipelines are at different steps, {-found[1]:.0f} and {found[0]:.0f}"
            )
        if not all(are_equal) or not times_s:
            return ()
        if len(times_s) == 1:
            return (found[6],)
        return tuple(self._result_of(self._agreement.greatest(times_s)))

    def _times_of(self, load: StepLoad) -> tuple[float, ...]:
        """Return the helper's answer; empty: there is none."""
        self._times = None
        self._ask(load)

        def answer() -> tuple[float, ...] | None:
            times = self._times
            return times[1] if times is not None and times[0] == load.step else None

        return self._until(answer, _HELPER_TIMEOUT_S) or ()

    def _plan_of(self, step: int) -> StepPlan | None:
        planned = self._planned
        return planned if planned is not None and planned.step == step else None

    def _slowness(self) -> float:
        """Return by how much this rank is slower than its plan assumes, at least 1."""
        if len(self._ratios) < _NUM_RATIOS:
            return 1.0
        slowness = median(self._ratios)
        return round(slowness, 2) if slowness >= _SLOW else 1.0

    def _result_of(self, pending: Pending[T]) -> T:
        found = self._until(pending.result, self._timeout_s)
        if found is None:
            raise AgreementError(f"other ranks did not come within {self._timeout_s:g} s")
        return found

    def _until(self, poll: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Return what is polled once it is there; None: not within the time."""
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            self._news.clear()
            if self._is_stopping:
                raise _Stopped
            if (found := poll()) is not None:
                return found
            if give_up_s is not None and time.monotonic() >= give_up_s:
                return None
            # Without a time-out only the hooks bring news.
            self._news.wait(_JOIN_S if give_up_s is None else pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _Said(NamedTuple):
    """What one rank says of a step."""

    step: int
    #: Version of its plan; None: it has none, or it is late.
    version: int | None
    stage: int
    #: Clock that is in force as the step before ends, MHz; 0: not known.
    last_mhz: int
    slowness: float
    work: StepWork | None

    def as_bytes(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def from_bytes(cls, message: bytes) -> _Said:
        """Read what another rank says.

        Raises:
            AgreementError: It is not understood: the rank runs another version of Flyball.
        """
        try:
            step, version, stage, last_mhz, slowness, work = json.loads(message)
            checked = None if work is None else checked_work(work)
            return cls(
                int(step),
                None if version is None else int(version),
                int(stage),
                int(last_mhz),
                float(slowness),
                checked,
            )
        except (ValueError, TypeError) as error:
            raise AgreementError(f"another rank's message is not understood: {error}") from None
