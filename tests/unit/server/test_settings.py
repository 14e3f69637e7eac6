"""Settings: flag over environment over default, and one clear line for what cannot be used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from flyball_server.jobs.store.databases import shown, sqlite_file
from flyball_server.settings import Settings, SettingsError, load_settings


def load(environ: Mapping[str, str], **options: Any) -> Settings:  # noqa: ANN401
    """The settings where the environment holds this and the home, and nothing else."""
    home = {"HOME": str(Path.home())}
    with mock.patch.dict(os.environ, {**home, **environ}, clear=True):
        return load_settings(**options)


def test_without_anything_the_planner_is_on_loopback_and_in_the_users_state_folder() -> None:
    settings = load({"XDG_STATE_HOME": "/home/ada/state"})
    assert (settings.host, settings.port) == ("127.0.0.1", 7787)
    assert sqlite_file(settings.database) == Path("/home/ada/state/flyball/planner.sqlite")
    assert settings.token is None
    assert settings.max_body_bytes == 16 * 2**20
    assert settings.max_wait_s == 60
    without = load({})
    file = sqlite_file(without.database)
    assert file == Path.home() / ".local/state/flyball/planner.sqlite"
    for name in ("DATABASE", "TOKEN", "MAX_WAIT_S", "ALLOW_OPEN", "MAX_JOBS"):
        assert load({f"FLYBALL_{name}": ""}) == without, "empty counts as not set"


def test_gpu_files_are_checked_as_the_planner_starts(tmp_path: Path) -> None:
    assert load({"FLYBALL_GPU_FOLDER": str(tmp_path)}).gpu_folder == str(tmp_path)
    (tmp_path / "mine.toml").write_text("filter_max = 1", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"FLYBALL_GPU_FOLDER .*mine\.toml: unknown key filter"):
        load({"FLYBALL_GPU_FOLDER": str(tmp_path)})


def test_energy_has_a_price_and_emissions_only_if_they_are_set() -> None:
    assert load({}).factors.price_per_kwh is None
    priced = load(
        {
            "FLYBALL_PRICE_PER_KWH": "0.3",
            "FLYBALL_CURRENCY": "CHF",
            "FLYBALL_CO2_G_PER_KWH": "380",
        }
    )
    assert (priced.factors.cost_of(7.2e6), priced.factors.co2_g_of(7.2e6)) == (0.6, 760)
    assert priced.factors.currency == "CHF"
    with pytest.raises(SettingsError, match="FLYBALL_CURRENCY must be 1 to 12 letters"):
        load({"FLYBALL_CURRENCY": "<b>"})


def test_the_environment_is_over_the_defaults_and_a_flag_over_the_environment() -> None:
    settings = load(
        {
            "FLYBALL_HOST": "0.0.0.0",  # noqa: S104 - nothing listens there
            "FLYBALL_PORT": "1234",
            "FLYBALL_DATABASE": "sqlite:////var/lib/flyball.sqlite",
            "FLYBALL_TOKEN": "secret",
            "FLYBALL_LOG_LEVEL": "DEBUG",
            "FLYBALL_MAX_BODY_BYTES": "2048",
            "FLYBALL_MAX_WAIT_S": "1.5",
        }
    )
    assert settings == Settings(
        host="0.0.0.0",  # noqa: S104 - nothing listens there
        port=1234,
        database="sqlite:////var/lib/flyball.sqlite",
        token="secret",  # noqa: S106 - a test's
        log_level="debug",
        max_body_bytes=2048,
        max_wait_s=1.5,
    )
    assert sqlite_file(settings.database) == Path("/var/lib/flyball.sqlite")
    environ = {"FLYBALL_PORT": "1", "FLYBALL_HOST": "a", "FLYBALL_DATABASE": "sqlite:///a"}
    settings = load(environ, port=0, host="b", database="sqlite:///b")
    assert (settings.port, settings.host, settings.database) == (0, "b", "sqlite:///b")


@pytest.mark.parametrize(
    ("database", "as_shown"),
    [
        ("postgresql://ada:secret@db/flyball", "postgresql://ada@db/flyball"),
        ("postgres://db:5433/flyball?password=secret", "postgresql://db:5433/flyball"),
        ("postgresql:///flyball?host=/run/postgresql", "postgresql:///flyball"),
        ("postgresql:///?service=flyball", "postgresql:///"),
        ("postgresql://ada:secret@[::1]:5432,db-2/f", "postgresql://ada@[::1]:5432,db-2/f"),
    ],
)
def test_a_postgresql_password_is_not_shown(database: str, as_shown: str) -> None:
    settings = load({"FLYBALL_DATABASE": database})
    assert settings.database == database
    assert "secret" not in repr(settings)
    assert shown(database) == as_shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": 70000}, r"^--port must be less than .* 65535, not 70000$"),
        ({"database": "mysql://db"}, r"^--database must be sqlite:///FILE .* a mysql "),
        ({"database": ""}, r"^--database must be sqlite:///FILE .* a nameless "),
        ({"token": ""}, r"^--token must be printable ASCII without spaces, not empty$"),
        ({"host": ""}, r"^--host is empty"),
        ({"log_level": "loud"}, r"^--log-level must be 'debug', 'info'"),
        ({"port": 2}, r"^FLYBALL_MAX_WAIT_S must be less than .* 600"),
    ],
)
def test_a_value_of_a_flag_is_blamed_on_the_flag(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load({"FLYBALL_PORT": "1", "FLYBALL_MAX_WAIT_S": "601"}, **options)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FLYBALL_PORT", "65536", "less than or equal to 65535, not '65536'"),
        ("FLYBALL_DATABASE", "mysql://ada:secret@db/flyball", "not a mysql address"),
        ("FLYBALL_DATABASE", "postgresql://ada@db:5432", "must name a database"),
        ("FLYBALL_DATABASE", "postgresql://ada:se/cret@db/flyball", "%40 %2F"),
        ("FLYBALL_DATABASE", "postgresql://ada:se@cret@db/flyball", "%40 %2F"),
        ("FLYBALL_DATABASE", "postgresql://ada:secret@db:port/flyball", "USER:PASSWORD@HOST:PORT"),
        ("FLYBALL_DATABASE", "sqlite:///", "must name a file"),
        ("FLYBALL_ALLOWED_HOSTS", "*", "must be names or addresses such as"),
        ("FLYBALL_ALLOWED_HOSTS", "node-1,planner:7787", "without scheme and port"),
        ("FLYBALL_TOKEN", "a\nb", "printable ASCII"),
        ("FLYBALL_TOKEN", "se cret", "without spaces"),
        ("FLYBALL_RANK_SILENCE_S", "inf", "finite"),
        ("FLYBALL_STEP_RETENTION_S", "599", "0 (forever), or at least 600"),
        ("FLYBALL_LOG_LEVEL", "loud", "'info', 'warning' or 'error', not 'loud'"),
        ("FLYBALL_MAX_WAIT_S", "soon", "as a number, not 'soon'"),
        ("FLYBALL_ALLOW_OPEN", "maybe", "must be a valid boolean"),
        ("FLYBALL_TLS_CERTIFICATE", "planner.pem", "FLYBALL_TLS_KEY must be given with"),
        ("FLYBALL_TLS_KEY", "planner.key", "needs FLYBALL_TLS_CERTIFICATE too"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_in_one_line(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({name: value})
    line = str(caught.value)
    assert name in line
    assert says in line
    assert "\n" not in line
    assert "secret" not in line
