"""Scopes of the energy counters of a job's GPUs, and which energies cannot be compared. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.stage_profile import EnergyScope
from flyball_server.jobs.records import RankRecord, ranks_text

_NAMES = {EnergyScope.GPU: "GPUs alone", EnergyScope.MODULE: "whole modules"}


def common_scope(ranks: Sequence[RankRecord]) -> EnergyScope | None:
    """Return what the counters of all ranks count; None: not all are known, or they differ."""
    scopes = {rank.energy_scope for rank in ranks}
    return scopes.pop() if len(scopes) == 1 else None


def scope_notes(ranks: Sequence[RankRecord], profile_scope: EnergyScope | None) -> list[str]:
    """Return a line for each thing that is not comparable.

    `profile_scope` is what the profile's energies count; None: not known.
    """
    by_scope: dict[EnergyScope, list[int]] = {}
    for rank in ranks:
        if rank.energy_scope is not None and not rank.has_left:
            by_scope.setdefault(rank.energy_scope, []).append(rank.rank)
    notes: list[str] = []
    if len(by_scope) > 1:
        counted = [f"{_NAMES[scope]} on {ranks_text(of)}" for scope, of in by_scope.items()]
        notes.append(f"energy counters differ, and their sum mixes both: {', '.join(counted)}")
    for scope, of in by_scope.items():
        if profile_scope is not None and profile_scope != scope:
            notes.append(
                f"the profile's energies are of {_NAMES[profile_scope]}, and {ranks_text(of)}"
                f" measure{'s' * (len(of) == 1)} {_NAMES[scope]}: predicted and measured energies"
                " are not comparable"
            )
    return notes
