"""The certificate's end and the database's space, as the metrics tell them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from prometheus_client import CollectorRegistry
from tests.planner.stores import TemporaryJobStore, opened_store

from flyball_server.prometheus.host_metrics import HostMetrics, certificate_expiry


def issued(until: datetime, kind: trustme.KeyType = trustme.KeyType.ECDSA) -> bytes:
    """A chain of two certificates that the first of them ends."""
    ca = trustme.CA()
    chain = ca.issue_cert("planner.example", not_after=until, key_type=kind).cert_chain_pems
    return b"".join(part.bytes() for part in [*chain, ca.cert_pem])


@pytest.mark.parametrize("kind", list(trustme.KeyType))
# From 2050 on a certificate writes its times in another form (RFC 5280, 4.1.2.5).
@pytest.mark.parametrize("year", [2030, 2049, 2050, 2120])
def test_the_end_of_a_certificate_is_read(kind: trustme.KeyType, year: int) -> None:
    until = datetime(year, 2, 28, 23, 59, 58, tzinfo=UTC)
    assert certificate_expiry(b"text above\n" + issued(until, kind)) == until


def test_what_is_no_certificate_is_a_value_error_wherever_it_is_broken() -> None:
    whole = issued(datetime(2030, 1, 1, tzinfo=UTC))
    first = whole[: whole.index(b"-----END")]
    middle = len(first) // 2
    footer = b"-----END CERTIFICATE-----\n"
    for broken in (b"", b"\xff" * 100, first, first[:middle], first[:60] + b"\n" + footer):
        with pytest.raises(ValueError, match="certificate"):
            certificate_expiry(broken)


def told(collector: HostMetrics) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    return {one.name: one.value for family in registry.collect() for one in family.samples}


def test_what_is_not_there_has_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = {"flyball_database_size_bytes", "flyball_database_free_bytes"}
    store = opened_store()
    assert set(told(HostMetrics(store, None))) == database
    missing = HostMetrics(store, tmp_path / "missing.pem")
    with caplog.at_level(logging.WARNING):
        assert set(told(missing)) == database
    assert "the certificate is not in the metrics" in caplog.text
    chain = tmp_path / "chain.pem"
    chain.write_bytes(issued(datetime(2030, 1, 1, tzinfo=UTC)))
    closed = HostMetrics(TemporaryJobStore(), chain)
    expiry = "flyball_certificate_expiry_timestamp_seconds"
    assert told(closed) == {expiry: datetime(2030, 1, 1, tzinfo=UTC).timestamp()}
