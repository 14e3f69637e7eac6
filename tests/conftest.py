"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings
from tests.browser.fixtures import browser, browser_context, browser_page, page_watch
from tests.postgres.fixtures import postgres_database, postgres_server

__all__ = [
    "browser",
    "browser_context",
    "browser_page",
    "page_watch",
    "postgres_database",
    "postgres_server",
]

# An example may wait for a compiler or a slow machine: nothing here is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Run in a shell's background, we and all our children would ignore Ctrl-C, which some of them
# are sent; a handler of Python's becomes the default action in a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
