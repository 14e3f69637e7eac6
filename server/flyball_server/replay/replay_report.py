"""Text that `flyball replay` prints of a recording."""

from __future__ import annotations

from flyball_server.replay.predicted_saving import PredictedSaving
from flyball_server.replay.replayed_runs import ErrorPercents, Replay, RunReplay


def replay_text(replayed: Replay) -> str:
    """Return the replay as text: a row per run, the errors, and the notes."""
    width = max(len(run.name) for run in replayed.runs)
    num_held_out = len(replayed.held_out)
    lines = [
        replayed.workload,
        f"{len(replayed.runs) - num_held_out} runs fitted, {num_held_out} predicted from them;"
        " +- is the 90 % interval of a prediction",
        "",
        f"{'':{width}}          {'time of an iteration, s':42}  energy of an iteration, J",
        f"{'run':{width}}          {'measured':>9} {'predicted':>19} {'error':>9}"
        f"  {'measured':>10} {'predicted':>21} {'error':>9}",
        *(_row(run, width) for run in replayed.runs),
        "",
        *_errors(replayed),
    ]
    of_runs = [f"{run.name}: {note}" for run in replayed.runs for note in run.notes]
    notes = [f"note: {note}" for note in (*replayed.notes, *of_runs)]
    emulated = [f"here {replayed.origin}"] if replayed.emulated else []
    for part in (notes, emulated):
        lines += ["", *part] if part else []
    return "\n".join(lines)


def _row(run: RunReplay, width: int) -> str:
    return (
        f"{run.name:{width}}  {'fitted' if run.fitted else '':6}"
        f"  {run.measured_s:9.4f}"
        f" {run.predicted_s:9.4f} +-{run.predicted_s_interval[1] - run.predicted_s:7.4f}"
        f" {run.time_error_percent:+7.2f} %"
        f"  {run.measured_j:10.1f}"
        f" {run.predicted_j:10.1f} +-{run.predicted_j_interval[1] - run.predicted_j:8.1f}"
        f" {run.energy_error_percent:+7.2f} %"
    )


def _errors(replayed: Replay) -> list[str]:
    if not replayed.held_out:
        return ["every run was fitted, so none shows an error of prediction"]

    def row(name: str, errors: ErrorPercents) -> str:
        return f"{name:28}  {errors.time:10.2f} %  {errors.energy:10.2f} %"

    inside = [f"{covered} of {len(replayed.held_out)}" for covered in replayed.covered]
    return [
        "absolute error of the runs that were not fitted",
        f"{'':28}  {'time':>12}  {'energy':>12}",
        row("predicted, mean", replayed.mean_absolute_error_percent),
        row("predicted, largest", replayed.largest_absolute_error_percent),
        row(f"all as {replayed.runs[0].name[:16]}, mean", replayed.unchanged),
        f"{'within the interval':28}  {inside[0]:>12}  {inside[1]:>12}",
    ]


def saving_text(saving: PredictedSaving, replayed: Replay) -> str:
    """Return the predicted saving as text."""
    origin = replayed.origin
    lines = [
        f"against {saving.baseline}, {origin}; fitted on all {len(replayed.runs)} runs; +- is the"
        " 90 % interval",
        f"{'':34}  {'energy saved':>20}  {'time':>20}",
    ]
    lines += [
        f"{f'{run.name}, {origin}':34}  {run.saving_percent:18.2f} %"
        f"  {run.slowdown_percent:+18.2f} %"
        for run in saving.measured
    ]
    plan, predicted = saving.predicted, "no plan within the recorded runs"
    if plan is not None:
        predicted = (
            f"{plan.saving_percent:9.2f} +-"
            f"{plan.saving_percent_interval[1] - plan.saving_percent:5.2f} %"
            f"  {plan.slowdown_percent:+10.2f} +-"
            f"{plan.slowdown_percent_interval[1] - plan.slowdown_percent:5.2f} %"
        )
    return "\n".join([*lines, f"{'Flyball, predicted':34}  {predicted}"])
