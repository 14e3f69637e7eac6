"""Session of a training rank: four hooks that set the planned clocks and measure each step.

with RankSession(gpu=gpu, job_id="gpt", rank=3, stage=1, planner=planner) as session:
    for batch in batches:
        session.on_step_begin()
        ...  # on_instruction_begin("forward", microbatch=0), on_instruction_end("forward")
        session.on_step_end()

A fifth, `on_transfer`, tells how long a receive or a send took.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from flyball_client.api.planner_client import PlannerClient
from flyball_client.governor import make_governor
from flyball_client.governor._base import ClockGovernor, ClockReport
from flyball_client.governor.process_governor import DEFAULT_LEASE_S
from flyball_client.gpu._base import EmulatedDevice, GpuDevice, GpuError, InstructionObserver
from flyball_client.session.active_plan import ActivePlan, PendingPlans, PlanChoice, newest_plan
from flyball_client.session.instruction_timings import Begun, InstructionTiming, Transfer
from flyball_client.session.plan_cursor import PlanCursor
from flyball_client.session.planner_link import LinkTimes, PlannerLink
from flyball_client.session.rank_settings import launch_of
from flyball_client.session.step_recorder import StepMeter, StepRecorder
from flyball_wire.command import flyball_version
from flyball_wire.messages import RankRegistration, StepMeasurement

_logger = logging.getLogger(__name__)


class RankSession:
    """One rank's share of a job: follows its plans, sets its GPU's clock, measures its steps.

    Until a plan's first step has come, and without a planner, the clock is left alone. While
    one is in force, each instruction gets its planned clock as it begins; see PlanCursor for
    instructions that the plan does not expect. The hooks do no I/O but to the GPU and raise
    nothing into training: whatever fails inside ends the setting of clocks, with one line in
    the log. The hooks and `close` belong to one thread at a time.

    A real GPU's clock is set by a process of its own, which gives it back whatever becomes of
    this one; see `governor`. No signal handler is installed here.

    Args:
        gpu: this rank's; read here, set by the governor; not closed here.
        job_id: the job at the planner.
        rank: of this process within the job.
        stage: that this rank runs.
        dp_rank, tp_rank, cp_rank: where it stands in data, tensor and context parallelism.
        planner: not closed here; None: measure only.
        governor: of the GPU's clock, closed here; None: the right one for the GPU.
        observer: told of each instruction; None: the GPU itself if it is emulated.
        without_planner: what a planner that does not answer leaves in force: the last plan, or
            default clocks until it is back.
        lease_s: without a sign of life for so long the clock is given back until the next one, s:
            each hook is one, but for the begin of an instruction at the clock of the last one.
        choose_plan: of the plans whose first step has come, which is run from a step on, see
            PendingPlans; default: the newest. An order that all ranks must change together waits
            there for the others.
        timing: of a clock's change; `host`: when the hook is called. A kind that the GPU's
            stream orders could come beside it.
        clock: monotonic time, s; None: emulated time on an emulated GPU, else the system's.
        initial_step: number of the first step, where training resumes.
        history_length: steps that `history` keeps, at least 1.
        times: how patient it is with the planner.
    """

    def __init__(
        self,
        *,
        gpu: GpuDevice,
        job_id: str,
        rank: int,
        stage: int,
        dp_rank: int = 0,
        tp_rank: int = 0,
        cp_rank: int = 0,
        planner: PlannerClient | None,
        governor: ClockGovernor | None = None,
        observer: InstructionObserver | None = None,
        without_planner: Literal["last-plan", "default-clocks"] = "last-plan",
        lease_s: float = DEFAULT_LEASE_S,
        choose_plan: PlanChoice | None = None,
        timing: Literal["host"] = "host",
        clock: Callable[[], float] | None = None,
        initial_step: int = 0,
        history_length: int = 1024,
        times: LinkTimes | None = None,
    ) -> None:
        if min(rank, stage, dp_rank, tp_rank, cp_rank, initial_step) < 0:
            raise ValueError("ranks, stage and initial_step count from 0")
        _check(without_planner=without_planner, timing=timing, history_length=history_length)
        self._name = f"job {job_id} rank {rank}"
        if observer is None and isinstance(gpu, EmulatedDevice):
            observer = gpu
        self._observer = observer
        self._governor = governor or make_governor(gpu, self._name, lease_s=lease_s)
        supported_mhz = self._read_supported_mhz(gpu)
        meter = StepMeter(gpu, self._governor, clock_s=clock, rank_name=self._name)
        self._clock_s = meter.clock_s
        self._recorder = StepRecorder(meter, history_length)
        # What runs and is not in the timings yet.
        self._begun: Begun | None = None
        self._current_step = initial_step
        self._is_in_step = False
        self._is_closed = False
        self._is_started = False
        self._plans = PendingPlans(choose_plan or newest_plan)
        self._active_plan = ActivePlan(
            self._plans,
            stage=stage,
            supported_mhz=supported_mhz,
            keeps_plan=without_planner == "last-plan",
            rank_name=self._name,
        )
        # The follower's, within reach of the hook.
        self._cursor: PlanCursor | None = None
        self._link: PlannerLink | None = None
        if planner is not None:
            layout = (dp_rank, tp_rank, cp_rank)
            registration = _registration_of(gpu, supported_mhz, stage, layout)
            self._link = self._link_to(planner, job_id, rank, registration, times or LinkTimes())

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Register at the planner and follow its plans from now on; any number of times."""
        if self._is_started or self._is_closed:
            return
        self._is_started = True
        self._governor.start()
        if self._link is not None:
            self._link.start()

    def close(self) -> None:
        """Give the clock back and post what was measured; any number of times."""
        if self._is_closed:
            return
        self._is_closed = True
        # So the hook that begins an instruction has nothing to do any more, and need not ask.
        self._cursor = self._observer = None
        self._is_in_step = False
        self._governor.close()
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

    # ------------------------------------------------------------------ what can be seen

    @property
    def current_step(self) -> int:
        """The step that runs, or between steps the next one, from `initial_step`."""
        return self._current_step

    @property
    def active_version(self) -> int | None:
        """The plan in force; None: none yet, or clocks are no longer set."""
        if self._cursor is None or self._governor.is_over:
            return None
        return self._cursor.plan.version

    @property
    def clock_s(self) -> Callable[[], float]:
        """The time that steps are measured in, s: on an emulated GPU its own."""
        return self._clock_s

    @property
    def history(self) -> tuple[StepMeasurement, ...]:
        """The last steps measured, in order: their totals."""
        return self._recorder.history

    @property
    def last_step_timings(self) -> tuple[InstructionTiming, ...]:
        """The instructions of the last step in `history`, in the order of execution."""
        return self._recorder.timings.last_step()

    @property
    def num_dropped_measurements(self) -> int:
        """Measurements that the planner will never see."""
        return 0 if self._link is None else self._link.num_dropped

    @property
    def clock_report(self) -> ClockReport:
        """Return what became of the clocks that were set so far."""
        return self._governor.report()

    # ------------------------------------------------------------------ the hooks

    def on_step_begin(self) -> None:
        """A training step begins; a plan whose first step has come takes effect."""
        if self._is_closed:
            return
        if self._is_in_step:
            # The last step was abandoned; it is not measured, but it was a step.
            self._current_step += 1
        self._is_in_step = True
        try:
            self._governor.on_step_begin()
            self._follow_plan()
            self._begun = None
            self._recorder.begin_step(None if self._cursor is None else self._cursor.plan)
        except Exception as error:
            self._governor.give_up(error)

    def on_step_end(self) -> None:
        """The training step is over: it is measured and the measurement goes to the planner."""
        if self._is_closed or not self._is_in_step:
            return
        self._is_in_step = False
        try:
            self._measure()
        except Exception as error:
            self._governor.give_up(error)
        self._current_step += 1

    def on_step_failed(self) -> None:
        """The training step was broken off: the clock is given back until the next one.

        It is counted and not measured. After a step that ended in `on_step_end`, no effect.
        """
        if self._is_closed or not self._is_in_step:
            return
        self._is_in_step = False
        self._current_step += 1
        self._begun = None
        self._active_plan.break_off_step()
        self._governor.pause()

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        """One computation begins: its planned clock is set.

        Args:
            kind: `forward`, `backward`, ...: a name of InstructionKind.
            microbatch: from 0; None: the plan's order decides.
            chunk: of the model, where there are several.
        """
        # The hot path, between a training's computations and mostly run from cold caches: few
        # objects, no call that is not needed; all that can wait waits for the instruction's end.
        cursor = self._cursor
        try:
            if self._begun is not None:
                self._note_end_untold()
            if cursor is not None:
                name, number, part, sm_clock_mhz, is_change = cursor.rows[cursor.position]
                if kind == name and microbatch == number and chunk == part:
                    cursor.position += 1
                    # To the clock that is asked for already, the last instruction's end has seen.
                    if is_change:
                        self._governor.set_mhz(sm_clock_mhz)
                else:
                    sm_clock_mhz = cursor.next_sm_clock_mhz(kind, microbatch, chunk)
                    self._governor.set_mhz(sm_clock_mhz)
            else:
                sm_clock_mhz = None
            if self._is_in_step:
                self._begun = (kind, microbatch, chunk, sm_clock_mhz, self._clock_s())
        except Exception as error:
            self._governor.give_up(error)
        if self._observer is not None:
            self._tell(self._observer.on_instruction_begin, kind, chunk)

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        """End the instruction; microbatch and chunk as at its beginning."""
        del microbatch
        if self._is_closed:
            return
        if self._observer is not None:
            self._tell(self._observer.on_instruction_end, kind, chunk)
        try:
            if self._is_in_step:
                self._note_begun()
                cursor = self._cursor
                self._recorder.end_instruction(0 if cursor is None else cursor.position)
            self._governor.on_instruction_end()
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
        """A receive or a send is over; it may be told late, but within its step.

        Args:
            transfer: a `receive` belongs to the next instruction of this kind, a `send` to the
                one named, or without a microbatch to the last of this kind.
            kind: whose input or result it is: a gradient that is received is `backward`'s.
            time_s: how long it took, waiting included, in seconds of `clock_s`; one that is below
                0 or not finite is left out.
            microbatch: from 0.
            chunk: of the model, where there are several.
        """
        if self._is_closed or not self._is_in_step:
            return
        try:
            if self._begun is not None:
                self._note_end_untold()
            if 0 <= time_s < math.inf:
                timings = self._recorder.timings
                timings.add_transfer(transfer, kind, microbatch, chunk, float(time_s))
        except Exception as error:
            self._governor.give_up(error)

    # ------------------------------------------------------------------ inside

    def _link_to(
        self,
        planner: PlannerClient,
        job_id: str,
        rank: int,
        registration: RankRegistration,
        times: LinkTimes,
    ) -> PlannerLink:
        return PlannerLink(
            planner,
            job_id=job_id,
            rank=rank,
            rank_name=self._name,
            registration=registration,
            times=times,
            current_step=lambda: self._current_step,
            compile_plan=self._active_plan.compile,
            activate=self._plans.put,
        )

    def _note_begun(self) -> None:
        """Put the instruction that runs into the timings, where it is not there yet."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._recorder.timings.begin(begun)

    def _note_end_untold(self) -> None:
        """Likewise where another hook comes before its end, which may never be told."""
        self._note_begun()
        self._governor.on_instruction_end()

    def _read_supported_mhz(self, gpu: GpuDevice) -> tuple[int, ...]:
        """SM clocks that can be set, MHz, falling; empty, and given up, where there are none."""
        try:
            supported_mhz = gpu.supported_sm_clocks_mhz()
            if not supported_mhz:
                raise GpuError("the GPU names no SM clock that can be locked")
        except Exception as error:
            self._governor.give_up(error)
            return ()
        return supported_mhz

    def _follow_plan(self) -> None:
        had_plan = self._cursor is not None
        self._active_plan.begin_step(
            self._current_step,
            sets_clocks=not self._governor.is_over,
            is_planner_lost=self._link is not None and self._link.is_lost,
        )
        self._cursor = self._active_plan.cursor
        if had_plan and self._cursor is None:
            self._governor.pause()

    def _measure(self) -> None:
        self._note_begun()
        cursor = self._cursor
        measurement = self._recorder.end_step(
            step=self._current_step,
            plan_version=self.active_version,
            num_unplanned=0 if cursor is None else cursor.num_unplanned,
            were_clocks_set=not self._governor.is_over,
        )
        if self._link is not None:
            self._link.put(measurement)
        self._active_plan.end_step(self._current_step)

    def _tell(self, observe: Callable[[str, int], None], kind: str, chunk: int) -> None:
        try:
            observe(kind, chunk)
        except Exception as error:
            self._observer = None
            _logger.warning("%s: instructions are no longer emulated: %s", self._name, error)


def _check(*, without_planner: str, timing: str, history_length: int) -> None:
    if without_planner not in {"last-plan", "default-clocks"}:
        raise ValueError(
            f"without_planner must be last-plan or default-clocks, not {without_planner!r}"
        )
    if timing != "host":
        raise ValueError(f"timing must be host, not {timing!r}")
    if history_length < 1:
        raise ValueError(f"history_length must be at least 1, not {history_length}")


def _registration_of(
    gpu: GpuDevice, supported_mhz: tuple[int, ...], stage: int, layout: tuple[int, int, int]
) -> RankRegistration:
    """Return what the planner is told of this rank; `layout` is its dp, tp and cp rank."""
    dp_rank, tp_rank, cp_rank = layout
    launch = launch_of(os.environ)
    return RankRegistration(
        stage=stage,
        host=socket.gethostname(),
        gpu_name=gpu.name,
        gpu_uuid=gpu.uuid,
        emulated=gpu.is_emulated,
        client_version=flyball_version(),
        dp_rank=dp_rank,
        tp_rank=tp_rank,
        cp_rank=cp_rank,
        sm_clocks_mhz=supported_mhz or None,
        run=launch.run,
        restart_count=launch.restart_count,
    )
