"""Reconcilers, each with its position in the order and the posts after which it runs."""

from __future__ import annotations

from flyball_server.jobs.conditions.reconciler import ConditionsReconciler
from flyball_server.jobs.reconcile.comparisons import ComparisonReconciler
from flyball_server.jobs.reconcile.delays import DelayReconciler
from flyball_server.jobs.reconcile.expiry import ExpiryReconciler
from flyball_server.jobs.reconcile.loop import Reconciler
from flyball_server.jobs.reconcile.order_advice import OrderAdviceReconciler
from flyball_server.jobs.reconcile.placement import PlacementReconciler
from flyball_server.jobs.reconcile.plans import ReplanReconciler, TimetableReconciler
from flyball_server.jobs.reconcile.probes import ProbeReconciler
from flyball_server.jobs.reconcile.pruning import PruningReconciler
from flyball_server.jobs.reconcile.reconfigurations import ReconfigurationReconciler
from flyball_server.jobs.reconcile.stragglers import StragglerReconciler
from flyball_server.jobs.reconcile.work_drift import WorkDriftReconciler
from flyball_server.jobs.replanning.plan_job import PlanningSlots


def all_reconcilers() -> tuple[Reconciler, ...]:
    """Return a new set of reconcilers for one reconcile loop; some cache their last reads."""
    slots = PlanningSlots()
    return (
        ExpiryReconciler(),
        ConditionsReconciler(slots),
        ReplanReconciler(slots),
        PlacementReconciler(slots),
        OrderAdviceReconciler(slots),
        ProbeReconciler(slots),
        TimetableReconciler(slots),
        StragglerReconciler(slots),
        DelayReconciler(slots),
        WorkDriftReconciler(slots),
        ComparisonReconciler(),
        ReconfigurationReconciler(),
        PruningReconciler(),
    )
