"""Settings of metrics and logs: where they come from, and what is refused."""

from __future__ import annotations

import pytest

from flyball_server.settings import SettingsError, load_settings


def test_metrics_and_logs_are_set_by_the_environment() -> None:
    settings = load_settings(
        {
            "FLYBALL_METRICS_JOBS": "3",
            "FLYBALL_METRICS_OPEN": "1",
            "FLYBALL_LOG_FORMAT": "JSON",
        }
    )
    assert (settings.metrics_jobs, settings.metrics_open) == (3, True)
    assert settings.log_format == "json"
    assert load_settings({"FLYBALL_LOG_FORMAT": "json"}, log_format="text").log_format == "text"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLYBALL_METRICS_JOBS", "-1"),
        ("FLYBALL_METRICS_JOBS", "1001"),
        ("FLYBALL_METRICS_JOBS", "many"),
        ("FLYBALL_METRICS_OPEN", "yes"),
        ("FLYBALL_LOG_FORMAT", "xml"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings({name: value})
