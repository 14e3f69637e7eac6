"""Commands whose result finds no room: one line, and what was on the disk stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.command_in_process import Done, flyball, one_pipeline, refusal
from tests.planner.disks import SmallDisk, small_disk_at

from flyball_server.jobs.store.databases import make_job_store

SHAPE = ("--microbatches", "4", "--blocking-power", "10")
Command = Callable[[Path, Path], Done]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk_at(tmp_path / "disk", 1) as made:
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "ballast"}


def plan(folder: Path, file: Path) -> Done:
    return flyball("plan", one_pipeline(folder), *SHAPE, "-o", file)


def plot_of_frontier(folder: Path, file: Path) -> Done:
    return flyball("frontier", one_pipeline(folder), *SHAPE, "--points", "2", "--plot", file)


def of_plan(command: str, option: str) -> Command:
    def run(folder: Path, file: Path) -> Done:
        made = folder / "plan.json"
        assert plan(folder, made).returncode == 0
        return flyball(command, folder / "profile.csv", made, option, file)

    return run


def converted(folder: Path, file: Path) -> Done:
    return flyball("convert", one_pipeline(folder), file, "--to", "profile", "--wide", "--force")


def joined(folder: Path, file: Path) -> Done:
    return flyball("profile", "join", one_pipeline(folder), "-o", file, "--force")


COMMANDS: dict[str, Command] = {
    "plan.json": plan,
    "frontier.png": plot_of_frontier,
    "frontier.svg": plot_of_frontier,
    "timeline.png": of_plan("simulate", "--plot"),
    "trace.json": of_plan("export", "--chrome-trace"),
    "wide.csv": converted,
    "joined.csv": joined,
}


@pytest.mark.parametrize(("name", "command"), COMMANDS.items(), ids=COMMANDS)
def test_a_result_without_room_leaves_the_disk_as_it_was(
    name: str, command: Command, disk: SmallDisk, tmp_path: Path
) -> None:
    if name.endswith(("png", "svg")):
        pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    file = disk.folder / name
    for text in (None, "of before"):
        if text is not None:
            file.write_text(text)
        before = contents(disk.folder)
        with disk.filled():
            line = refusal(command(tmp_path, file))
            assert contents(disk.folder) == before
        assert f"{file}" in line
        assert "cannot be written" in line
    assert command(tmp_path, file).returncode == 0
    assert set(contents(disk.folder)) == {name}


def test_a_backup_or_a_restore_without_room_leaves_nothing(disk: SmallDisk, tmp_path: Path) -> None:
    of_planner, backup = f"sqlite:///{tmp_path / 'planner.sqlite'}", tmp_path / "planner.backup"
    store = make_job_store(of_planner)
    store.open()
    store.close()
    with disk.filled():
        refusal(flyball("db", "backup", disk.folder / "backup", "--database", of_planner))
    assert contents(disk.folder) == {}
    flyball("db", "backup", backup, "--database", of_planner)
    database = disk.folder / "restored.sqlite"
    restore = ("db", "restore", backup, "--database", f"sqlite:///{database}")
    with disk.filled():
        assert str(database) in refusal(flyball(*restore))
        assert set(contents(disk.folder)) <= {"restored.sqlite.lock"}
    assert flyball(*restore).returncode == 0
    before = contents(disk.folder)
    with disk.filled():
        refusal(flyball(*restore, "--replace"))
    assert contents(disk.folder) == before
