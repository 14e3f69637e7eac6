"""Results as rows with named columns: for CSV files, for JSON, and for a terminal."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from flyball_lab.evaluation.configurations import Configuration
from flyball_lab.evaluation.figures import Figure
from flyball_lab.evaluation.planned_run import RunResult
from flyball_wire.whole_file import result_file

Row = dict[str, str | int | float | None]
Results = Mapping[Configuration, RunResult]

_PRINTED = (
    ("time, s", "emulated_iteration_time_s", "z.4f"),
    ("differs, %", "time_difference_percent", "+z.3f"),
    ("energy, J", "emulated_energy_j", "z.1f"),
    ("differs, %", "energy_difference_percent", "+z.3f"),
    ("slowdown, %", "slowdown_percent", "+z.2f"),
    ("saving, %", "energy_saving_percent", "z.2f"),
    ("switches", "clock_switches_per_iteration", "d"),
)


def rows_of(figure: Figure, results: Results) -> list[Row]:
    """Return one row a run, compared with the first run of its group."""
    return [
        _row(figure, results[run], results[group[0]])
        for group in figure.groups.values()
        for run in group
    ]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows with all columns.

    Raises:
        CommandError: the file cannot be written.
    """
    with result_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def printed_table(figure: Figure, rows: Sequence[Row]) -> str:
    """Return the table for a terminal: a block for each group."""
    width = max(len(str(row["label"])) for row in rows)
    names = (f"{name:>11}" for name, _, _ in _PRINTED)
    heading = " ".join([f"{'':{width}}", *names, " held"])
    lines = [f"{figure.title} (emulated GPUs)", heading]
    of_groups = iter(rows)
    for group in figure.groups.values():
        own = [next(of_groups) for _ in group]
        first = own[0]
        lines.append(
            f"{first['model']} on {first['gpu']},"
            f" {first['data_parallel']} x {first['pipeline_parallel']},"
            f" {first['num_microbatches']} microbatches; profile {first['profile_origin']}"
        )
        for row in own:
            cells = (f"{format(row[key], form):>11}" for _, key, form in _PRINTED)
            held = row["peak_activations_by_stage"]
            lines.append(" ".join([f"{row['label']!s:{width}}", *cells, f" {held}"]))
    return "\n".join(lines)


def _row(figure: Figure, result: RunResult, reference: RunResult) -> Row:
    run = result.configuration
    model, manner = run.model, run.manner
    time_s, energy_j = result.emulated_iteration_time_s, result.emulated_energy_j
    size = model.microbatch_size
    return {
        "figure": figure.name,
        "model": model.name,
        "gpu": model.gpu,
        "profile_origin": model.origin,
        "data_parallel": run.num_pipelines,
        "pipeline_parallel": model.num_stages,
        "microbatch_size": size,
        "num_microbatches": run.num_microbatches,
        "label": manner.label,
        "policy": manner.policy,
        "schedule": manner.schedule,
        "reconfigure": manner.reconfigure,
        "emulated_iteration_time_s": _rounded(time_s, 9),
        "predicted_iteration_time_s": _rounded(result.predicted_iteration_time_s, 9),
        "time_difference_percent": _rounded(result.time_difference_percent, 4),
        "emulated_energy_j": _rounded(energy_j, 3),
        "predicted_energy_j": _rounded(result.predicted_energy_j, 3),
        "energy_difference_percent": _rounded(result.energy_difference_percent, 4),
        "emulated_throughput_microbatches_per_s": _rounded(result.microbatches_per_s, 4),
        "emulated_throughput_samples_per_s": _rounded(
            None if size is None else size * result.microbatches_per_s, 4
        ),
        "emulated_average_power_w": _rounded(energy_j / time_s, 2),
        "clock_switches_per_iteration": result.num_switches,
        "peak_activations_by_stage": " ".join(map(str, result.peak_activations)),
        "lower_bound_j": _rounded(result.lower_bound_j, 3),
        "compared_with": reference.configuration.manner.label,
        "normalized_throughput": _rounded(reference.emulated_iteration_time_s / time_s, 5),
        "normalized_energy": _rounded(energy_j / reference.emulated_energy_j, 5),
        "slowdown_percent": _rounded(100 * (time_s / reference.emulated_iteration_time_s - 1), 3),
        "energy_saving_percent": _rounded(100 * (1 - energy_j / reference.emulated_energy_j), 3),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    """Round off the errors of sums; -0.0 becomes 0.0."""
    return None if value is None else round(value, digits) + 0.0
