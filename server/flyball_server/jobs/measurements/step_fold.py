"""Running totals of a job's steps, which the store keeps: each step is added once. Pure."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

from flyball_server.jobs.measurements.step_pairs import (
    DEFAULT_CLOCKS,
    CountingRule,
    PairGathering,
    StepKinds,
    StepSeries,
    WorkAtHighest,
)
from flyball_server.jobs.savings.deviations import DeviationTally
from flyball_server.jobs.step_records import StepTotals
from flyball_wire.read_models import MeasuredIteration, PredictedIteration, StepClocks

# Number of newest steps whose mean is the job's current measurement.
NEWEST_STEPS = 16
# Number of newest steps without some rank that may still be added: ranks keep as many to post.
MOST_MISSING = 4096
_NO_COUNTS = (0, 0, 0, 0)


@dataclass(kw_only=True)
class StepSum:
    """Sum of steps."""

    num_steps: int = 0
    #: Sum of their times, s.
    time_s: float = 0.0
    #: Sum of the energies of steps that have one, J.
    energy_j: float = 0.0
    num_with_energy: int = 0

    def add(self, step: StepTotals) -> None:
        """Add the next step."""
        self.num_steps += 1
        self.time_s += step.time_s
        if step.energy_j is not None:
            self.energy_j += step.energy_j
            self.num_with_energy += 1

    def whole_energy_j(self) -> float | None:
        """Return the energy of all steps, J; None: a rank could not read it, or no steps."""
        is_whole = 0 < self.num_steps == self.num_with_energy
        return self.energy_j if is_whole else None


@dataclass(kw_only=True)
class VersionFold:
    """Steps of one version of a job's plan, or of none."""

    kinds: StepKinds
    #: Prediction for a step, and the policy and target that were planned; None: no prediction.
    predicted: PredictedIteration | None = None
    policy: str = ""
    target: str = ""
    on_plan: StepSeries = field(default_factory=StepSeries)
    at_baseline: StepSeries = field(default_factory=StepSeries)
    #: The same without steps that deviated; None: no step has.
    undisturbed: tuple[StepSeries, StepSeries] | None = None
    #: None: no steps of different kinds are interleaved in it.
    pairs: PairGathering | None = None
    num_left_out: int = 0
    deviations: DeviationTally = field(default_factory=DeviationTally)

    def add(self, step: StepTotals, work: WorkAtHighest | None = None) -> None:
        """Add a step that counts."""
        is_baseline = self.kinds.is_baseline(step.step)
        if not self.deviations.add_counted(step):
            if self.undisturbed is not None:
                self.undisturbed[is_baseline].add(step, work)
        elif self.undisturbed is None:
            self.undisturbed = copy.deepcopy((self.on_plan, self.at_baseline))
        (self.at_baseline if is_baseline else self.on_plan).add(step, work)
        if self.pairs is not None:
            self.pairs.add(step, work)

    def leave_out(self, step: StepTotals) -> None:
        """Add a step that all ranks have posted and that does not count."""
        self.num_left_out += 1
        self.deviations.add_left_out(step)

    def give_up(self, num_steps: int = 1) -> None:
        """Add steps that some rank has not posted; a negative number: it has posted them late."""
        self.num_left_out += num_steps
        self.deviations.add_missing(num_steps)

    @property
    def undisturbed_on_plan(self) -> StepSeries:
        """Return the counted steps on the plan without a deviation."""
        return self.on_plan if self.undisturbed is None else self.undisturbed[0]

    @property
    def undisturbed_at_baseline(self) -> StepSeries:
        """Return the counted steps at the highest clocks without a deviation."""
        return self.at_baseline if self.undisturbed is None else self.undisturbed[1]

    @property
    def num_pairs(self) -> int:
        """Return the number of steps of either kind in the pairs so far."""
        return 0 if self.pairs is None else self.pairs.so_far().times_s.num_steps


def version_fold(kinds: StepKinds) -> VersionFold:
    """Return the fold of a version without steps."""
    pairs = PairGathering(kinds=kinds) if kinds.is_interleaved else None
    return VersionFold(kinds=kinds, pairs=pairs)


@dataclass(kw_only=True)
class MissingStep:
    """A step that was added before all ranks had posted it."""

    #: Version that it was added to.
    version: int
    #: Version of the previous complete step, as in CountingRule.
    settled: tuple[int | None, ...]
    #: Its `num_unplanned`, `num_clock_misses`, `num_power_capped` and `num_thermally_capped`.
    counts: tuple[int, ...]


