"""Programs that tests need are installed once, by one of those that look for them."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import debian_packages
from tests.debian_packages import MissingProgramError, find_or_install
from tests.planner.patience import PATIENCE_S

NUM_LOOKING = 4


class Apt:
    """Stands for apt-get: knows no package until it was updated, then `program` alone."""

    def __init__(self, program: Path) -> None:
        self.asked: list[str] = []
        self._program = program
        self._is_updated = False
        self._busy = threading.Lock()

    def run(self, command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        """As subprocess.run does."""
        is_alone = self._busy.acquire(blocking=False)
        assert is_alone, "two at a time"
        try:
            self.asked.append(command[1])
            known = self._is_updated and "program" in command
            if command[1] == "update":
                self._is_updated = True
            elif known:
                self._program.touch()
            else:
                return subprocess.CompletedProcess(command, 100, "", "no such package")
            return subprocess.CompletedProcess(command, 0, "", "")
        finally:
            self._busy.release()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is not there yet, on a Debian where we are root."""
    monkeypatch.setattr(debian_packages, "_LOCK", tmp_path / "lock")
    monkeypatch.setattr(debian_packages, "_failures", {})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return tmp_path / "program"


@pytest.fixture
def apt(program: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    made = Apt(program)
    monkeypatch.setattr(subprocess, "run", made.run)
    return made


def found(program: Path) -> Path | None:
    return program if program.exists() else None


def test_of_many_who_look_one_installs_and_all_find(program: Path, apt: Apt) -> None:
    def look() -> Path:
        return find_or_install(lambda: found(program), "program on PATH", "program")

    with ThreadPoolExecutor(NUM_LOOKING) as threads:
        looking = [threads.submit(look) for _ in range(NUM_LOOKING)]
        assert {each.result(PATIENCE_S) for each in looking} == {program}
    assert apt.asked == ["install", "update", "install"]


def test_what_cannot_be_installed_is_told_and_not_tried_again(program: Path, apt: Apt) -> None:
    for _ in range(2):
        with pytest.raises(MissingProgramError, match=r"no other on PATH.*no such package"):
            find_or_install(lambda: found(program), "other on PATH", "other")
    assert apt.asked == ["install", "update", "install"]


def test_what_is_there_is_not_installed(program: Path, apt: Apt) -> None:
    program.touch()
    assert find_or_install(lambda: found(program), "program on PATH", "program") == program
    assert apt.asked == []


def test_without_the_right_to_install_it_is_told(
    program: Path, apt: Apt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MissingProgramError, match="there is no program on PATH"):
        find_or_install(lambda: found(program), "program on PATH", "program")
    assert apt.asked == []
