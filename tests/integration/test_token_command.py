"""`flyball token`: the first token is made before the planner runs, others while it does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.planner.live import SERVE, serve_environment, serve_process
from tests.planner.patience import PATIENCE_S

from flyball_client.__main__ import main
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'planner.sqlite'}"


def made(capsys: pytest.CaptureFixture[str], database: str, *arguments: str) -> dict[str, str]:
    """Return what `flyball token create --json` prints."""
    assert main(["token", "create", *arguments, "--database", database, "--json"]) == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of what is refused."""
    assert main(["token", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("flyball token: ")
    return line


def test_the_first_token_is_made_before_the_planner_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, database: str
) -> None:
    operators = made(capsys, database, "--operator", "--note", "ada")
    with serve_process(tmp_path / "planner.sqlite") as served:
        assert served.http.get(routes.JOBS).status_code == 401
        headers = {TOKEN_HEADER: operators["token"]}
        assert served.http.get(routes.JOBS, headers=headers).status_code == 200
        # And while it runs, in the same database.
        jobs = made(capsys, database, "--job", "night")
        listed = served.http.get(routes.TOKENS, headers=headers).json()
        assert [token["job_id"] for token in listed] == [None, "night"]
        headers = {TOKEN_HEADER: jobs["token"]}
        assert served.http.get(routes.JOBS, headers=headers).json() == []
        assert served.http.get(routes.TOKENS, headers=headers).status_code == 403


def test_the_token_is_printed_once_and_never_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, database: str
) -> None:
    made(capsys, database, "--operator")
    assert main(["token", "create", "--job", "night", "--database", database]) == 0
    shown = capsys.readouterr()
    token = shown.out.splitlines()[0]
    assert shown.err == ""
    assert "opens job night and nothing else" in shown.out
    secret = token.split("_", 2)[2]
    assert main(["token", "list", "--database", database]) == 0
    assert secret not in capsys.readouterr().out
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_tokens_are_listed_with_what_they_open(
    capsys: pytest.CaptureFixture[str], database: str
) -> None:
    gone = made(capsys, database, "--operator")["token_id"]
    assert main(["token", "revoke", gone, "--database", database]) == 0
    capsys.readouterr()
    assert main(["token", "list", "--database", database]) == 0
    assert "flyball token create --operator" in capsys.readouterr().out
    first = made(capsys, database, "--operator", "--note", "ada")
    second = made(capsys, database, "--job", "night")
    assert main(["token", "list", "--database", database]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["ID", first["token_id"], second["token_id"]]
    assert lines[1][1] == "operator"
    assert lines[1][-1] == "ada"
    assert lines[2][1:3] == ["job", "night"]
    assert main(["token", "list", "--database", database, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["tokens"]
    del first["token"], second["token"]
    assert listed == [first, second]


def test_a_revoked_token_is_gone_and_may_be_named_as_a_whole(
    capsys: pytest.CaptureFixture[str], database: str
) -> None:
    first, second = (made(capsys, database, "--operator") for _ in range(2))
    assert main(["token", "revoke", first["token_id"], "--database", database]) == 0
    assert first["token_id"] in capsys.readouterr().out
    assert main(["token", "revoke", second["token"], "--database", database, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"revoked": second["token_id"]}
    line = refused(capsys, "revoke", second["token"], "--database", database)
    assert second["token_id"] in line
    assert second["token"] not in line
    for nothing in ("", "fb_"):
        line = refused(capsys, "revoke", nothing, "--database", database)
        assert "give the token's ID" in line


def test_a_token_that_nobody_could_read_is_revoked_again(
    capsys: pytest.CaptureFixture[str], database: str
) -> None:
    known = made(capsys, database, "--operator")["token_id"]
    command = (*SERVE, "token", "create", "--operator", "--database", database)
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=serve_environment(),
        )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "could not be written (No space left on device), and is revoked again" in line
    assert main(["token", "list", "--database", database, "--json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out)["tokens"]
    assert kept["token_id"] == known


def test_what_cannot_be_a_token_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], database: str
) -> None:
    made(capsys, database, "--operator")
    assert "--operator --job" in refused(capsys, "create", "--database", database)
    assert "job_id" in refused(capsys, "create", "--job", "a/b", "--database", database)
    note = ("--operator", "--note", "two\nlines")
    assert "note" in refused(capsys, "create", *note, "--database", database)
    assert "ACTION" in refused(capsys)
    assert "--database" in refused(capsys, "list", "--database", "mysql://db")
