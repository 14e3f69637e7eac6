"""The Dockerfile's image as far as it can be had without an engine: its process, in a container."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.deploy.container import ROOT, Container, container, why_no_container
from tests.deploy.dockerfile import read_dockerfile
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import profile_csv, rank_registration, registration

IMAGE = read_dockerfile(ROOT / "Dockerfile")
VENV = Path(sys.prefix)
TOKEN = "an-operators-token-of-32-or-more"  # noqa: S105 - a test's
# What the image has under /opt/flyball, where this checkout has it.
BINDS = {
    VENV / "bin": "/opt/flyball/bin",
    VENV / "lib": "/opt/flyball/lib",
    VENV / "pyvenv.cfg": "/opt/flyball/pyvenv.cfg",
    ROOT / "deploy/docker/healthcheck.py": "/opt/flyball/healthcheck.py",
}
HEALTHCHECK = IMAGE.health_command[:-1]

_NO_CONTAINER = why_no_container()
in_a_container = pytest.mark.skipif(_NO_CONTAINER is not None, reason=str(_NO_CONTAINER))


@pytest.fixture(scope="module")
def planner() -> Iterator[Container]:
    """`docker run --read-only --tmpfs /tmp --env FLYBALL_TOKEN=... IMAGE`, when it answers."""
    with container(
        IMAGE.process,
        environment={**IMAGE.environment, "FLYBALL_TOKEN": TOKEN},
        user=IMAGE.user,
        folder=IMAGE.folder,
        binds=BINDS,
        writable=("/tmp", *IMAGE.volumes),  # noqa: S108 - the container's
    ) as running:
        running.wait_until_answered(IMAGE.health_command)
        yield running


@in_a_container
def test_the_planner_runs_as_a_user_without_rights_on_a_file_system_that_it_cannot_write(
    planner: Container,
) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{planner.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split() == ["65532"] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    mounts = [
        line.split() for line in Path(f"/proc/{planner.pid}/mountinfo").read_text().splitlines()
    ]
    options = {mount[4]: mount[5].split(",") for mount in mounts}
    for place in ("/", "/opt/flyball/bin", "/opt/flyball/lib", str(ROOT)):
        assert options[place][0] == "ro", place
    assert "noexec" in options["/tmp"]  # noqa: S108 - the container's
    volume = planner.run(("ls", *IMAGE.volumes)).stdout.split()
    assert "planner.sqlite" in volume


@in_a_container
def test_the_health_check_knows_a_path_that_is_answered_and_one_that_is_not(
    planner: Container,
) -> None:
    assert IMAGE.health_command == (*HEALTHCHECK, "/healthz")
    assert planner.run((*HEALTHCHECK, "/readyz")).returncode == 0
    missing = planner.run((*HEALTHCHECK, "/nothing"))
    assert (missing.returncode, missing.stdout[:8]) == (1, "/nothing")
    asleep = planner.run(("env", "FLYBALL_PORT=9", *HEALTHCHECK, "/healthz"))
    assert asleep.returncode == 1
    assert len(asleep.stdout.splitlines()) == 1


@in_a_container
def test_the_image_plans_though_it_can_write_but_its_volume_and_tmpfs(
    planner: Container,
) -> None:
    calls = [
        ("", registration()),
        ("/ranks/0", rank_registration(0)),
        ("/ranks/1", rank_registration(1)),
    ]
    put = (
        "import json, sys, httpx\n"
        "planner = httpx.Client(base_url=sys.argv[1], headers=[sys.argv[2:4]], timeout=200)\n"
        "for path, body in json.loads(sys.argv[4]):\n"
        "    planner.put('/api/v1/jobs/job' + path, json=body).raise_for_status()\n"
        "planner.put('/api/v1/jobs/job/profile', content=sys.argv[5],"
        " headers={'Content-Type': 'text/csv'}).raise_for_status()\n"
        "print(planner.get('/api/v1/jobs/job').json()['newest_version'])\n"
    )
    (port,) = IMAGE.ports
    url = f"http://127.0.0.1:{port}"
    arguments = (url, "Flyball-Token", TOKEN, json.dumps(calls), profile_csv())
    planned = planner.run(("python", "-c", put, *arguments), patience_s=200)
    assert planned.stdout == "1\n", planned.stderr


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
