"""A job's report as text, for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from flyball_client.cli.figures import aligned, energy_text, interval_text
from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.closed_loop import BaselineOrigin, Estimate, JobReport, VersionSavings
from flyball_wire.energy_factors import EnergyFactors, kwh_of


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
_TOO_FEW = "[too few steps]"


@dataclass(frozen=True, kw_only=True)
class _Section:
    """Texts of one plan version.

    Attributes:
        title: Version, policy and target.
        rows: Name, origin, time, energy and steps of each row of the table.
        notes: Lines below the table.
    """

    title: str
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def report_as_text(report: JobReport, factors: EnergyFactors) -> str:
    """Return the report for a terminal."""
    sections = [_section(report, version, factors) for version in report.versions]
    # One alignment for the tables of all versions.
    rows = [row for section in sections for row in (_HEADER, *section.rows)]
    table = iter(aligned(rows, "<<<<>"))
    lines = [_title(report), *_sums(report, factors)]
    for section in sections:
        lines += ["", section.title, *islice(table, 1 + len(section.rows)), *section.notes]
    return "\n".join([*lines, "", *_remarks(report)])


def report_as_markdown(report: JobReport, factors: EnergyFactors) -> str:
    """Return the report as Markdown."""
    lines = [f"# {_title(report)}", ""]
    lines += [f"- {line}" for line in _sums(report, factors)]
    for version in report.versions:
        section = _section(report, version, factors)
        lines += ["", f"## {section.title}", "", _cells(_HEADER), _cells(("---",) * len(_HEADER))]
        lines += [_cells(row) for row in section.rows]
        if section.notes:
            lines += ["", *section.notes]
    lines.append("")
    return "\n".join([*lines, *_remarks(report)])


_HEADER = ("", "", "time, s", "energy, J", "steps")


def _title(report: JobReport) -> str:
    gpus = "emulated GPUs" if report.emulated else "GPUs"
    return f"Report of job {report.job_id}: {report.num_ranks} {gpus}"


def _sums(report: JobReport, factors: EnergyFactors) -> list[str]:
    energy = (
        "energy not known: a rank could not read it"
        if report.energy_j is None
        else amounts_text(report.energy_j, factors)
    )
    how = _measured(report)
    lines = _headline(report)
    lines.append(f"all, {_steps(report.num_steps)}, {how}: {report.time_s:.1f} s, {energy}")
    if report.profiling_time_s is not None:
        cost = "energy not known"
        if report.profiling_energy_j is not None:
            cost = energy_text(report.profiling_energy_j)
        lines.append(f"profiling added, {how}: {report.profiling_time_s:.1f} s, {cost}")
    if report.delays is not None:
        lines.append(f"planned beside the instructions: {report.delays.text}")
    if report.num_unknown_steps:
        lines.append(
            f"not counted: {_steps(report.num_unknown_steps)} on plan versions that the planner's"
            " database does not have (restored to an older state)"
        )
    lines += report.notes
    lines += [deviation.text for deviation in report.deviations]
    if report.saved_j is not None:
        saved = _amounts(report.saved_j, factors)
        share = ""
        if report.saved_of_j:
            share = f"{100 * report.saved_j.mean / report.saved_of_j:.1f} %, "
        lines.append(f"saved by all versions, {how}: {share}{saved}")
    if report.order_advice is not None:
        lines.append(report.order_advice.text)
    return lines


def _headline(report: JobReport) -> list[str]:
    headline = report.headline
    if headline is None:
        return []
    how = _measured(report) if headline.is_measured else "predicted"
    return [f"{headline.text}, {how}", *headline.caveats]


def _section(report: JobReport, version: VersionSavings, factors: EnergyFactors) -> _Section:
    how = _measured(report)
    steps = str(version.num_steps)
    at_highest = version.baseline == BaselineOrigin.ITSELF
    rows = [
        ("plan", how, _estimate(version.time_s, ".4f"), _estimate(version.energy_j, ".2f"), steps),
        (
            "plan",
            "predicted",
            f"{version.predicted_time_s:.4f}",
            f"{version.predicted_energy_j:.2f}",
            "",
        ),
    ]
    if version.baseline_time_s is not None:
        baseline = (
            "highest clocks",
            how,
            _estimate(version.baseline_time_s, ".4f"),
            _estimate(version.baseline_energy_j, ".2f"),
            str(version.baseline_time_s.num_steps),
        )
        time = _estimate(version.slowdown_percent, "+.2f", " %")
        energy = _estimate(version.saving_percent, ".2f", " %", before="saves ")
        rows = [baseline, *rows, ("difference", how, time, energy, "")]
    if not at_highest:
        saving = f"saves {version.predicted_saving_percent:.2f} %"
        rows.append(("difference", "predicted", "", saving, ""))
    return _Section(
        title=f"Version {version.version}: {version.policy}, target {version.target}",
        rows=tuple(rows),
        notes=tuple(_notes(report, version, factors)),
    )


def _notes(report: JobReport, version: VersionSavings, factors: EnergyFactors) -> list[str]:
    lines: list[str] = []
    if version.saved_j is not None:
        saved = _amounts(version.saved_j, factors)
        lines.append(f"Saved in {_steps(version.num_steps)}, {_measured(report)}: {saved}.")
    lines.append(_baseline_note(report, version))
    if version.compared:
        baseline_j = version.predicted_energy_j / (1 - version.predicted_saving_percent / 100)
        savings = [
            f"{plan.name} {round(100 * (1 - plan.energy_j / baseline_j), 2) + 0.0:.2f} %"
            for plan in version.compared
        ]
        lines.append(f"Without clock changes, predicted savings: {', '.join(savings)}.")
    return [*lines, *(deviation.text for deviation in version.deviations)]


def _baseline_note(report: JobReport, version: VersionSavings) -> str:
    how_to = f" `flyball report {report.job_id} --compare {SUGGESTED_PAIRS}` measures both in turn."
    if any(other.baseline == BaselineOrigin.INTERLEAVED for other in report.versions):
        how_to = ""
    match version.baseline:
        case BaselineOrigin.INTERLEAVED:
            in_turn = "Steps at the highest clocks were run in turn with steps on the plan."
            return " ".join((in_turn, *version.caveats))
        case BaselineOrigin.APART:
            return f"{' '.join(version.caveats)}{how_to}"
        case BaselineOrigin.ITSELF:
            return "This version runs at the highest clocks only."
        case BaselineOrigin.NONE:
            return f"No step at the highest clocks was measured: the saving is not known.{how_to}"


def _remarks(report: JobReport) -> list[str]:
    interval = "[ ] is the 95 % confidence interval. Energy is that of"
    lines = [f"{interval} the GPUs, without hosts, network and cooling."]
    if report.energy_scope == EnergyScope.MODULE:
        lines = [
            f"{interval} whole modules, with their CPUs and memory, as the GPUs' counters count it;"
            " a module of several GPUs may count once for each."
        ]
    if report.emulated:
        lines.append("The GPUs are emulated: no figure here is a real GPU's.")
    return lines


def _steps(num_steps: int) -> str:
    return f"{num_steps} step" if num_steps == 1 else f"{num_steps} steps"


def _measured(report: JobReport) -> str:
    return "measured (emulated)" if report.emulated else "measured"


def _estimate(estimate: Estimate | None, form: str, unit: str = "", before: str = "") -> str:
    if estimate is None:
        return "not known"
    return f"{before}{estimate.mean:{form}}{unit} {interval_text(estimate, form) or _TOO_FEW}"


def _amounts(estimate: Estimate, factors: EnergyFactors) -> str:
    amounts = amounts_text(estimate.mean, factors)
    if estimate.low is None or estimate.high is None:
        return f"{amounts} {_TOO_FEW}"
    return f"{amounts} [{energy_text(estimate.low)}, {energy_text(estimate.high)}]"


def _cells(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
