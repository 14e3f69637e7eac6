"""Images that others publish; where no registry can be reached, stand-ins under the same names.

A stand-in is Debian, made by debootstrap, with Debian's package of PostgreSQL, or with the Caddy
of the extra `dev`: Debian's own is too old for deploy/Caddyfile.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.containers.engine import Engine, EngineError
from tests.debian_packages import find_or_install
from tests.deploy.proxy import CADDY

_BASE = "python:3.11-slim-bookworm"
_STAND_INS = Path(__file__).with_name("stand_ins")
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_PULL_S, _DEBOOTSTRAP_S = 120.0, 600.0
# What a stand-in copies beside its own files.
_PROGRAMS = {"caddy": CADDY}
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def provide(engine: Engine, name: str) -> None:
    """Let the engine have this image: pulled, or else a stand-in."""
    if engine.has_image(name):
        return
    try:
        engine("pull", "--quiet", name, timeout_s=_PULL_S)
    except (EngineError, subprocess.TimeoutExpired):
        print(f"{name}: no registry answers; a stand-in is made")
        if name == _BASE:
            _make_base(engine)
        else:
            provide(engine, _BASE)
            with tempfile.TemporaryDirectory() as context:
                folder = _STAND_INS / name.partition(":")[0]
                shutil.copytree(folder, context, dirs_exist_ok=True)
                if (program := _PROGRAMS.get(folder.name)) is not None:
                    shutil.copy(program, context)
                # On the host's network: packages come from where the host has them.
                engine.build(Path(context), name, "--network", "host")


def _make_base(engine: Engine) -> None:
    debootstrap = find_or_install(lambda: shutil.which("debootstrap"), "debootstrap", "debootstrap")
    with tempfile.TemporaryDirectory() as folder:
        base, archive = Path(folder) / "base", Path(folder) / "base.tar"
        subprocess.run(
            (debootstrap, "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(base)),
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=_DEBOOTSTRAP_S,
        )
        (base / "usr/bin/python").symlink_to("python3")
        if _CERTIFICATES.is_file():  # whoever answers for pip's index here
            shutil.copy(_CERTIFICATES, base / _CERTIFICATES.relative_to("/"))
        subprocess.run(("tar", "-C", str(base), "-cf", str(archive), "."), check=True)
        engine("import", str(archive), _BASE, timeout_s=_PULL_S)
