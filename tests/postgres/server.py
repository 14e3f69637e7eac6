"""A private PostgreSQL of one test process: made when first asked for, gone at its end.

Tests ask for the fixture `postgres_database` (the address of an empty database of their own) or
`postgres_server`, both from `tests/postgres/fixtures.py` and known to all tests. For faults:

    postgres_server.stop()             # connections end as when an administrator stops it
    postgres_server.stop(kindly=False) # as when it crashes
    postgres_server.start()            # again, on the same port, with what it held

A test that stops it starts it again before it ends, in a `finally`.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from tests.debian_packages import find_or_install
from tests.deploy.compose import read_compose
from tests.planner.ports import free_port

PATIENCE_S = 60.0
USER = "flyball"
PASSWORD = "a-secret-of-tests"  # noqa: S105 - of a server that ends with the tests
# Nothing here has to survive a power cut.
_OPTIONS = ("fsync=off", "full_page_writes=off", "max_connections=200")


class PostgresServer:
    """A PostgreSQL on loopback.

    Args:
        binaries: the folder of `initdb` and `postgres`.
        folder: of its own; it must be reachable for the account that PostgreSQL runs as.
    """

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._data = folder / "data"
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self.port = free_port()

    def make(self) -> None:
        """Make its files."""
        password_file = self.folder / "password"
        password_file.write_text(PASSWORD)
        account = _account()
        for path in (self.folder, password_file):
            if account is not None:
                shutil.chown(path, account.pw_uid, account.pw_gid)
        command = [str(self._binaries / "initdb"), "--pgdata", str(self._data), "--username", USER]
        command += ["--auth", "scram-sha-256", "--pwfile", str(password_file), "--no-sync"]
        command += ["--encoding", "UTF8", "--locale", "C.UTF-8"]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, **_as(account)
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def start(self) -> None:
        """Run it until it answers; nothing if it runs."""
        if self._process is not None:
            return
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        options = (*_OPTIONS, f"port={self.port}", "listen_addresses=127.0.0.1")
        for option in (*options, f"unix_socket_directories={self.folder}"):
            command += ["-c", option]
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **_as(_account())
            )
        self._wait_until_it_answers()

    def stop(self, *, kindly: bool = True) -> None:
        """End it; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT if kindly else signal.SIGQUIT)
            process.wait(PATIENCE_S)

    def address(self, name: str = "postgres") -> str:
        """The address of a database."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    @property
    def user_id(self) -> int:
        """The account that it runs as."""
        account = _account()
        return os.geteuid() if account is None else account.pw_uid

    @contextmanager
    def database_in(self, folder: Path) -> Iterator[str]:
        """The address of a new, empty database whose files are in this folder."""
        self.execute(
            sql.SQL("CREATE TABLESPACE elsewhere LOCATION {}").format(sql.Literal(str(folder)))
        )
        try:
            with self.database() as address:
                name = sql.Identifier(address.rpartition("/")[2])
                self.execute(sql.SQL("ALTER DATABASE {} SET TABLESPACE elsewhere").format(name))
                yield address
        finally:
            self.execute(sql.SQL("DROP TABLESPACE elsewhere"))

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The address of a new database, dropped at the end.

        Args:
            template: name of the database that it is a copy of; by default it is empty.
        """
        name = sql.Identifier(f"test_{next(self._numbers)}")
        copied = sql.Identifier(template)
        self.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, copied))
        try:
            yield self.address(name.as_string().strip('"'))
        finally:
            self.start()
            self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))

    def execute(self, statement: sql.SQL | sql.Composed) -> None:
        """Run a statement as administrator."""
        with closing(psycopg.connect(self.address(), autocommit=True)) as connection:
            connection.execute(statement)

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self.address(), connect_timeout=5).close()
            except psycopg.OperationalError:
                log = self.folder / "postgres.log"
                is_starting = self._process.poll() is None and time.monotonic() < deadline_s
                assert is_starting, log.read_text()
                time.sleep(0.02)
            else:
                return


@contextmanager
def private_postgres(binaries: Path | None = None) -> Iterator[PostgresServer]:
    """A server of one's own until the block ends.

    Args:
        binaries: the folder of `initdb` and `postgres`; None: those of `postgres_binaries`.

    Raises:
        MissingProgramError: there are no binaries, and none could be installed.
    """
    binaries = postgres_binaries() if binaries is None else binaries
    # Not in pytest's folder, which is closed to the account that PostgreSQL runs as.
    with tempfile.TemporaryDirectory(prefix="flyball-postgres-") as folder:
        server = PostgresServer(binaries, Path(folder))
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.stop(kindly=False)


def postgres_binaries() -> Path:
    """The folder of `initdb` and `postgres`; on Debian installed where they are missing.

    Raises:
        MissingProgramError: there are none, and none could be installed.
    """
    where = "initdb on PATH or in /usr/lib/postgresql/*/bin"
    return find_or_install(_find_binaries, where, "postgresql")


def _find_binaries() -> Path | None:
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    found = binaries_by_version()
    return found.get(compose_version()) or found.get(max(found, default=""))


def binaries_by_version() -> dict[str, Path]:
    """Return the folders of Debian's PostgreSQLs on this machine, by major version."""
    files = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return {file.parents[1].name: file.parent for file in files}


def compose_version() -> str:
    """Return the major version that docker-compose.yml starts."""
    image: str = read_compose()["services"]["postgres"]["image"]
    return image.removeprefix("postgres:").partition("-")[0]


def _account() -> pwd.struct_passwd | None:
    """Whom to run PostgreSQL as, which refuses root; None: as ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _as(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
