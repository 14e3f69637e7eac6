"""Policies by name. A new one is a file beside these and a line in `POLICIES`."""

from __future__ import annotations

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.policies._base import Policy, PolicyChoice, PolicyRequest
from flyball_server.planning.policies.envpipe import ENVPIPE_POLICIES
from flyball_server.planning.policies.frontier import frontier
from flyball_server.planning.policies.reconfigure import RECONFIGURATIONS

POLICIES: dict[str, Policy] = {**ENVPIPE_POLICIES, "frontier": frontier}


def choose(policy: str, request: PolicyRequest) -> PolicyChoice:
    """Return what the policy called `policy` decides.

    Raises:
        PlanningError: there is no such policy, or it cannot do what is asked.
    """
    if policy not in POLICIES:
        raise PlanningError(f"unknown {policy!r}; known: {', '.join(POLICIES)}", field="policy")
    if request.reconfigure not in RECONFIGURATIONS:  # also where a policy does not look at it
        raise PlanningError(
            f"unknown {request.reconfigure!r}; known: {', '.join(RECONFIGURATIONS)}",
            field="reconfigure",
        )
    return POLICIES[policy](request)
