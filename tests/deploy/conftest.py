"""Metrics that a planner exports to Prometheus."""

from __future__ import annotations

from collections import defaultdict

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.planner.live import live_planner
from tests.planner.measuring import MeasuringRanks
from tests.planner.samples import rank_registration

from flyball_wire import routes


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Labels of every exported series by the name that a query uses.

    Of a planner with `job`, whose two ranks have trained, and `real`, of no emulated GPU.
    """
    chain = str(tmp_path_factory.mktemp("tls") / "chain.pem")
    trustme.CA().issue_cert("planner.example").cert_chain_pems[0].write_to_path(chain)
    # Named only: the test's own server answers without TLS.
    with live_planner(tls_certificate=chain, tls_key=chain) as planner:
        planner.put_planned_job()
        planner.put_job("real", emulated=False).raise_for_status()
        for rank in (0, 1):
            path = routes.fill(routes.RANK, job_id="real", rank=rank)
            body = rank_registration(rank, emulated=False)
            planner.http.put(path, json=body).raise_for_status()
        ranks = MeasuringRanks(planner)
        ranks.measure(10)
        ranks.take_newest_plan()
        text = planner.http.get(routes.METRICS).raise_for_status().text
    found: dict[str, set[str]] = defaultdict(set)
    # Exported only after measured steps at the highest clocks.
    found["flyball_measured_saved_energy_joules"] = {"training_job", "emulated"}
    found["up"] = set()
    for family in parse_text(text):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return dict(found)
