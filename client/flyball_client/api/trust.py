"""Whom a client trusts to be its planner, and a word where its token could be read on the way."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from functools import cache

import httpx

CA_FILE_VARIABLE = "FLYBALL_CA_FILE"

_logger = logging.getLogger(__name__)


class CaFileError(ValueError):
    """The file of CAs cannot be used; the text names it."""


def trusted_context(base_url: str, ca_file: str | None) -> ssl.SSLContext | bool:
    """Return what `verify` of httpx is to be for this address.

    Args:
        base_url: the planner's; without https nothing is opened or read.
        ca_file: PEM file of CAs; None: as `FLYBALL_CA_FILE` says, else the system's.

    Raises:
        CaFileError: the file cannot be used.
    """
    if httpx.URL(base_url).scheme == "http":
        return False  # nothing to verify; otherwise httpx would load a bundle of CAs all the same
    file = ca_file or os.environ.get(CA_FILE_VARIABLE) or None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = "no PEM certificates" if isinstance(error, ssl.SSLError) else error
        raise CaFileError(f"{CA_FILE_VARIABLE}: {file}: cannot be used ({why})") from None


@cache
def warn_of_plain_token(base_url: str) -> None:
    """Say once in the log that others on the network could read the token."""
    url = httpx.URL(base_url)
    if url.scheme == "http" and not _is_here(url.host):
        _logger.warning(
            "the token goes to %s unencrypted, as all else does; where others can read the network,"
            " give the planner a certificate and an https:// address",
            base_url,
        )


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
