"""Runs lowtime on one pipeline; it alone runs in lowtime's own environment.

`python lowtime_driver.py PROBLEM.json RESULT.json`. The problem: `unit_time_s`, `bound_s`,
`curves` (each a list of [time s, energy J, MHz] and its blocking power, W), `curve_of_node`,
`edges` ([before, after], by node). The result holds every plan that lowtime yielded, in order.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import networkx as nx  # type: ignore[import-untyped,unused-ignore]  # has no types
from lowtime.cost_model import (  # type: ignore[import-not-found]  # not in this environment
    ExponentialModel,
)
from lowtime.graph_utils import (  # type: ignore[import-not-found]
    add_sink_node,
    add_source_node,
)
from lowtime.operation import (  # type: ignore[import-not-found]
    CandidateExecutionOptions,
    ExecutionOption,
    Operation,
    OperationSpec,
)
from lowtime.solver import PhillipsDessouky  # type: ignore[import-not-found]

SOURCE, SINK = -1, -2


def solve(problem: dict[str, Any]) -> dict[str, Any]:
    """Fit, build and run until lowtime ends by itself, or the bound is over.

    The bound is looked at between its iterations, so an iteration is never cut off.
    """
    began_s = time.perf_counter()
    specs = [_spec(curve, problem["unit_time_s"]) for curve in problem["curves"]]
    fitted_s = time.perf_counter()
    operations = [Operation(specs[curve]) for curve in problem["curve_of_node"]]
    solver = PhillipsDessouky(_dag(operations, problem["edges"]))
    built_s = time.perf_counter()
    plans: list[dict[str, Any]] = []
    is_finished = True
    for step in solver.run():
        plans.append(
            {
                "time_units": step.quant_time,
                "cost_j": step.cost,
                "duration_units": [operation.duration for operation in operations],
                "frequency_mhz": [operation.assigned_knob for operation in operations],
            }
        )
        if time.perf_counter() - built_s > problem["bound_s"]:
            is_finished = False
            break
    return {
        "fit_s": fitted_s - began_s,
        "build_s": built_s - fitted_s,
        "run_s": time.perf_counter() - built_s,
        "is_finished": is_finished,
        "coefficients": [
            [float(value) for value in spec.cost_model.coefficients] for spec in specs
        ],
        "unit_bounds": [
            [operation.min_duration for operation in operations],
            [operation.max_duration for operation in operations],
        ],
        "plans": plans,
    }


def _spec(curve: dict[str, Any], unit_time_s: float) -> Any:  # noqa: ANN401 - lowtime has no types here
    """Candidate options by raw energy, then costs beyond waiting, then the exponential fit."""
    options = CandidateExecutionOptions(
        [
            ExecutionOption(real_time=time_s, unit_time=unit_time_s, cost=energy_j, knob=mhz)
            for time_s, energy_j, mhz in curve["points"]
        ]
    )
    for option in options.options:
        option.cost -= curve["blocking_power_w"] * option.quant_time * option.unit_time
    return OperationSpec(options=options, cost_model=ExponentialModel(options))


def _dag(operations: list[Any], edges: list[list[int]]) -> Any:  # noqa: ANN401 - networkx has no types here
    dag = nx.DiGraph()
    for node, operation in enumerate(operations):
        dag.add_node(node, op=operation)
    dag.add_edges_from(edges)
    add_source_node(dag, SOURCE)
    add_sink_node(dag, SINK)
    dag.graph["source_node"], dag.graph["sink_node"] = SOURCE, SINK
    return dag


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(
        json.dumps(solve(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))),
        encoding="utf-8",
    )
