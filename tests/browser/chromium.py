"""A headless Chromium of Debian's, driven by Playwright, for tests and screenshots.

Playwright drives the installed browser and downloads none.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.debian_packages import find_or_install

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE_S = 60.0
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--no-sandbox",  # it runs as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Other hosts cannot be reached.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@contextmanager
def private_chromium() -> Iterator[Browser]:
    """Run a browser until the block ends, in the same thread.

    No other event loop can run in this thread meanwhile.

    Raises:
        MissingProgramError: no browser is installed, and none could be.
    """
    # Imported here: a test without a browser needs no Playwright.
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    path = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=list(_ARGUMENTS), timeout=1e3 * PATIENCE_S
        )
        try:
            yield browser
        finally:
            browser.close()


def chromium_path() -> str:
    """Return the path of the browser; on Debian a missing one is installed.

    Raises:
        MissingProgramError: no browser is installed, and none could be.
    """
    # Without a font all letters are boxes.
    return find_or_install(
        _find, f"{', '.join(NAMES)} on PATH", "chromium-headless-shell", "fonts-dejavu-core"
    )


def _find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)
