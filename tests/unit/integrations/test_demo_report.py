from __future__ import annotations

import io
import json

import pytest
from tests.unit.integrations.demo_results import demo_result

pytest.importorskip("rich", reason="needs the extra 'demo'")

from rich.console import Console

from flyball_lab.demo.report import print_report, result_document


def _report() -> str:
    result = demo_result()
    assert result.comparison is not None
    output = io.StringIO()
    print_report(
        Console(file=output, width=80),
        result.comparison,
        result.losses,
        plan_lines=["Stage 0 | [F0 1410 0.0]  B0 1200 1.5"],
        where_to_look=["look at http://127.0.0.1:1/docs"],
    )
    return output.getvalue()


def test_the_report_has_measured_and_predicted_beside_each_other_and_says_emulated() -> None:
    report = _report()

    assert report.count("(emulated)") == 4
    assert "emulated A100" in report
    assert "-0.0" not in report
    baseline = next(line for line in report.splitlines() if "baseline" in line)
    for cell in ("1.010 (+1.0 %)", "1.000", "101 (+1.0 %)", "100", "3"):
        assert cell in baseline
    saved = next(line for line in report.splitlines() if "saved" in line)
    assert "9.9 %" in saved  # 1 - 91/101, measured
    assert "10.0 %" in saved  # 1 - 90/100, predicted


def test_the_report_shows_the_loss_the_plan_as_it_is_and_where_to_look() -> None:
    lines = _report().splitlines()

    text = " ".join(line.strip() for line in lines)
    assert "Median time and mean energy of the steps given" in text
    assert "Loss 4.50 -> 3.50 in 3 steps" in text
    assert "Stage 0 | [F0 1410 0.0]  B0 1200 1.5" in lines
    assert "look at http://127.0.0.1:1/docs" in lines


def test_the_document_of_a_success_is_json_and_called_emulated() -> None:
    document = json.loads(json.dumps(result_document(demo_result(), failed=None)))

    assert document["emulated"] is True
    assert document["succeeded"] is True
    assert document["measured"]["plan"]["energy_j"] == 91.0
    assert document["predicted"]["baseline"] == {"iteration_time_s": 1.0, "energy_j": 100.0}


def test_the_document_of_a_run_without_a_plan_has_nulls_and_the_reason() -> None:
    result = demo_result(plan=None, measured_plan=None)

    document = result_document(result, failed="no plan came")

    assert document["succeeded"] is False
    assert document["failed_condition"] == "no plan came"
    assert document["plan_version"] is None
    assert document["predicted"] == {"baseline": None, "plan": None}
    assert document["measured"]["plan"] is None
