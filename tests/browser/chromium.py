"""A headless Chromium of Debian's, driven by Playwright, for tests and screenshots.

Playwright downloads nothing: it drives the browser that the machine has.
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
NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--no-sandbox",  # it runs as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Nothing but this machine is reached, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@contextmanager
def private_chromium() -> Iterator[Browser]:
    """A browser of one's own until the block ends; it must end in the thread it began in.

    Meanwhile no other event loop runs in this thread: Playwright's does.

    Raises:
        MissingProgramError: there is none, and none could be installed.
    """
    # Not on top: what needs no browser is tested without Playwright too.
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
    """Return where the browser is; on Debian it is installed where it is missing.

    Raises:
        MissingProgramError: there is none, and none could be installed.
    """
    # Text is drawn with the fonts there are: without any, all letters are boxes.
    return find_or_install(_find, f"{', '.join(NAMES)} on PATH", "chromium", "fonts-dejavu-core")


def _find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)
