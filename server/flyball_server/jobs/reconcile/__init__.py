"""Reconcilers, in the order in which they look at a job."""

from __future__ import annotations

import functools

from flyball_server.jobs.reconcile.comparing import Comparing
from flyball_server.jobs.reconcile.expiry import Ageing
from flyball_server.jobs.reconcile.probing import probing
from flyball_server.jobs.reconcile.reconfiguring import reconfiguring
from flyball_server.jobs.reconcile.replanning import replanning
from flyball_server.jobs.reconcile.slowdowns import StragglerReconciler
from flyball_server.jobs.reconcile.timetabled import timetabled
from flyball_server.jobs.reconcile.triggers import Reconciler
from flyball_server.jobs.replanning.planning_slots import PlanningSlots


def all_reconcilers() -> tuple[Reconciler, ...]:
    """Every reaction, for one reactor: some remember when they last looked at its jobs."""
    slots = PlanningSlots()
    return (
        Ageing(),
        functools.partial(replanning, slots=slots),
        functools.partial(probing, slots=slots),
        functools.partial(timetabled, slots=slots),
        StragglerReconciler(slots),
        Comparing(),
        reconfiguring,
    )
