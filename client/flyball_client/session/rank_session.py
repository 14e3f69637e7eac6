"""Session of a training rank: four hooks that set the planned clocks and measure each step.

with RankSession(gpu=gpu, job_id="gpt", rank=3, stage=1, planner=planner) as session:
    for batch in batches:
        session.on_step_begin()
        ...  # on_instruction_begin("forward", microbatch=0), on_instruction_end("forward")
        session.on_step_end()

A fifth, `on_transfer`, reports the time of a receive or a send.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType

from flyball_client.api.planner_client import PlannerClient
from flyball_client.governor import make_governor
from flyball_client.governor._base import ClockGovernor, ClockReport
from flyball_client.governor.own_process import OwnProcess, call_at_normal_end
from flyball_client.governor.process_governor import DEFAULT_LEASE_S
from flyball_client.gpu._base import EmulatedDevice, GpuDevice, InstructionObserver
from flyball_client.helper.rank_agent import LinkTimes, RankSpec
from flyball_client.session.active_plan import ActivePlan, PendingPlans
from flyball_client.session.announced_steps import AnnouncedSteps
from flyball_client.session.instruction_timings import Begun, InstructionTiming, Transfer
from flyball_client.session.one_per_gpu import replace_session
from flyball_client.session.plan_cursor import PlanCursor
from flyball_client.session.planner_link import PlannerLink
from flyball_client.session.rank_settings import (
    STRICT,
    WITHOUT_PLANNER,
    WithoutPlanner,
    value_of,
)
from flyball_client.session.registration import (
    named_start,
    registration_of_rank,
    supported_clocks_mhz,
)
from flyball_client.session.step_recorder import StepMeter, StepRecorder
from flyball_client.steps.agreement import Coupling, StepAgreement, check_coupling
from flyball_wire.measurements import StepMeasurement

_logger = logging.getLogger(__name__)


class RankSession:
    """Session of one rank: follows its plans, sets its GPU's clock, measures its steps.

    Without a plan the clock is not changed. While one is in force, the clock of each instruction is
    requested at the end of the instruction before, so that it takes effect while the rank waits,
    and that of a step's first instruction at the end of the last step: of its last instruction by
    the plan in force, then of the step by the plan that is due. Where a rank does not wait, a plan
    may name an earlier moment instead: a time after an earlier instruction's begin. An instruction
    that begins at another clock than was requested gets its own then; see PlanCursor for unplanned
    instructions.

    The hooks wait for nothing and raise nothing: after an error clocks are no longer
    set, which is logged once. The hooks and `close` may be called from one thread at a time.

    The clock of a real GPU is set by a separate process, which restores it after a crash; see
    `governor`. A started session that is still open when the interpreter ends normally is closed
    then; no signal handler is installed. A session belongs to the process that made it: in a
    forked child its methods do nothing.

    Args:
        gpu: GPU of this rank; read here, set by the governor; not closed here. None: it has none
            that can be used: steps are timed, without energy, and no clock is set.
        job_id: Name of the job at the planner.
        rank: Rank of this process within the job.
        stage: Stage that this rank runs.
        dp_rank, tp_rank, cp_rank: Ranks in data, tensor and context parallelism.
        planner: Client of the planner, not closed here; None: measure only.
        governor: Governor of the GPU's clock, closed here; None: the default for the GPU.
        observer: Observer that is called with each instruction; None: the GPU if it is emulated.
        without_planner: Clocks while the planner cannot be reached: those of the last plan, or
            default clocks.
        lease_s: Time in s without a hook after which the clock is restored until the next hook.
            The start of an instruction at the previous clock does not count as a hook.
        plans: Received plans, with the choice among them; None: the newest is run.
        clock: Monotonic clock in s; None: emulated time on an emulated GPU, else the system's.
        initial_step: Number of the first step, where training resumes.
        history_length: Number of steps that `history` keeps, at least 1.
        times: Timeouts and intervals of the calls to the planner.
        start_id: Identity of this start of the training, which all of its ranks name; a future:
            known later, and calls to the planner begin then; None: the launcher's run, if any.
        strict: True: what the machine lacks is raised, here or by `start`; False: it is logged, and
            the rank trains without it; None: as `FLYBALL_STRICT` says.

    Raises:
        ValueError: An argument or `FLYBALL_STRICT` cannot be used.

    Attributes:
        name: Job and rank, for the log.
        plans: Received plans; more may be added.
    """

    def __init__(
        self,
        *,
        gpu: GpuDevice | None,
        job_id: str,
        rank: int,
        stage: int,
        dp_rank: int = 0,
        tp_rank: int = 0,
        cp_rank: int = 0,
        planner: PlannerClient | None,
        governor: ClockGovernor | None = None,
        observer: InstructionObserver | None = None,
        without_planner: WithoutPlanner = "last-plan",
        lease_s: float = DEFAULT_LEASE_S,
        plans: PendingPlans | None = None,
        clock: Callable[[], float] | None = None,
        initial_step: int = 0,
        history_length: int = 1024,
        times: LinkTimes | None = None,
        start_id: str | Future[str | None] | None = None,
        strict: bool | None = None,
    ) -> None:
        counts = (rank, stage, dp_rank, tp_rank, cp_rank, initial_step)
        _check(counts, history_length=history_length, without_planner=without_planner)
        self.name = f"job {job_id} rank {rank}"
        self._emulated = gpu if isinstance(gpu, EmulatedDevice) else None
        self._observer = self._emulated if observer is None else observer
        self._is_emulated = gpu is not None and gpu.is_emulated
        self._gpu_uuid = None if gpu is None or gpu.address is None else gpu.uuid
        self._is_strict = value_of(STRICT, os.environ, strict, False)
        self._governor = governor or make_governor(
            gpu, self.name, lease_s=lease_s, strict=self._is_strict
        )
        supported_mhz = supported_clocks_mhz(gpu, self._governor.give_up)
        meter = StepMeter(gpu, self._governor, clock_s=clock, rank_name=self.name)
        self._clock_s = meter.clock_s
        self._recorder = StepRecorder(meter, history_length)
        # Running instruction that is not in the timings yet.
        self._begun: Begun | None = None
        self._current_step = initial_step
        self._is_in_step = self._is_closed = self._is_started = False
        self.plans = PendingPlans() if plans is None else plans
        self._link: PlannerLink | None = None
        if planner is not None:
            place = stage, (dp_rank, tp_rank, cp_rank)
            spec = RankSpec(
                job_id=job_id,
                rank=rank,
                registration=registration_of_rank(gpu, supported_mhz, *place),
                times=times or LinkTimes(),
            )
            self._link = PlannerLink(
                planner,
                spec,
                named_start(os.environ, start_id),
                current_step=lambda: self._current_step,
                activate=self.plans.put,
            )
        self._steps = AnnouncedSteps(stage, self.name, self._link, self._clock_s)
        self._active_plan = ActivePlan(
            self.plans,
            keeps_plan=without_planner == "last-plan",
            rank_name=self.name,
            is_planner_lost=self._is_planner_lost,
            num_microbatches=self._num_microbatches,
            own_clocks=self._steps.clocks,
        )
        # The active plan's, for the hooks.
        self._cursor: PlanCursor | None = None
        self._own_process = OwnProcess(self._turn_off)
        self._cancel_end: Callable[[], None] | None = None

    # ------------------------------------------------------------------ steps that differ

    def plan_steps(
        self, agreement: StepAgreement | None = None, *, coupling: Coupling = "step"
    ) -> None:
        """Follow a plan of each step's own, as far as work is announced; before `start`.

        From now on the rank takes part in one exchange with other ranks for each step, in a thread
        that only polls. All ranks of the job must do so.

        Args:
            agreement: Exchanges with the other ranks, closed here; None: there are none.
            coupling: Where data-parallel ranks wait for each other.

        Raises:
            RuntimeError: The session has started.
            ValueError: The coupling is none of these.
        """
        check_coupling(coupling)
        if self._is_started or self._is_closed:
            raise RuntimeError("call plan_steps before the session starts")
        self._steps.plan(agreement, coupling, first_step=self._current_step)

    def announce_step(
        self,
        work: Sequence[float | Sequence[float]],
        *,
        step: int | None = None,
        slowest_s: float | None = None,
        coupling: Coupling | None = None,
    ) -> None:
        """Announce the work of a step to come, the earlier the better; see docs/steps.md.

        Ranks that run the same microbatches announce the same, or nothing. What is no work is
        logged once, and the step has none.

        Args:
            work: Per microbatch, the lengths of its sequences in tokens, or the number of patches
                of each of its images; or one number, its time over that in the profile.
            step: Number of the step; None: the next step that begins.
            slowest_s: Time at the highest clocks of the job's slowest pipeline in this step, s,
                where ranks have no other way to agree on it.
            coupling: Where data-parallel ranks wait for each other in this step, for a rank that
                is alone in its pipeline; None: as `plan_steps` has it.
        """
        if not self._is_closed:
            number = self.next_step if step is None else step
            self._steps.announce(number, work, slowest_s, coupling)

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Register at the planner and follow its plans; may be called repeatedly.

        An open session of this process on the same GPU is closed, as one of a trial that failed.

        Raises:
            OSError, GpuError, RuntimeError: With `strict`, clocks cannot be set, or no thread can
                be started. The session is closed then.
        """
        if self._is_started or self._is_closed:
            return
        self._is_started = True
        self._cancel_end = call_at_normal_end(self.close)
        if self._gpu_uuid is not None:
            replace_session(self._gpu_uuid, self)
        try:
            self._governor.start(strict=self._is_strict)
            if self._link is not None:
                self._link.start()
        except Exception as error:
            if self._is_strict:
                self.close()
                raise
            _logger.warning("%s: no planner is used, training continues: %s", self.name, error)
            if self._link is not None:
                self._link.stop()
                self._link = None
        # Also without a planner: other ranks wait for this rank.
        self._steps.start()

    def close(self) -> None:
        """Restore the clock and post the last measurements; may be called repeatedly."""
        if not self.is_open:
            return
        self._turn_off()
        if self._cancel_end is not None:
            self._cancel_end()
        self._governor.close()
        self._steps.close()
        self._recorder.close()
        if self._is_started and self._link is not None:
            self._link.stop()

    def __enter__(self) -> RankSession:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ state

    @property
    def is_open(self) -> bool:
        """Return whether it is this process's, and not closed."""
        return not self._is_closed and self._own_process.is_current()

    @property
    def current_step(self) -> int:
        """Number of the current step, or between steps of the next."""
        return self._current_step

    @property
    def next_step(self) -> int:
        """Number of the step that begins next."""
        return self._current_step + self._is_in_step

    @property
    def active_version(self) -> int | None:
        """Version of the plan in force; None: none yet, or clocks are not set."""
        if self._cursor is None or self._governor.no_clocks is not None:
            return None
        return self._cursor.plan.version

    @property
    def clock_s(self) -> Callable[[], float]:
        """Clock in s that steps are measured with: on an emulated GPU its own."""
        return self._clock_s

    @property
    def history(self) -> tuple[StepMeasurement, ...]:
        """Totals of the last measured steps, in order."""
        return self._recorder.history

    @property
    def last_step_timings(self) -> tuple[InstructionTiming, ...]:
        """Instructions of the last step in `history`, in the order of execution."""
        return self._recorder.timings.last_step()

    @property
    def num_dropped_measurements(self) -> int:
        """Number of measurements that will not reach the planner."""
        return 0 if self._link is None else self._link.outbox.num_dropped

    @property
    def clock_report(self) -> ClockReport:
        """Counts of the clocks that were set so far."""
        return self._governor.report()

    def metrics(self, *, prefix: str = "flyball/") -> dict[str, float]:
        """Return figures of the last measured step and totals of this session, for a log.

        Of this rank's GPU alone; docs/metrics.md lists them. A figure that was not measured is
        missing. Call it between two steps, from the thread of the hooks; it does no I/O.

        Args:
            prefix: Text before each name.
        """
        report = self._governor.report()
        figures = self._recorder.metrics.values() | {
            "total_num_clock_changes": float(report.num_switches),
            "total_num_clock_failures": float(report.num_failures),
            "total_num_dropped_measurements": float(self.num_dropped_measurements),
            "total_num_clock_assertions": float(report.num_asserted),
            "sets_clocks": float(self._governor.no_clocks is None),
            "is_planner_lost": float(self._is_planner_lost()),
            "is_emulated": float(self._is_emulated),
        }
        return {f"{prefix}{name}": value for name, value in figures.items()}

    def watch_shape(self, tell: Callable[[int], None]) -> None:
        """Have a function called with the steps' number of microbatches where that has changed.

        It is called on the thread of the hooks, and at first once.
        """
        self._steps.shape.tell = tell

    # ------------------------------------------------------------------ the hooks

    def on_step_begin(self) -> None:
        """Start a training step; a due plan takes effect."""
        if self._is_closed:
            return
        if self._is_in_step:
            # The previous step was not ended: it is counted and not measured.
            self._current_step += 1
        self._is_in_step = True
        try:
            self._governor.on_step_begin()
            self._follow_plan()
            self._begun = None
            self._recorder.begin_step(None if self._cursor is None else self._cursor.plan)
            self._steps.begin(self._current_step, self._active_plan)
        except Exception as error:
            self._governor.give_up(error)

    def on_step_end(self) -> None:
        """End the training step; request the next step's first clock, and post the measurement."""
        if self._is_closed or not self._is_in_step:
            return
        self._is_in_step = False
        try:
            self._measure()
        except Exception as error:
            self._governor.give_up(error)
        self._current_step += 1
        self._request_first_clock()

    def on_step_failed(self) -> None:
        """Abort the training step; the clock is restored until the next step.

        The step is counted and not measured. Without effect after `on_step_end`.
        """
        if self._is_closed or not self._is_in_step:
            return
        self._is_in_step = False
        self._current_step += 1
        self._begun = None
        self._active_plan.break_off_step()
        # It is tried again, perhaps, and the next step's work was another's.
        self._steps.void(self._current_step)
        self._governor.pause()
        if self._emulated is not None:
            self._tell(self._emulated.break_off)

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        """Start one computation; its planned clock is requested if that was not done before.

        Args:
            kind: Name of the instruction, as in InstructionKind: `forward`, `backward`, ...
            microbatch: Microbatch, from 0; None: the microbatch that the plan expects.
            chunk: Model chunk, where there are several.
        """
        # Hot path: few objects and calls; other work is done at the instruction's end.
        cursor = self._cursor
        try:
            if self._begun is not None:
                self._end_implicitly()
            if cursor is not None:
                position = cursor.position
                name, number, part = cursor.instructions[position]
                if kind == name and microbatch == number and chunk == part:
                    cursor.position = position + 1
                    sm_clock_mhz = cursor.clocks_mhz[position]
                else:
                    sm_clock_mhz = cursor.next_sm_clock_mhz(kind, microbatch, chunk)
                    # Below 0: unplanned.
                    position = cursor.position - 1
                # Otherwise the previous instruction's end has confirmed the clock.
                if position <= 0 or sm_clock_mhz != cursor.clocks_mhz[position - 1]:
                    self._governor.set_mhz(sm_clock_mhz)
                if position in cursor.timed:
                    self._governor.set_mhz_later(*cursor.timed[position])
            else:
                sm_clock_mhz = None
            if self._is_in_step:
                self._begun = (kind, microbatch, chunk, sm_clock_mhz, self._clock_s())
        except Exception as error:
            self._governor.give_up(error)
        if self._emulated is not None:
            self._tell(self._emulated.begin_work, self._current_step, microbatch or 0)
        if self._observer is not None:
            self._tell(self._observer.on_instruction_begin, kind, chunk)

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        """End the computation, and request the next clock; arguments as at its start."""
        del microbatch
        if self._is_closed:
            return
        if self._observer is not None:
            self._tell(self._observer.on_instruction_end, kind, chunk)
        try:
            if self._is_in_step:
                self._note_begun()
                self._recorder.timings.end()
            cursor = self._cursor
            self._governor.on_instruction_end(None if cursor is None else cursor.upcoming_mhz())
        except Exception as error:
            self._governor.give_up(error)

    def on_transfer(
        self,
        transfer: Transfer,
        kind: str,
        *,
        time_s: float,
        microbatch: int | None = None,
        chunk: int = 0,
    ) -> None:
        """Report a receive or a send, at the latest before the end of its step.

        Args:
            transfer: `receive`: for the next instruction of this kind; `send`: of this
                instruction, or without a microbatch of the last one of this kind.
            kind: Instruction whose input or result it is: a received gradient is `backward`'s.
            time_s: Time in seconds of `clock_s`, waiting included; negative and non-finite ones
                are left out.
            microbatch: Microbatch, from 0.
            chunk: Model chunk, where there are several.
        """
        if self._is_closed or not self._is_in_step:
            return
        try:
            if self._begun is not None:
                self._end_implicitly()
            if 0 <= time_s < math.inf:
                timings = self._recorder.timings
                timings.add_transfer(transfer, kind, microbatch, chunk, float(time_s))
        except Exception as error:
            self._governor.give_up(error)

    @property
    def is_padded(self) -> bool:
        """Return whether the GPU is emulated, and pads computations to their emulated times."""
        return self._emulated is not None and self._observer is self._emulated

    def complete_instruction(self) -> None:
        """Let an emulated GPU pad the running instruction, before other ranks wait for it."""
        if self._emulated is not None:
            self._tell(self._emulated.complete)

    def on_wait_begin(self) -> None:
        """Start a wait for other ranks within the running instruction."""
        if self._emulated is not None:
            self._tell(self._emulated.on_wait_begin)

    def on_wait_end(self, *, time_s: float) -> None:
        """End the wait, which does not count as computation.

        Where the GPU waits and not the host, both hooks come before the instruction's end.

        Args:
            time_s: Time in seconds of `clock_s`; negative and non-finite ones are left out.
        """
        if self._emulated is not None:
            self._tell(self._emulated.on_wait_end)
        if self._is_in_step and 0 <= time_s < math.inf:
            self._note_begun()
            self._recorder.timings.add_wait(float(time_s))

    # ------------------------------------------------------------------ inside

    def _turn_off(self) -> None:
        """Turn all hooks into no-ops."""
        self._is_closed = True
        self._cursor = self._observer = self._emulated = self._begun = None
        self._is_in_step = False

    def _note_begun(self) -> None:
        """Record the running instruction in the timings, if it is not there yet."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._recorder.timings.begin(begun)

    def _end_implicitly(self) -> None:
        """End the running instruction where another hook comes before its end."""
        self._note_begun()
        self._governor.on_instruction_end()

    def _follow_plan(self) -> None:
        before = self._cursor
        self._active_plan.begin_step(self._current_step, sets_clocks=not self._governor.is_over)
        self._cursor = cursor = self._active_plan.cursor
        if cursor is None and before is not None:
            self._governor.pause()
        elif cursor is not None and (before is None or before.plan is not cursor.plan):
            self._governor.begin_plan()

    def _num_microbatches(self, step: int) -> int | None:
        return self._steps.num_microbatches(step, self._active_plan)

    def _is_planner_lost(self) -> bool:
        return self._link is not None and self._link.is_lost

    def _request_first_clock(self) -> None:
        """Request the clock of the first instruction of the step that comes next."""
        try:
            first_mhz = self._active_plan.first_clock_mhz(self._current_step)
            if first_mhz is not None:
                self._governor.set_mhz(first_mhz)
            # After the request, which it would delay.
            self._steps.learn(self._recorder.timings.compute_times_s, self._cursor)
        except Exception as error:
            self._governor.give_up(error)

    def _measure(self) -> None:
        self._note_begun()
        cursor = self._cursor
        ran = None if cursor is None or self.active_version is None else cursor.fitting_plan
        work, step_plan = self._steps.end(self._current_step, ran)
        self._recorder.end_step(
            step=self._current_step,
            plan_version=self.active_version,
            num_unplanned=0 if cursor is None else cursor.num_unplanned,
            no_clocks=self._governor.no_clocks,
            work=work,
            step_plan=step_plan,
            then=self._post,
        )
        self._active_plan.end_step(self._current_step)
        fitting = None if cursor is None else cursor.fitting_plan
        self._steps.shape.end_step((fitting or self._recorder.timings).num_microbatches)

    def _post(self, measurement: StepMeasurement) -> None:
        if self._link is not None:
            self._link.outbox.put(measurement)

    def _tell(self, observe: Callable[..., None], *given: str | int) -> None:
        try:
            observe(*given)
        except Exception as error:
            self._observer = self._emulated = None
            _logger.warning("%s: instructions are no longer emulated: %s", self.name, error)


def _check(counts: Sequence[int], *, history_length: int, without_planner: str) -> None:
    if min(counts) < 0:
        raise ValueError("ranks, stage and initial_step count from 0")
    WITHOUT_PLANNER.read(without_planner)
    if history_length < 1:
        raise ValueError(f"history_length must be at least 1, not {history_length}")
