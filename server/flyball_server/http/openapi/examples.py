"""Examples of the wire's types in the API's description, made from one example per field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import MappingProxyType
from typing import Any, cast, get_args, get_type_hints

from flyball_wire import closed_loop, messages, online_profiling, plan_options, read_models

PROFILE_CSV = """stage,instruction,frequency,time,energy
0,forward,1410,0.10,30.0
0,forward,1200,0.11,26.0
0,backward,1410,0.20,62.0
0,backward,1200,0.22,54.0
1,forward,1410,0.08,24.0
1,forward,1200,0.09,21.0
1,backward,1410,0.16,50.0
1,backward,1200,0.18,43.0
"""

JSON_PROFILE = {
    "rows": [
        {
            "stage": int(stage),
            "instruction": kind,
            "frequency": int(mhz),
            "time": float(time_s),
            "energy": float(energy_j),
        }
        for stage, kind, mhz, time_s, energy_j in (
            line.split(",") for line in PROFILE_CSV.splitlines()[1:]
        )
    ]
}

_TOKEN_ID = "3f0c9a5d1b7e4826"  # noqa: S105 - its public part


def _estimate(mean: float, half_width: float) -> dict[str, float]:
    low, high = round(mean - half_width, 4), round(mean + half_width, 4)
    return {"mean": mean, "low": low, "high": high, "num_steps": 60}


_OF_FIELD: Mapping[str, object] = MappingProxyType(
    {
        "acknowledged_version": 1,
        "activation_bytes": None,
        "active_version": 2,
        "baseline_energy_j": 498.2,
        "baseline_iteration_time_s": 0.86,
        "blocking_power_w": [83.6],
        "bubble_fraction": 0.316667,
        "chunk": 0,
        "chunks": [0, 0, 0, 0],
        "client_version": "0.1.0",
        "clock_mhz": [1410, 1200, 1200, 1410],
        "clocks": "plan",
        "created_at": "2026-01-05T09:30:00+00:00",
        "critical_path": [[0, 0], [1, 0], [1, 1], [1, 2], [1, 3], [0, 3]],
        "current_step": 12,
        "deadline_s": 0.92,
        "dp_rank": 0,
        "duration_s": [0.1, 0.11, 0.22, 0.2],
        "emulated": True,
        "energy_error_j": 0.11,
        "energy_j": 442.9,
        "extra_energy_j": -812.0,
        "extra_time_s": 9.4,
        "first_step": 16,
        "float_s": [0.0, 0.19, 0.08, 0.0],
        "frequency_mhz": 1410,
        "from_time": "2026-11-21T22:00:00+01:00",
        "gap_percent": 0.13,
        "gpu_name": "emulated NVIDIA A100-SXM4-80GB",
        "gpu_uuid": "EMULATED-0",
        "last_seen_at": "2026-01-05T09:37:02.117000+00:00",
        "host": "node-1",
        "instead_of": "1f1b",
        "instruction": "forward",
        "is_as_planned": True,
        "is_caught_up": True,
        "is_planned": True,
        "iteration_time_s": 0.86,
        "job_id": "gpt2-demo",
        "kind": "plan",
        "kinds": ["forward", "forward", "backward", "backward"],
        "largest_slowdown": 0.071,
        "last_step": 479,
        "line": 'attach(..., schedule="envpipe", p2p="pulled", extra_forwards=[1,0])',
        "lower_bound_j": 442.3,
        "microbatches": [0, 1, 0, 1],
        "most_held": 3.0,
        "most_held_now": 2.0,
        "name": "envelope, balanced",
        "newest_version": 2,
        "next_change": "2026-11-20T19:00:00+00:00",
        "next_post_s": 1.0,
        "note": "night runs",
        "num_clock_misses": 0,
        "num_left_out": 1,
        "num_measured_pairs": 24,
        "num_microbatches": 2,
        "num_overruns": 0,
        "num_pairs": 60,
        "num_power_capped": 0,
        "num_present": 2,
        "num_probes": 1080,
        "num_ranks": 2,
        "num_registered": 2,
        "num_stages": 2,
        "num_steps": 480,
        "num_thermally_capped": 0,
        "num_unplanned": 0,
        "plan_version": 1,
        "plan_versions": [2],
        "policy": "frontier",
        "predicted_energy_j": 442.9,
        "predicted_iteration_time_s": 0.86,
        "predicted_saving_percent": 11.1,
        "predicted_time_s": 0.86,
        "problem": None,
        "profiling_energy_j": None,
        "profiling_time_s": None,
        "rank": 0,
        "reason": "slow",
        "saved_j": _estimate(3250.1, 158.7),
        "saving_percent": _estimate(10.87, 0.51),
        "schedule": "1f1b",
        "slowdown": 1.15,
        "slowdown_limit": 0.1,
        "slowdown_percent": _estimate(0.1, 0.09),
        "sm_clock_mhz": 1297.5,
        "solve_s": 0.33,
        "source": "announced",
        "stage": 0,
        "stage_clock_mhz": [1300.0, 1410.0],
        "start_s": [0.0, 0.1, 0.4, 0.7],
        "state": "planned",
        "step": 479,
        "stored": 1,
        "target": "fastest",
        "current_target": "power:8000",
        "time_error_s": 0.00002,
        "time_s": 0.8613,
        "timezone": "Europe/Berlin",
        "token": f"fb_{_TOKEN_ID}_EXAMPLE-OF-A-SECRET-SHOWN-ONCE",
        "token_id": _TOKEN_ID,
        "until_time": None,
        "version": 2,
    }
)
_MEASURED_BASELINE = {
    "measured_baseline_time_s": _estimate(0.8604, 0.0007),
    "measured_baseline_energy_j": _estimate(498.5, 2.3),
}
_PLAN_DOCUMENT = {
    "policy": "frontier",
    "reconfigure": "balanced",
    "schedule": "1f1b",
    "target": "fastest",
    "num_stages": 2,
    "num_microbatches": 1,
    "blocking_power_w": [83.6, 83.6],
    "iteration_time_s": 0.54,
    "energy_j": 211.1,
    "baseline": {"iteration_time_s": 0.54, "energy_j": 211.1},
    "saving_percent": 0.0,
    "slowdown_percent": 0.0,
    "lower_bound_j": None,
    "gap_percent": None,
    "solve_s": 0.002,
    "stages": [[["forward", 0, 1410], ["backward", 0, 1410]]] * 2,
}
_RECORDED_RUNS = {
    "pp": 2,
    "num_microbatches": 1,
    "schedule": "1f1b",
    "runs": [
        {
            "name": name,
            "clocks_mhz": [[mhz, mhz]] * 2,
            "iterations": {"count": 60, "time_s_mean": time_s, "time_s_deviation": 0.002},
            "energy_j_per_stage": [energy_j] * 2,
            "instruction_times": [
                {
                    "stage": stage,
                    "instruction": kind,
                    "frequency_mhz": mhz,
                    "time_s_mean": 0.25 * time_s,
                    "samples": 60,
                }
                for stage in (0, 1)
                for kind in ("forward", "backward")
            ],
        }
        for name, mhz, time_s, energy_j in (
            ("version-1", 1410, 0.54, 110.2),
            ("version-2", 1200, 0.61, 98.4),
        )
    ],
}
# Fields of one type that differ from those above.
_OF_TYPE: Mapping[type, Mapping[str, object]] = MappingProxyType(
    {
        closed_loop.ComparisonStatus: {"state": "running"},
        online_profiling.ProfilingStatus: {"state": "probing", "blocking_power_error_w": [0.9]},
        online_profiling.ProbedPoint: {"time_s": 0.0502, "energy_j": 23.8},
        closed_loop.RecordedRuns: {"document": _RECORDED_RUNS, "left_out": []},
        closed_loop.JobReport: {"time_s": 412.8, "energy_j": 214310.5},
        closed_loop.VersionSavings: {
            "time_s": _estimate(0.8613, 0.0007),
            "energy_j": _estimate(444.3, 2.2),
            "baseline_time_s": _estimate(0.8604, 0.0007),
            "baseline_energy_j": _estimate(498.5, 2.3),
            "baseline": "interleaved",
            "num_steps": 60,
        },
        closed_loop.TimetableWindow: {
            "from_time": "17:00",
            "until_time": "20:00",
            "target": "power:8000",
            "days": ["mon", "tue", "wed", "thu", "fri"],
        },
        messages.Acknowledgement: {"version": 1},
        messages.Health: {"status": "ok", "version": "0.1.0"},
        messages.PlanView: {"plan": _PLAN_DOCUMENT},
        messages.RankPlan: {
            "instructions": [["forward", 0, 1410], ["backward", 0, 1200]],
        },
        messages.RegisteredRank: {
            "acknowledged_version": None,
            "current_step": None,
            "run_id": "6440f4e8a1b40",
        },
        plan_options.TargetChange: {"policy": "uniform"},
        read_models.FrontierPoint: {"iteration_time_s": 0.9187, "energy_j": 442.9},
        read_models.JobOverview: _MEASURED_BASELINE,
        read_models.PredictedIteration: {"saving_percent": 11.1},
        read_models.TimelineRow: {"energy_j": [30.0, 26.0, 54.0, 62.0], "blocking_power_w": 70.0},
    }
)


def example(kind: Any) -> Any:  # noqa: ANN401 - any type in, JSON values of any depth out
    """Return an example of a wire type, or of a list or an option of one, as JSON data.

    Raises:
        KeyError: a field without a default has no example here.
    """
    if not is_dataclass(kind):
        inner = example(get_args(kind)[0])
        return inner if type(None) in get_args(kind) else [inner]
    if kind is messages.JsonProfile:
        return JSON_PROFILE
    chosen = {**_OF_FIELD, **_OF_TYPE.get(cast("type", kind), {})}
    hints = get_type_hints(kind)
    found = {}
    for field in fields(kind):
        if field.name in chosen:
            found[field.name] = chosen[field.name]
        elif field.default is not MISSING:
            found[field.name] = field.default
        else:
            found[field.name] = _of_parts(field.name, hints[field.name])
    return found


def _of_parts(name: str, kind: Any) -> Any:  # noqa: ANN401 - as above
    """Return an example of a field that holds other wire types."""
    parts = [kind, *get_args(kind)]
    if not any(is_dataclass(part) for part in parts):
        raise KeyError(name)
    return example(kind)
