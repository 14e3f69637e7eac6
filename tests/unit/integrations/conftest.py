"""Fixtures of the tests of several frameworks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flyball_wire.messages import JobRegistration


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No planner, token or launcher in the environment."""
    for name in ("FLYBALL_PLANNER_URL", "FLYBALL_TOKEN", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def agreeing_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are not there, and run the same order and start as this one."""
    # They need torch.
    from flyball_integrations.shared import attachment, one_order  # noqa: PLC0415
    from flyball_integrations.shared.start_exchange import StartExchange  # noqa: PLC0415

    monkeypatch.setattr(one_order, "_texts", lambda mine, timeout_s: [])
    monkeypatch.setattr(attachment, "exchange_start", StartExchange)


@pytest.fixture
def registered(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> list[JobRegistration]:
    """Registrations of ranks, collected instead of sent to a planner."""
    from flyball_integrations.shared import attachment  # noqa: PLC0415 - needs torch

    registrations: list[JobRegistration] = []

    class Registrar:
        def __init__(
            self,
            planner: object,
            *,
            job_id: str,
            registration: JobRegistration,
            start_id: str | None,
            for_microbatches: Callable[[int], JobRegistration] | None,
        ) -> None:
            assert start_id
            if for_microbatches is not None:
                number = registration.num_microbatches
                assert for_microbatches(number) == registration
            registrations.append(registration)

        def take_microbatches(self, num_microbatches: int) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(attachment, "JobRegistrar", Registrar)
    return registrations
