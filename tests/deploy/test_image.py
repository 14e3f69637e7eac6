"""The Dockerfile's image as far as it can be had without an engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.acceptance.killed_planners import in_mounts_of_its_own, planner_on
from tests.deploy.compose import ROOT
from tests.deploy.dockerfile import read_dockerfile
from tests.planner.live import live_planner
from tests.planner.patience import PATIENCE_S
from tests.planner.ports import free_port

from flyball_wire import routes

IMAGE = read_dockerfile(ROOT / "Dockerfile")


def test_a_planner_that_can_write_only_to_its_volume_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert IMAGE.user == "65532:65532"
    (volume,) = IMAGE.volumes
    database = IMAGE.environment["FLYBALL_DATABASE"]
    assert database.startswith(f"sqlite:///{volume}/")
    monkeypatch.setenv("TMPDIR", volume)
    monkeypatch.setenv("HOME", "/nowhere")
    alone = in_mounts_of_its_own(
        f"mount -t tmpfs tmpfs {Path(volume).parent}",
        f"mkdir {volume}",
        "mount -o remount,bind,ro /",
        "! touch /written 2>/dev/null",
    )
    with planner_on(database, *alone) as planner:
        planner.start()
        planner.put_job()
        assert planner.job().state == "planned"


def test_the_health_check_knows_a_path_that_is_answered_and_one_that_is_not() -> None:
    (*command, path) = IMAGE.health_command
    assert path == routes.HEALTH
    (script,) = (source for source, target in IMAGE.copied if target == command[1])

    def check(path: str, port: int | None) -> tuple[int, str]:
        checked = subprocess.run(
            (sys.executable, ROOT / script, path),
            env=os.environ | {"FLYBALL_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return checked.returncode, checked.stdout

    with live_planner() as planner:
        port = planner.http.base_url.port
        assert check(routes.READY, port) == (0, "")
        status, said = check("/nothing", port)
        assert (status, said.split()[:2]) == (1, ["/nothing:", "404"])
    status, said = check(routes.HEALTH, free_port())
    assert (status, len(said.splitlines())) == (1, 1)


def _files(folder: Path) -> Iterator[Path]:
    """Every file below, without what .dockerignore leaves out everywhere (`**/...`)."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    left_out = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    for file in [folder] if folder.is_file() else folder.rglob("*"):
        if file.is_file() and not any(fnmatch(p, i) for i in left_out for p in file.parts):
            yield file


def _is_sent(file: Path) -> bool:
    """Return whether the build context has it, by .dockerignore's lines that begin with `!`."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = [ROOT / line[1:] for line in lines if line.startswith("!")]
    return any(file == path or path in file.parents for path in sent)


def test_what_the_dockerfile_copies_makes_the_whole_wheel(tmp_path: Path) -> None:
    context = tmp_path / "context"
    for source, _ in IMAGE.copied:
        sent = [file for file in _files(ROOT / source) if _is_sent(file)]
        assert sent, source
        for file in sent:
            target = context / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")
    subprocess.run(
        (sys.executable, "-m", "pip", "wheel", *options, str(tmp_path), str(context)),
        check=True,
        timeout=PATIENCE_S,
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    roots = (ROOT / name for name in ("client", "server", "integrations", "profiles"))
    assert packed == {
        str(file.relative_to(root))
        for root in roots
        for package in root.glob("flyball_*")
        for file in _files(package)
    }


def test_the_image_is_installed_with_extras_that_there_are() -> None:
    extras = re.findall(r"\[([\w,]+)\]", IMAGE.requirement)[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"server", "postgres", "otel"} == set(extras)
    assert set(extras) <= set(project["optional-dependencies"])
