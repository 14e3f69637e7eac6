"""Troubles of a browser's pages: errors on the console, failed requests, other hosts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, WebError

_OUR_HOSTS = {"127.0.0.1", "localhost"}
_LOADS_NOTHING = {"data", "blob", "about"}
# A page may end a request itself, such as a stream that it no longer follows.
_ENDED_BY_THE_PAGE = "net::ERR_ABORTED"


class PageWatch:
    """Collector of the troubles of all pages of a context, one line each."""

    def __init__(self, context: BrowserContext) -> None:
        self.troubles: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        context.on("requestfailed", self._on_failed)

    def allow(self, *patterns: str) -> None:
        """Expect troubles with one of these patterns: the test brings them about."""
        self._allowed += [re.compile(pattern) for pattern in patterns]

    def unexpected(self) -> list[str]:
        """Return the troubles that are not allowed."""
        return [
            trouble
            for trouble in self.troubles
            if not any(pattern.search(trouble) for pattern in self._allowed)
        ]

    def settle(self, page: Page) -> None:
        """Process the events of the browser until now."""
        page.wait_for_timeout(0)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            place = message.location
            self.troubles.append(
                f"console {message.type}: {message.text} ({place['url']}:{place['lineNumber']})"
            )

    def _on_error(self, error: WebError) -> None:
        self.troubles.append(f"uncaught: {error.error}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in _LOADS_NOTHING and parts.hostname not in _OUR_HOSTS:
            self.troubles.append(f"request to another host: {request.url}")

    def _on_failed(self, request: Request) -> None:
        if request.failure != _ENDED_BY_THE_PAGE:
            self.troubles.append(f"failed: {request.method} {request.url}: {request.failure}")
