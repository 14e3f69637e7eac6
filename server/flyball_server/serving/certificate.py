"""Certificate of the planner, which follows its files."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from flyball_profiles.limited_file import read_bytes

_log = logging.getLogger(__name__)
# Files that are unchanged for this time are complete: a certificate and its key are written one
# after the other, s.
_SETTLED_S = 1.0

_Fingerprint = tuple[tuple[int, ...] | None, ...]


class CertificateError(ValueError):
    """The certificate or its key cannot be used.

    Attributes:
        file: the file that cannot be read; None: both can, but they do not fit.
        reason: what is wrong.
    """

    def __init__(self, file: Path | None, reason: str) -> None:
        super().__init__(reason if file is None else f"{file} cannot be read ({reason})")
        self.file = file
        self.reason = reason


def load_certificate(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a server's context with this certificate.

    Args:
        certificate: PEM file with the certificate and those between it and a CA.
        key: PEM file with its unencrypted key.

    Raises:
        CertificateError: they cannot be loaded.
    """
    for file in (certificate, key):
        try:
            read_bytes(file)
        except OSError as error:
            raise CertificateError(file, error.strerror or str(error)) from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password OpenSSL would prompt for that of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise CertificateError(
            None,
            f"{certificate} and {key} are not a PEM certificate and its unencrypted key ({reason})",
        ) from None
    except OSError as error:
        raise CertificateError(certificate, error.strerror or str(error)) from None
    return context


class ServedCertificate:
    """Certificate of new connections; open connections keep the certificate that they began with.

    Args:
        listening: context of the listener, which negotiates all connections.
        certificate: PEM file with the certificate chain.
        key: PEM file with its key.
    """

    def __init__(self, listening: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._current: ssl.SSLContext | None = None
        self._read = self._fingerprint()
        # A context of its own for each certificate: loading another into the listener's would
        # leave a certificate with a key of another type beside it.
        listening.sni_callback = self._choose

    async def watch(self) -> None:
        """Follow the files until cancelled: load what has changed, keep what cannot be loaded."""
        seen = self._read
        while True:
            await asyncio.sleep(_SETTLED_S)
            before, seen = seen, self._fingerprint()
            if before == seen != self._read:
                self._read = seen
                self._load()

    def _load(self) -> None:
        try:
            self._current = load_certificate(self._certificate, self._key)
        except CertificateError as error:
            _log.warning("the previous TLS certificate stays in use: %s", error)
        else:
            _log.info("new connections use the TLS certificate in %s", self._certificate)

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _by: ssl.SSLContext
    ) -> None:
        """Called by OpenSSL in every handshake, with or without a name."""
        if self._current is not None:
            connection.context = self._current

    def _fingerprint(self) -> _Fingerprint:
        return tuple(map(_state_of, (self._certificate, self._key)))


def _state_of(file: Path) -> tuple[int, ...] | None:
    """Return what changes with a file's content, rights or place; None: it is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
