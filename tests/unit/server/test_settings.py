"""Settings: flag over environment over default, and one clear line for what cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_server.settings import Settings, SettingsError, load_settings


def test_without_anything_the_planner_is_on_loopback_and_in_the_users_state_folder() -> None:
    settings = load_settings({"XDG_STATE_HOME": "/home/ada/state"})
    assert (settings.host, settings.port) == ("127.0.0.1", 7787)
    assert settings.database_file == Path("/home/ada/state/flyball/planner.sqlite")
    assert settings.token is None
    assert settings.max_body_bytes == 16 * 2**20
    assert settings.max_wait_s == 60


def test_without_a_state_folder_it_is_the_one_in_the_home() -> None:
    file = load_settings({}).database_file
    assert file == Path.home() / ".local/state/flyball/planner.sqlite"


def test_the_environment_is_over_the_defaults() -> None:
    settings = load_settings(
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
    assert settings.database_file == Path("/var/lib/flyball.sqlite")


def test_a_flag_is_over_the_environment() -> None:
    environ = {"FLYBALL_PORT": "1", "FLYBALL_HOST": "a", "FLYBALL_DATABASE": "sqlite:///a"}
    settings = load_settings(environ, port=0, host="b", database="sqlite:///b")
    assert (settings.port, settings.host, settings.database) == (0, "b", "sqlite:///b")


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(load_settings({"FLYBALL_TOKEN": "secret"}))


@pytest.mark.parametrize(
    "name",
    [
        "FLYBALL_HOST",
        "FLYBALL_PORT",
        "FLYBALL_DATABASE",
        "FLYBALL_TOKEN",
        "FLYBALL_LOG_LEVEL",
        "FLYBALL_MAX_BODY_BYTES",
        "FLYBALL_MAX_WAIT_S",
    ],
)
def test_an_empty_variable_counts_as_not_set(name: str) -> None:
    assert load_settings({name: ""}) == load_settings({})


def test_what_a_flag_gave_is_blamed_on_the_flag() -> None:
    environ = {"FLYBALL_PORT": "1", "FLYBALL_MAX_WAIT_S": "601"}
    with pytest.raises(SettingsError, match=r"^--port must be 0 to 65535, not 70000$"):
        load_settings(environ, port=70000)
    with pytest.raises(SettingsError, match=r"^--database must be sqlite:///FILE .* a postgresql "):
        load_settings(environ, database="postgresql://db")
    with pytest.raises(SettingsError, match=r"^--database must be sqlite:///FILE .* a nameless "):
        load_settings(environ, database="")
    with pytest.raises(SettingsError, match=r"^--token must be printable ASCII and not empty$"):
        load_settings(environ, token="")
    with pytest.raises(SettingsError, match=r"^--host is empty"):
        load_settings(environ, host="")
    with pytest.raises(SettingsError, match=r"^--log-level must be one of"):
        load_settings(environ, log_level="loud")
    with pytest.raises(SettingsError, match=r"^FLYBALL_MAX_WAIT_S must be 0 to 600"):
        load_settings(environ, port=2)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FLYBALL_HOST", " ", "is empty"),
        ("FLYBALL_PORT", "http", "must be a whole number, not 'http'"),
        ("FLYBALL_PORT", "65536", "must be 0 to 65535, not 65536"),
        ("FLYBALL_PORT", "-1", "must be 0 to 65535, not -1"),
        ("FLYBALL_DATABASE", "postgresql://ada:secret@db/flyball", "not a postgresql address"),
        ("FLYBALL_DATABASE", "sqlite:///", "must name a file"),
        ("FLYBALL_DATABASE", "sqlite:///:memory:", "must name a file"),
        ("FLYBALL_DATABASE", "sqlite://", "must name a file"),
        ("FLYBALL_TOKEN", "a\nb", "printable ASCII"),
        ("FLYBALL_TOKEN", "ä", "printable ASCII"),
        ("FLYBALL_LOG_LEVEL", "loud", "must be one of debug, info, warning, error, not 'loud'"),
        ("FLYBALL_MAX_BODY_BYTES", "1023", "must be at least 1024, not 1023"),
        ("FLYBALL_MAX_WAIT_S", "soon", "must be a number of seconds, not 'soon'"),
        ("FLYBALL_MAX_WAIT_S", "nan", "must be 0 to 600, not nan"),
        ("FLYBALL_MAX_WAIT_S", "601", "must be 0 to 600, not 601"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_in_one_line(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value})
    line = str(caught.value)
    assert line.startswith(name)
    assert says in line
    assert "\n" not in line
    assert "secret" not in line
