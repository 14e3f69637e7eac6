"""Output of `flyball replay`: one recording as JSON, and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flyball_server.replay.replayed_runs import AbsoluteErrors, Replay, RunReplay


def replay_document(replayed: Replay) -> dict[str, Any]:
    """Return the document of one recording that `flyball replay --json` prints.

    `measured_s` and `measured_j` are of the recording, all others are predicted or computed.
    """
    return {
        "workload": replayed.recording.title,
        "emulated": replayed.recording.emulated,
        "runs": [_run_document(run) for run in replayed.runs],
        "mean_absolute_error_percent": _mean(replayed.absolute_errors),
        "largest_absolute_error_percent": {
            "time": replayed.absolute_errors.largest_time,
            "energy": replayed.absolute_errors.largest_energy,
        },
        "unchanged": _mean(replayed.unchanged),
        "tail_s": replayed.fit.tail_s,
        "blocking_power_w": list(replayed.fit.blocking_power_w),
        "notes": list(replayed.notes),
    }


def _mean(errors: AbsoluteErrors) -> dict[str, float]:
    return {"time": errors.mean_time, "energy": errors.mean_energy}


def _run_document(run: RunReplay) -> dict[str, Any]:
    predicted = run.predicted
    return {
        "name": run.run.name,
        "fitted": run.is_fitted,
        "measured_s": run.run.iterations.mean_s,
        "predicted_s": predicted.iteration_time_s,
        "predicted_s_interval": _about(predicted.iteration_time_s, run.time_half_width_s),
        "measured_j": run.run.energy_j,
        "predicted_j": predicted.energy_j,
        "predicted_j_interval": _about(predicted.energy_j, run.energy_half_width_j),
        "notes": list(run.notes),
    }


def _about(middle: float, half_width: float) -> list[float]:
    return [middle - half_width, middle + half_width]


def replay_text(replayed: Replay) -> str:
    """Return the replay as text: a row per run, the errors, and the uncertainties."""
    width = max(len(run.run.name) for run in replayed.runs)
    lines = [
        replayed.recording.title,
        f"{len(replayed.fit.fitted)} runs fitted, {len(replayed.held_out)} predicted from them;"
        " +- is the 90 % interval of a prediction",
        "",
        f"{'':{width}}          {'time of an iteration, s':42}  energy of an iteration, J",
        f"{'run':{width}}          {'measured':>9} {'predicted':>19} {'error':>9}"
        f"  {'measured':>10} {'predicted':>21} {'error':>9}",
        *(_row(run, width) for run in replayed.runs),
        "",
        *_errors(replayed),
        *_unsure(replayed),
    ]
    if replayed.recording.emulated:
        lines += ["", f"here {replayed.recording.origin}"]
    return "\n".join(lines)


def _row(run: RunReplay, width: int) -> str:
    predicted = run.predicted
    return (
        f"{run.run.name:{width}}  {'fitted' if run.is_fitted else '':6}"
        f"  {run.run.iterations.mean_s:9.4f}"
        f" {predicted.iteration_time_s:9.4f} +-{run.time_half_width_s:7.4f}"
        f" {run.time_error_percent:+7.2f} %"
        f"  {run.run.energy_j:10.1f} {predicted.energy_j:10.1f} +-{run.energy_half_width_j:8.1f}"
        f" {run.energy_error_percent:+7.2f} %"
    )


def _errors(replayed: Replay) -> list[str]:
    if not replayed.held_out:
        return ["every run was fitted, so none shows an error of prediction"]
    errors, unchanged = replayed.absolute_errors, replayed.unchanged
    first = replayed.recording.runs[0].name[:16]
    inside = [f"{covered} of {len(replayed.held_out)}" for covered in replayed.covered]
    rows = [
        ("", "time", "energy"),
        ("predicted, mean", _percent(errors.mean_time), _percent(errors.mean_energy)),
        ("predicted, largest", _percent(errors.largest_time), _percent(errors.largest_energy)),
        (f"all as {first}, mean", _percent(unchanged.mean_time), _percent(unchanged.mean_energy)),
        ("within the interval", *inside),
    ]
    return [
        "absolute error of the runs that were not fitted",
        *(f"{name:28}  {time:>12}  {energy:>12}" for name, time, energy in rows),
    ]


def _percent(value: float) -> str:
    return f"{value:.2f} %"


def _unsure(replayed: Replay) -> list[str]:
    named: Sequence[str] = [
        f"{run.run.name}: {note}" for run in replayed.runs for note in run.notes
    ]
    notes = [*replayed.notes, *named]
    return ["", *(f"note: {note}" for note in notes)] if notes else []
