"""Every file under deploy/, the Dockerfile and docker-compose.yml: well formed, and true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from tests.architecture.test_documentation import commands, parser_of
from tests.deploy.compose import COMPOSE, MUST_BE_SET, ROOT, SECRETS, read_compose
from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.kubernetes import environment_of
from tests.planner.patience import PATIENCE_S
from tests.postgres.server import PostgresServer, compose_version

from flyball_server.settings import Settings, SettingsError, load_settings
from flyball_wire import routes

DEPLOY = ROOT / "deploy"
IMAGE = read_dockerfile(ROOT / "Dockerfile")
UNIT = DEPLOY / "systemd/flyball-planner.service"
RELEASE_WORKFLOW = ".github/workflows/release.yml"
GUARD_UNIT = DEPLOY / "systemd/flyball-guard.service"
# 0 is the best, 100 no protection at all; the guard has capabilities, and the GPUs.
EXPOSURES = {UNIT: 20, GUARD_UNIT: 45}
FILES = tuple(
    file
    for file in (
        ROOT / "Dockerfile",
        ROOT / ".dockerignore",
        COMPOSE,
        *sorted(DEPLOY.rglob("*")),
    )
    if file.is_file() and "__pycache__" not in file.parts
)


def run(*command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A tool of this environment."""
    tool = shutil.which(command[0], path=str(Path(sys.executable).parent)) or command[0]
    return subprocess.run(
        (tool, *command[1:]),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def variables_of(*packages: str) -> set[str]:
    """Every FLYBALL_* variable that the packages' sources name."""
    sources = (file for package in packages for file in (ROOT / package).rglob("*.py"))
    named = {name for file in sources for name in re.findall(r"FLYBALL_[A-Z_]+", file.read_text())}
    fields = Settings.model_fields if "server" in packages else ()
    return (named - {"FLYBALL_"}) | {f"FLYBALL_{field.upper()}" for field in fields}


def unit_lines(section: str, unit: Path = UNIT) -> list[tuple[str, str]]:
    """The settings in one section of a systemd unit."""
    text = re.split(r"^\[(\w+)\]$", unit.read_text(), flags=re.MULTILINE)
    lines = dict(zip(text[1::2], text[2::2], strict=True))[section].splitlines()
    return [
        (name, value)
        for name, is_set, value in (line.partition("=") for line in lines)
        if is_set and not name.startswith("#")
    ]


# ------------------------------------------------------------------ well formed


@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", "Dockerfile"),
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"),
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", RELEASE_WORKFLOW),
        ("yamllint", "--strict", "-c", "deploy/.yamllint.yml", "docker-compose.yml", "deploy"),
        ("shellcheck", "deploy/slurm/train.sbatch"),
    ],
    ids=lambda command: " ".join((command[0], Path(command[-1]).name)),
)
def test_a_linter_has_nothing_to_say(
    command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    said = run(*command)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("unit", EXPOSURES, ids=lambda unit: unit.stem)
def test_a_unit_is_one_that_systemd_takes_and_finds_well_protected(
    unit: Path, tmp_path: Path
) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on PATH")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/flyball/bin/flyball", "/bin/true"))
    verified = run("systemd-analyze", "verify", "--man=no", str(copy))
    assert (verified.returncode, verified.stderr) == (0, "")
    threshold = f"--threshold={EXPOSURES[unit]}"
    exposed = run("systemd-analyze", "security", "--offline=true", threshold, str(copy))
    assert exposed.returncode == 0, exposed.stdout


# ------------------------------------------------------------------ true


