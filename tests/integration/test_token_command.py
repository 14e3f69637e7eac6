"""`flyball token`: the first token is made before the planner runs, others while it does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.command_in_process import Done, flyball, printed, refusal
from tests.planner.live import SERVE, serve_environment, serve_process
from tests.planner.patience import PATIENCE_S

from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

Token = Callable[..., Done]


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'planner.sqlite'}"


@pytest.fixture
def token(database: str) -> Token:
    """Runs `flyball token` on the database."""

    def run(*arguments: str) -> Done:
        return flyball("token", *arguments, "--database", database)

    return run


def made(token: Token, *arguments: str) -> dict[str, str]:
    """Create a token and return the printed document."""
    found: dict[str, str] = json.loads(token("create", *arguments, "--json").stdout)
    return found


def test_the_first_token_is_made_before_the_planner_runs(tmp_path: Path, token: Token) -> None:
    operators = made(token, "--operator", "--note", "ada")
    with serve_process(tmp_path / "planner.sqlite") as served:
        assert served.http.get(routes.JOBS).status_code == 401
        headers = {TOKEN_HEADER: operators["token"]}
        assert served.http.get(routes.JOBS, headers=headers).status_code == 200
        # And while it runs, in the same database.
        jobs = made(token, "--job", "night")
        listed = served.http.get(routes.TOKENS, headers=headers).json()
        assert [token["job_id"] for token in listed] == [None, "night"]
        headers = {TOKEN_HEADER: jobs["token"]}
        assert served.http.get(routes.JOBS, headers=headers).json() == []
        assert served.http.get(routes.TOKENS, headers=headers).status_code == 403


def test_the_token_is_printed_once_and_listed_with_what_it_opens(
    tmp_path: Path, token: Token
) -> None:
    gone = made(token, "--operator")["token_id"]
    assert token("revoke", gone).returncode == 0
    assert "flyball token create --operator" in token("list").stdout
    first = made(token, "--operator", "--note", "ada")
    done = token("create", "--job", "night")
    assert done.returncode == 0
    assert "opens job night and nothing else" in done.stderr
    # A shell's $(flyball token create ...) is the token alone.
    _, public, secret = done.stdout.rstrip("\n").split("_", 2)
    assert not set(secret) & {"\n", " "}
    lines = [line.split() for line in token("list").stdout.splitlines()]
    assert [line[0] for line in lines] == ["ID", first["token_id"], public]
    assert (lines[1][1], lines[1][-1]) == ("operator", "ada")
    assert lines[2][1:3] == ["job", "night"]
    done = token("create", "--read-only")
    assert "reads everything and changes nothing" in done.stderr
    assert token("list").stdout.splitlines()[3].split()[1] == "read-only"
    listed = token("list", "--json")
    assert secret not in listed.stdout
    del first["token"]
    assert printed(listed)["tokens"][0] == first
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_a_revoked_token_is_gone_and_may_be_named_as_a_whole(token: Token) -> None:
    first, second = (made(token, "--operator") for _ in range(2))
    assert first["token_id"] in token("revoke", first["token_id"]).stdout
    revoked = printed(token("revoke", second["token"], "--json"))
    assert revoked == {"revoked": second["token_id"]}
    line = refusal(token("revoke", second["token"]))
    assert second["token_id"] in line
    assert second["token"] not in line
    for nothing in ("", "fb_"):
        assert "give the token's ID" in refusal(token("revoke", nothing))
    made(token, "--operator")
    assert "--operator --job --read-only" in refusal(token("create"))
    assert "not allowed with" in refusal(token("create", "--job", "night", "--read-only"))
    assert "job_id" in refusal(token("create", "--job", "a/b"))
    assert "note" in refusal(token("create", "--operator", "--note", "two\nlines"))
    assert "ACTION" in refusal(flyball("token"))
    assert "--database" in refusal(flyball("token", "list", "--database", "mysql://db"))


def test_a_token_that_nobody_could_read_is_revoked_again(token: Token, database: str) -> None:
    known = made(token, "--operator")["token_id"]
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
    (kept,) = printed(token("list", "--json"))["tokens"]
    assert kept["token_id"] == known
