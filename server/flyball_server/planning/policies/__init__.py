"""Policies by name. A new policy is a file beside these and a line in `POLICIES`."""

from __future__ import annotations

from flyball_server.planning.policies._base import PolicyRule
from flyball_server.planning.policies.envpipe import ENVPIPE_POLICIES
from flyball_server.planning.policies.frontier import frontier
from flyball_server.planning.policies.single_clocks import constant, global_clock
from flyball_wire.plan_options import Policy

POLICIES: dict[Policy, PolicyRule] = {
    **ENVPIPE_POLICIES,
    Policy.GLOBAL: global_clock,
    Policy.CONSTANT: constant,
    Policy.FRONTIER: frontier,
}
