"""Reconcilers of jobs, in the order in which they are called."""

from __future__ import annotations

from threading import Semaphore

from flyball_server.jobs.conditions.reconciler import ConditionsReconciler
from flyball_server.jobs.findings.delays import DelayReconciler
from flyball_server.jobs.findings.placement import PlacementReconciler
from flyball_server.jobs.findings.step_power import StepPowerReconciler
from flyball_server.jobs.findings.stragglers import StragglerReconciler
from flyball_server.jobs.findings.work_drift import WorkDriftReconciler
from flyball_server.jobs.measurements.pruning import PruningReconciler
from flyball_server.jobs.reconcile.expiry import ExpiryReconciler
from flyball_server.jobs.reconcile.loop import Reconciler
from flyball_server.jobs.reconcile.order_advice import OrderAdviceReconciler
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.reconcile.probes import ProbeReconciler
from flyball_server.jobs.reconcile.reconfigurations import ReconfigurationReconciler
from flyball_server.jobs.reconcile.solve import NUM_SLOTS
from flyball_server.jobs.savings.comparisons import ComparisonReconciler


def all_reconcilers() -> tuple[Reconciler, ...]:
    """Return a new set of reconcilers for one reconcile loop; some cache their last reads."""
    slots = Semaphore(NUM_SLOTS)
    return (
        ExpiryReconciler(),
        ConditionsReconciler(),
        PlacementReconciler(),
        ProbeReconciler(slots),
        StragglerReconciler(),
        DelayReconciler(),
        WorkDriftReconciler(),
        StepPowerReconciler(),
        ComparisonReconciler(),
        PlanReconciler(slots),
        ReconfigurationReconciler(),
        PruningReconciler(),
        OrderAdviceReconciler(slots),
    )
