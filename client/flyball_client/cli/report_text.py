"""A job's report as text, for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from flyball_client.cli.figures import aligned, energy_text, interval_text
from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.energy_factors import EnergyFactors, kwh_of
from flyball_wire.savings import BaselineOrigin, DeviationKind, Estimate, JobReport, VersionSavings


def amounts_text(energy_j: float, factors: EnergyFactors) -> str:
    """Return an energy in all units: `214.3 kJ, 0.05953 kWh, 0.01786 EUR, 22.62 g CO2`."""
    cost, co2_g = factors.cost_of(energy_j), factors.co2_g_of(energy_j)
    parts = [energy_text(energy_j), f"{kwh_of(energy_j):.4g} kWh"]
    if cost is not None:
        parts.append(f"{cost:.4g} {factors.currency}")
    if co2_g is not None:
        is_large = abs(co2_g) >= 1e3
        parts.append(f"{co2_g / 1e3:.4g} kg CO2" if is_large else f"{co2_g:.4g} g CO2")
    return ", ".join(parts)


def converted(estimate: Estimate, convert: Callable[[float], float | None]) -> Estimate | None:
    """Return an estimate in another unit; None: there is no factor."""
    mean = convert(estimate.mean)
    if mean is None:
        return None
    return replace(
        estimate,
        mean=mean,
        low=None if estimate.low is None else convert(estimate.low),
        high=None if estimate.high is None else convert(estimate.high),
    )


SUGGESTED_PAIRS = 60
# Notes that are shown without being asked for, and versions in the table.
_FIRST_NOTES, _NEWEST_VERSIONS = 2, 3
_TOO_FEW = "[too few steps]"
_HEADER = ("", "steps", "time, s", "energy, J", "more time, %", "less energy, %")
_Row = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Parts of a report, from top to bottom.

    Attributes:
        verdict: saving with its interval, and what it is of.
        rows: table of the versions, without its header.
        sums: lines below the table.
        notes: plain sentences that matter, the most important first.
    """

    verdict: str
    rows: tuple[_Row, ...]
    sums: tuple[str, ...]
    notes: tuple[str, ...]


def report_as_text(report: JobReport, factors: EnergyFactors, *, all_notes: bool = False) -> str:
    """Return the report for a terminal: verdict, table, sums and notes.

    Args:
        report: the planner's report.
        factors: price and emissions of energy.
        all_notes: true: all notes and versions; false: those that matter most.
    """
    parts = _parts(report, factors, all_notes=all_notes)
    lines = [parts.verdict, ""]
    if parts.rows:
        lines += [*aligned([_HEADER, *parts.rows], "<>>><<"), ""]
    lines += parts.sums
    if parts.notes:
        lines += ["", *parts.notes]
    return "\n".join(lines)


def report_as_markdown(
    report: JobReport, factors: EnergyFactors, *, all_notes: bool = False
) -> str:
    """Return the same as Markdown."""
    parts = _parts(report, factors, all_notes=all_notes)
    table = [_HEADER, ("---",) * len(_HEADER), *parts.rows] if parts.rows else []
    lines = [f"# {parts.verdict}", "", *map(_cells, table), "", *_listed(parts.sums)]
    if parts.notes:
        lines += ["", "## Notes", "", *_listed(parts.notes)]
    return "\n".join(lines)


def _listed(texts: Iterable[str]) -> Iterator[str]:
    return (f"- {text}" for text in texts)


def _parts(report: JobReport, factors: EnergyFactors, *, all_notes: bool) -> _Parts:
    versions = report.versions if all_notes else report.versions[-_NEWEST_VERSIONS:]
    notes = list(dict.fromkeys(map(sentence, _notes(report))))
    if not all_notes and len(notes) > _FIRST_NOTES + 1:
        more = len(notes) - _FIRST_NOTES
        notes = notes[:_FIRST_NOTES]
        notes.append(f"{more} more note{'s' * (more > 1)}: flyball report {report.job_id} --notes")
    return _Parts(
        verdict=_verdict(report),
        rows=tuple(_rows(report, versions)),
        sums=tuple(_sums(report, factors)),
        notes=tuple(notes),
    )


def _verdict(report: JobReport) -> str:
    on = f"on {report.num_ranks} {'emulated ' * report.emulated}GPU{'s' * (report.num_ranks > 1)}"
    if report.headline is None:
        return f"{report.job_id}: no saving yet, {on}"
    how = f"measured {on}" if report.headline.is_measured else f"predicted for a job {on}"
    return f"{report.job_id}: {report.headline.text}, {how}"


# ------------------------------------------------------------------ the table


def _rows(report: JobReport, versions: Iterable[VersionSavings]) -> Iterator[_Row]:
    """Yield two rows for each version, below the baseline that it is compared with."""
    how, before = _measured(report), None
    for version in versions:
        baseline = (version.baseline_time_s, version.baseline_energy_j)
        if version.baseline_time_s is not None and baseline != before:
            before = baseline
            steps = str(version.baseline_time_s.num_steps)
            time_s, energy_j = _mean(baseline[0], ".4f"), _mean(baseline[1], ".2f")
            yield (f"highest clocks, {how}", steps, time_s, energy_j, "", "")
        yield (
            f"v{version.version} ({version.policy}, {version.target}), {how}",
            str(version.num_steps),
            _mean(version.time_s, ".4f"),
            _mean(version.energy_j, ".2f"),
            _estimate(version.slowdown_percent, "+.2f"),
            _estimate(version.saving_percent, ".2f"),
        )
        saving = f"{version.predicted_saving_percent:.2f}"
        yield (
            f"v{version.version}, predicted",
            "",
            f"{version.predicted_time_s:.4f}",
            f"{version.predicted_energy_j:.2f}",
            "",
            "" if version.baseline == BaselineOrigin.ITSELF else saving,
        )