@dataclass(kw_only=True)
class StepFold:
    """Fold over a job's steps; its size does not depend on their number.

    Steps are added in rising order, each once; one that some rank has not posted is completed when
    that rank posts it late. A run that has started over from a checkpoint measures steps of the
    same numbers anew: they are steps of another run, and are added too.
    """

    rule: CountingRule
    #: Number of times that the job has started over.
    run: int = 0
    #: Newest added step of this run; -1: no step.
    after_step: int = -1
    #: Version 0: default clocks.
    versions: dict[int, VersionFold] = field(default_factory=dict[int, VersionFold])
    #: Steps before the first version, which have its number of microbatches.
    before: VersionFold = field(default_factory=lambda: version_fold(DEFAULT_CLOCKS))
    first_version: int | None = None
    #: Highest clocks of online profiling by stage, MHz; empty: not profiled online so far.
    highest_mhz: tuple[int, ...] = ()
    #: Newest steps of this run that some rank has not posted, rising.
    missing: dict[int, MissingStep] = field(default_factory=dict[int, MissingStep])
    #: Step that was completed late last, with the rule's version after it; and their number.
    late: tuple[int, tuple[int | None, ...]] = (-1, ())
    num_late: int = 0
    #: Steps that all ranks have posted.
    sums: dict[StepClocks, StepSum] = field(
        default_factory=lambda: {clocks: StepSum() for clocks in StepClocks}
    )
    #: Those at default clocks, on ranks that all set clocks; and the number of the others.
    at_default: StepSum = field(default_factory=StepSum)
    num_without_clocks: int = 0
    #: Number of steps that not all ranks had posted in time.
    num_incomplete: int = 0
    #: Number of steps in which a rank ran an unknown plan; they are in no other figure.
    num_unknown: int = 0
    num_unplanned: int = 0
    num_clock_misses: int = 0
    num_power_capped: int = 0
    num_thermally_capped: int = 0
    #: Predicted energies of the steps in `sums[PLAN]`, on their plan and at the highest clocks, J.
    predicted_j: float = 0.0
    predicted_baseline_j: float = 0.0
    #: Newest steps at the same clocks that all ranks have posted, rising.
    newest_steps: list[StepTotals] = field(default_factory=list[StepTotals])
    newest_clocks: StepClocks = StepClocks.DEFAULT
    #: Versions with steps that were added since the fold was read.
    changed: set[int] = field(default_factory=set[int], compare=False)

    @property
    def newest_version(self) -> int:
        """Return the newest version with steps; 0: none."""
        return max(self.versions, default=0)

    @property
    def place(self) -> tuple[int, int, int]:
        """Return how far the fold is: its run, the newest step of that, and `num_late`."""
        return self.run, self.after_step, self.num_late

    @property
    def num_steps(self) -> int:
        """Return the number of steps so far that all ranks have posted, at any clocks."""
        return sum(summed.num_steps for summed in self.sums.values())

    @property
    def time_s(self) -> float:
        """Return the time of these steps, s."""
        return math.fsum(summed.time_s for summed in self.sums.values())

    @property
    def energy_j(self) -> float | None:
        """Return the energy of these steps, J; None: a rank could not read it, or no steps."""
        with_steps = [summed for summed in self.sums.values() if summed.num_steps]
        energies_j = [summed.whole_energy_j() for summed in with_steps]
        known_j = [energy_j for energy_j in energies_j if energy_j is not None]
        return math.fsum(known_j) if known_j and len(known_j) == len(energies_j) else None

    @property
    def newest(self) -> MeasuredIteration | None:
        """Return the mean of the newest steps; None: no steps."""
        steps = self.newest_steps
        if not steps:
            return None
        energies_j = [step.energy_j for step in steps if step.energy_j is not None]
        return MeasuredIteration(
            clocks=self.newest_clocks,
            version=steps[-1].newest_version,
            first_step=steps[0].step,
            last_step=steps[-1].step,
            num_steps=len(steps),
            iteration_time_s=sum(step.time_s for step in steps) / len(steps),
            energy_j=sum(energies_j) / len(steps) if len(energies_j) == len(steps) else None,
        )

    def know(self, version: int, fold: VersionFold) -> None:
        """Add a version of which no step was added yet."""
        self.versions.setdefault(version, fold)
        self.changed.add(version)

    def start_over(self) -> None:
        """Begin another run; no step of the former run is added any more."""
        self.missing.clear()
        self.rule.settled, self.late = (), (-1, ())
        self.run, self.after_step = self.run + 1, -1

    def add(self, step: StepTotals, work: WorkAtHighest | None = None) -> None:
        """Add the next step, in rising order; its version is known.

        `work` is what its announced work takes at the highest clocks; None: not known.
        """
        self.after_step = step.step
        settled = self.rule.settled
        counts = self.rule.counts(step)
        if step.num_unknown:
            self.num_unknown += 1
            return
        self._count(step)
        if self.rule.is_complete(step):
            of_version, clocks = self._add_complete(step, work, counts=counts)
            self._add_to_newest(step, clocks, of_version.kinds)
            return
        self.num_incomplete += 1
        version = step.newest_version or 0
        self._of_version(version).give_up()
        self.missing[step.step] = MissingStep(
            version=version,
            settled=settled,
            counts=(
                step.num_unplanned,
                step.num_clock_misses,
                step.num_power_capped,
                step.num_thermally_capped,
            ),
        )
        if len(self.missing) > MOST_MISSING:
            del self.missing[next(iter(self.missing))]

    def add_late(self, step: StepTotals, work: WorkAtHighest | None = None) -> None:
        """Add a missing step that all ranks have posted now; several in rising order."""
        missing = self.missing.pop(step.step)
        self._of_version(missing.version).give_up(-1)
        self.num_late += 1
        late_step, late_settled = self.late
        settled = late_settled if late_step == step.step - 1 else missing.settled
        rule = CountingRule(num_ranks=self.rule.num_ranks, settled=settled)
        counts = rule.counts(step)
        self.late = (step.step, rule.settled)
        if step.num_unknown:
            self.num_unknown += 1
            return
        self._count(step, missing.counts)
        self._add_complete(step, work, counts=counts)

    def _count(self, step: StepTotals, counted: tuple[int, ...] = _NO_COUNTS) -> None:
        """Add a step's counts, less those that it had when it was added before."""
        num_unplanned, num_misses, num_power, num_thermal = counted
        self.num_unplanned += step.num_unplanned - num_unplanned
        self.num_clock_misses += step.num_clock_misses - num_misses
        self.num_power_capped += step.num_power_capped - num_power
        self.num_thermally_capped += step.num_thermally_capped - num_thermal

    def _of_version(self, version: int) -> VersionFold:
        if version not in self.versions:
            self.know(version, version_fold(StepKinds() if version else DEFAULT_CLOCKS))
        self.changed.add(version)
        return self.versions[version]

    def _add_complete(
        self, step: StepTotals, work: WorkAtHighest | None, *, counts: bool
    ) -> tuple[VersionFold, StepClocks]:
        self.first_version = self.first_version or step.newest_version
        of_version = self._of_version(step.newest_version or 0)
        if counts:
            of_version.add(step, work)
            if self.first_version is None:
                self.before.add(step, work)
        else:
            of_version.leave_out(step)
        clocks = _clocks_of(step, of_version.kinds)
        self.sums[clocks].add(step)
        if step.newest_version is None and step.num_without_clocks:
            self.num_without_clocks += 1
        elif step.newest_version is None:
            self.at_default.add(step)
        if clocks == StepClocks.PLAN and of_version.predicted is not None:
            self.predicted_j += of_version.predicted.energy_j
            self.predicted_baseline_j += of_version.predicted.baseline_energy_j
        return of_version, clocks

    def _add_to_newest(self, step: StepTotals, clocks: StepClocks, kinds: StepKinds) -> None:
        if clocks == StepClocks.MIXED or (clocks == StepClocks.HIGHEST and kinds.is_interleaved):
            return  # neither is a setting that the job keeps
        newest = self.newest_steps
        if newest and (newest[-1].newest_version, self.newest_clocks) != (
            step.newest_version,
            clocks,
        ):
            newest.clear()
        newest.append(step)
        del newest[:-NEWEST_STEPS]
        self.newest_clocks = clocks


def _clocks_of(step: StepTotals, kinds: StepKinds) -> StepClocks:
    if step.is_mixed:
        return StepClocks.MIXED
    if step.newest_version is None:
        return StepClocks.DEFAULT
    if kinds.is_probe:
        return StepClocks.PROFILING
    return StepClocks.HIGHEST if kinds.is_baseline(step.step) else StepClocks.PLAN
