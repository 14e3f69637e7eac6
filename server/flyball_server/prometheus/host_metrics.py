"""Metrics of what runs out on the planner's host: its certificate, and room for its database."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from flyball_profiles.limited_file import read_bytes
from flyball_server.jobs.errors import StoreError
from flyball_server.jobs.store.contract import JobStore, StoreSpace

_LOG = logging.getLogger(__name__)
_FIRST_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)
# Tags of DER.
_UTC_TIME, _VERSION = 0x17, 0xA0
# Bit of a length that is itself of several bytes.
_LONG_LENGTH = 0x80


class HostMetrics(Collector):
    """Collector of the certificate's end and the database's space.

    Args:
        store: store whose space is read.
        certificate: PEM file of the planner's certificate; None: plain HTTP.
    """

    def __init__(self, store: JobStore, certificate: Path | None) -> None:
        self._store = store
        self._certificate = certificate

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics without values; nothing is read."""
        return _families(None, None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics; what cannot be read, or does not exist here, has no value."""
        return _families(self._expiry(), self._space())

    def _expiry(self) -> datetime | None:
        if self._certificate is None:
            return None
        try:
            return certificate_expiry(read_bytes(self._certificate))
        except (OSError, ValueError) as error:
            _LOG.warning("the certificate is not in the metrics: %s", error)
            return None

    def _space(self) -> StoreSpace | None:
        try:
            return self._store.space()
        except StoreError as error:
            _LOG.warning("the database's size is not in the metrics: %s", error)
            return None


def _families(expiry: datetime | None, space: StoreSpace | None) -> list[GaugeMetricFamily]:
    return [
        GaugeMetricFamily(
            "flyball_certificate_expiry_timestamp_seconds",
            "End of the validity of the planner's own TLS certificate, s since 1970; no value with"
            " plain HTTP.",
            value=None if expiry is None else expiry.timestamp(),
        ),
        GaugeMetricFamily(
            "flyball_database_size_bytes",
            "Size of the database, bytes.",
            value=None if space is None else space.size_bytes,
        ),
        GaugeMetricFamily(
            "flyball_database_free_bytes",
            "Free space on the disk of the SQLite file, bytes; no value with PostgreSQL.",
            value=None if space is None else space.free_bytes,
        ),
    ]


def certificate_expiry(pem: bytes) -> datetime:
    """Return the end of the validity of the first certificate in a PEM file (RFC 5280, 4.1), UTC.

    Raises:
        ValueError: the file has no certificate that can be read.
    """
    found = _FIRST_CERTIFICATE.search(pem.decode("ascii", errors="replace"))
    if found is None:
        raise ValueError("the file has no PEM certificate")
    try:
        (_, certificate), *_ = _elements(ssl.PEM_cert_to_DER_cert(found[0]))
        (_, signed), *_ = _elements(certificate)
        fields = [element for element in _elements(signed) if element[0] != _VERSION]
        # serial number, signature, issuer, validity
        _, (tag, not_after) = _elements(fields[3][1])
        pattern = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(not_after.decode("ascii"), pattern).replace(tzinfo=UTC)
    except (ValueError, IndexError) as error:
        raise ValueError(f"the file's certificate cannot be read ({error})") from error


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element (X.690, 8.1)."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & _LONG_LENGTH:
            size = length & ~_LONG_LENGTH
            length, at = int.from_bytes(der[at : at + size]), at + size
        yield tag, der[at : at + length]
        at += length