def _mean(estimate: Estimate | None, form: str) -> str:
    return "not known" if estimate is None else f"{estimate.mean:{form}}"


def _estimate(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return "not known"
    return f"{estimate.mean:{form}} {interval_text(estimate, form) or _TOO_FEW}"


def _cells(cells: _Row) -> str:
    return f"| {' | '.join(cells)} |"


# ------------------------------------------------------------------ the lines below


def _sums(report: JobReport, factors: EnergyFactors) -> Iterator[str]:
    how = _measured(report)
    energy = "an energy that a rank could not read"
    if report.energy_j is not None:
        energy = amounts_text(report.energy_j, factors)
    yield f"All {_steps(report.num_steps)}: {report.time_s:.1f} s, {energy}, {how}."
    if report.saved_j is not None:
        yield f"Saved so far: {_saved(report.saved_j, report.saved_of_j, factors)}, {how}."
    scope = "the GPUs alone"
    if report.energy_scope == EnergyScope.MODULE:
        scope = (
            "whole modules, with their CPUs and memory; a module of several GPUs may count once for"
            " each"
        )
    yield f"[ ] is a 95 % confidence interval. Energies are of {scope}."
    if report.emulated:
        yield "The GPUs are emulated: no figure here is a real GPU's."


def _saved(saved_j: Estimate, saved_of_j: float | None, factors: EnergyFactors) -> str:
    bounds = _TOO_FEW
    if saved_j.low is not None and saved_j.high is not None:
        bounds = f"[{energy_text(saved_j.low)}, {energy_text(saved_j.high)}]"
    if saved_j.includes_zero:
        return f"no measurable amount {bounds}"
    share = f"{100 * saved_j.mean / saved_of_j:.1f} %, " if saved_of_j else ""
    energy, separator, others = amounts_text(saved_j.mean, factors).partition(", ")
    return f"{share}{energy} {bounds}{separator}{others}"


def _notes(report: JobReport) -> Iterator[str]:
    """Yield what limits the figures or lies behind them, the most important first."""
    yield from report.notes
    newest = report.versions[-1] if report.versions else None
    caveats = () if report.headline is None else report.headline.caveats
    if newest is not None:
        caveats = tuple(dict.fromkeys((*caveats, *newest.caveats)))
        how_to = _how_to_compare(report, newest)
        if how_to:
            caveats = (" ".join((*caveats[:1], how_to)), *caveats[1:])
    yield from caveats[:1]
    yield from _profiling(report)
    yield from caveats[1:]
    deviations = (*(newest.deviations if newest is not None else ()), *report.deviations)
    # A change of version is no disturbance.
    yield from (
        deviation.text
        for deviation in sorted(deviations, key=lambda each: each.kind == DeviationKind.UNSETTLED)
    )
    if report.num_unknown_steps:
        yield (
            f"{_steps(report.num_unknown_steps)} on plans that the planner's database does not have"
            " are left out: it was restored to an older state."
        )
    if newest is not None and newest.compared:
        yield _fixed_clocks(newest)
    if report.delays is not None:
        yield f"Besides the instructions, the plan counts {report.delays.text}"
    if report.order_advice is not None:
        yield report.order_advice.text
    for version in report.versions[:-1]:
        own = (*version.caveats, *(deviation.text for deviation in version.deviations))
        yield from (f"Version {version.version}: {text}" for text in own)


def _profiling(report: JobReport) -> Iterator[str]:
    if not report.num_profiling_steps:
        return
    cost = "; what they cost was not measured"
    if report.profiling_time_s is not None:
        cost = f", which added {report.profiling_time_s:.1f} s"
        if report.profiling_energy_j is not None:
            cost += f" and {energy_text(report.profiling_energy_j)}"
    were = "was" if report.num_profiling_steps == 1 else "were"
    yield f"{_steps(report.num_profiling_steps)} {were} profiling{cost}."


def _how_to_compare(report: JobReport, newest: VersionSavings) -> str:
    """Return how to measure the saving, or how to measure it better; empty: it is measured well."""
    command = f"`flyball report {report.job_id} --compare {SUGGESTED_PAIRS}`"
    match newest.baseline:
        case BaselineOrigin.APART:
            return f"{command} measures plan and baseline in turn."
        case BaselineOrigin.NONE:
            return f"{command} measures the saving."
        case _:
            return ""


def _fixed_clocks(version: VersionSavings) -> str:
    baseline_j = version.predicted_energy_j / (1 - version.predicted_saving_percent / 100)
    names = {"constant": "one clock for each stage", "global": "one clock for all stages"}
    savings = [
        f"{names.get(plan.name, plan.name)} would save"
        f" {round(100 * (1 - plan.energy_j / baseline_j), 2) + 0.0:.2f} %"
        for plan in version.compared
    ]
    return f"Without clock changes, {' and '.join(savings)}, predicted."


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter and ends with a full stop."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "`", ")")) else f"{text}."


def _steps(num_steps: int) -> str:
    return f"{num_steps} step" if num_steps == 1 else f"{num_steps} steps"


def _measured(report: JobReport) -> str:
    return "measured (emulated)" if report.emulated else "measured"
