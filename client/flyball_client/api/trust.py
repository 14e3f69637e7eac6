"""Certificate checks of planners, and the warning about tokens that are sent unencrypted."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import ssl
from functools import cache
from pathlib import Path

import httpx

from flyball_profiles.limited_file import read_bytes

CA_FILE_VARIABLE = "FLYBALL_CA_FILE"

# Not a fault of the file that is read.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

_logger = logging.getLogger(__name__)


class CaFileError(ValueError):
    """The file of CAs cannot be used."""


def trusted_context(base_url: str, ca_file: str | None) -> ssl.SSLContext | bool:
    """Return httpx's `verify` argument for this address.

    Args:
        base_url: Address of the planner; no file is read unless it is https.
        ca_file: PEM file of CAs; None: the file that `FLYBALL_CA_FILE` names, else the system's.

    Raises:
        CaFileError: The file cannot be used.
        OSError: This process or machine has too many files open, or no memory.
    """
    if httpx.URL(base_url).scheme == "http":
        return False  # saves loading the system's CAs
    file = ca_file or os.environ.get(CA_FILE_VARIABLE) or None
    try:
        if file is not None:
            read_bytes(Path(file))  # OpenSSL reads whatever it is, without an end
        return _context(file)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            raise
        why = "no PEM certificates" if isinstance(error, ssl.SSLError) else error
        raise CaFileError(f"{CA_FILE_VARIABLE}: {file}: cannot be used ({why})") from None


def _context(file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        if not error.filename or error.filename != os.environ.get("SSLKEYLOGFILE"):
            raise
        _logger.warning("SSLKEYLOGFILE: %s; TLS keys are not logged", error)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile=file)
    return context


@cache
def warn_of_plain_token(base_url: str) -> None:
    """Log once that the token is sent unencrypted over a network."""
    url = httpx.URL(base_url)
    if url.scheme == "http" and not _is_here(url.host):
        _logger.warning(
            "the token is sent to %s unencrypted; on a network that others can read, give the"
            " planner a certificate and an https:// address",
            base_url,
        )


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