def test_every_tag_of_the_image_is_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pages = (*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md")
    for file in (*FILES, *pages):
        tags = set(re.findall(r"(?<![\w.-])flyball:(\d[\w.-]*)", file.read_text()))
        assert tags <= {project["version"]}, file


def test_every_variable_that_a_file_names_is_a_setting() -> None:
    known = variables_of("client", "server", "integrations")
    for file in FILES:
        named = set(re.findall(r"FLYBALL_[A-Z_]*[A-Z]", file.read_text()))
        assert named <= known, file


def test_every_flyball_command_that_a_file_shows_is_one_that_flyball_takes() -> None:
    shown = []
    for file in FILES:
        text = re.sub(r"\\\n", " ", file.read_text())
        shown += re.findall(r"(?:^|[\s/`(])flyball ([a-z]+\b[^`|&>#\n(]*)", text, re.MULTILINE)
    lines = [words for line in shown if (words := shlex.split(line)) and words[0] in commands()]
    assert {("serve",), ("token", "create", "--job", "llama")} <= {tuple(words) for words in lines}
    for name, *arguments in lines:
        parser_of(name).parse_args(arguments)


def test_the_planner_takes_the_settings_that_each_file_gives_it() -> None:
    secrets = {
        "database": "postgresql://flyball:secret@db:5432/flyball?sslmode=require",
        "token": SECRETS["FLYBALL_TOKEN"],
    }
    environments = {
        "Dockerfile": IMAGE.environment,
        "compose": IMAGE.environment | read_compose()["services"]["planner-1"]["environment"],
        "kubernetes": IMAGE.environment | environment_of("Deployment", "flyball-planner", secrets),
        "systemd": dict(
            value.split("=", 1) for name, value in unit_lines("Service") if name == "Environment"
        ),
        "systemd's file": dict(
            line.lstrip("#").split("=", 1)
            for line in (DEPLOY / "systemd/planner.env.example").read_text().splitlines()
            if re.match(r"#?FLYBALL_\w+=.", line) and "TLS" not in line
        ),
    }
    planners = variables_of("server")
    for where, environment in environments.items():
        ours = {name for name in environment if name.startswith("FLYBALL_")}
        assert ours <= planners, where
        assert ours, where
        try:
            with mock.patch.dict(os.environ, environment):
                settings = load_settings()
        except SettingsError as error:
            pytest.fail(f"{where}: {error}")
        assert settings.port == 7787
        if where in {"compose", "kubernetes"}:
            assert settings.token == SECRETS["FLYBALL_TOKEN"]
            assert settings.database.startswith("postgresql://")


def test_compose_stops_with_one_line_for_each_secret_that_is_missing() -> None:
    text = "\n".join(
        line for line in COMPOSE.read_text().splitlines() if not line.lstrip().startswith("#")
    )
    missing = dict(MUST_BE_SET.findall(text))
    assert set(missing) == set(SECRETS)
    assert all(message.startswith("set it to ") for message in missing.values())
    assert "$" not in MUST_BE_SET.sub("", text)  # so nothing has a default


def test_the_services_of_compose_fit_together() -> None:
    made = read_compose()
    services = made["services"]
    planners = [name for name in services if name.startswith("planner-")]
    assert len(planners) == 2
    addresses = [f"{name}:{port}" for name in planners for port in IMAGE.ports]
    assert services["proxy"]["environment"]["PLANNERS"].split() == addresses
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"][0]["targets"] == addresses
    assert scrape["metrics_path"] == routes.METRICS
    for name, service in services.items():
        assert ":" in service["image"], name
        assert not service["image"].endswith(":latest"), name
        assert set(service.get("secrets", ())) <= set(made["secrets"]), name
        assert set(service["networks"]) <= set(made["networks"]), name
        assert set(service.get("depends_on", ())) <= set(services), name
        assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source == SECRETS["TLS_FOLDER"]:
                continue
            exists = (ROOT / source).is_file() if source[0] == "." else source in made["volumes"]
            assert exists, f"{name}: {volume}"
    # The database is reached by the planners alone.
    assert [n for n in services if "database" in services[n]["networks"]] == [*planners, "postgres"]
    assert "ports" not in services["planner-1"]
    for name in ("prometheus", "grafana"):  # for this machine alone, without rights
        assert {port.split(":")[0] for port in services[name]["ports"]} == {"127.0.0.1"}
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
    for name in planners:
        # libpq's variable: a password with any character will do.
        assert services[name]["environment"]["PGPASSWORD"] == SECRETS["POSTGRES_PASSWORD"]
        database = urlsplit(services[name]["environment"]["FLYBALL_DATABASE"])
        assert (database.hostname, database.password) == ("postgres", None)
        assert services["postgres"]["environment"]["POSTGRES_USER"] == database.username


def test_the_postgresql_of_compose_is_the_one_that_the_tests_ran(
    postgres_server: PostgresServer,
) -> None:
    with closing(psycopg.connect(postgres_server.address())) as connection:
        version = connection.info.server_version // 10000
    if str(version) != compose_version():
        pytest.skip(f"this machine has PostgreSQL {version}")
    operations = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert f"tested with PostgreSQL {version} " in operations.replace("|", " ")


def test_compose_asks_the_planner_as_the_image_does_whether_it_is_ready() -> None:
    service = read_compose()["services"]["planner-2"]
    assert service["healthcheck"]["test"] == ["CMD", *IMAGE.health_command[:-1], routes.READY]
    assert IMAGE.health_command[-1] == routes.HEALTH
