"""EnvPipe's figures as lists of runs, with Flyball's frontier added to each.

Models, microbatches and policies are those of EnvPipe's scripts `fig9_a.sh` to `fig13.sh`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flyball_lab.evaluation.configurations import (
    BASELINE,
    ENVELOPE_1F1B,
    ENVELOPE_DEFAULT,
    ENVELOPE_GREEDY,
    ENVPIPE,
    FITTED,
    FRONTIER_1F1B,
    FRONTIER_ENVPIPE,
    UNIFORM,
    Configuration,
    Manner,
    Model,
    fitted_model,
    with_heavier_last_stage,
)

_V100_MODELS = ("bert-336m", "gpt-125m", "megatron-125m", "resnet-152")
_RTX3090_MODELS = ("bert-1.3b", "bert-3.9b", "gpt-350m", "megatron-350m", "megatron-760m")
_MULTI_NODE = ((2, "megatron-1.3b-pp8"), (4, "megatron-1.3b-pp4"))
_FRONTIERS = (FRONTIER_1F1B, FRONTIER_ENVPIPE)
# Title, models, and what each of them runs with.
_BY_MODEL: dict[str, tuple[str, tuple[str, ...], tuple[Manner, ...]]] = {
    "9": (
        "throughput and energy of the models",
        (*_V100_MODELS, *_RTX3090_MODELS),
        (BASELINE, UNIFORM, ENVPIPE, *_FRONTIERS),
    ),
    "10": (
        "what each part brings",
        ("bert-1.3b", "gpt-350m"),
        (
            *(BASELINE, UNIFORM, ENVELOPE_1F1B, ENVELOPE_DEFAULT, ENVELOPE_GREEDY, ENVPIPE),
            *_FRONTIERS,
        ),
    ),
    "11": (
        "reconfiguration policies",
        _V100_MODELS,
        (BASELINE, ENVELOPE_DEFAULT, ENVELOPE_GREEDY, ENVPIPE, *_FRONTIERS),
    ),
}
LAST_STAGE_FACTOR = 1.3


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: runs in groups, the first of each group the one that others are compared with.

    Attributes:
        name: as `--figure` takes it.
        title: of table and plot.
        groups: group's name -> its runs.
    """

    name: str
    title: str
    groups: dict[str, tuple[Configuration, ...]]

    @property
    def runs(self) -> tuple[Configuration, ...]:
        """All runs, group by group."""
        return tuple(run for group in self.groups.values() for run in group)


FIGURE_NAMES = ("9", "10", "11", "12", "13", "orders")


def make_figure(name: str, others: Sequence[Model]) -> Figure:
    """Return a figure of EnvPipe's evaluation.

    Args:
        name: one of FIGURE_NAMES.
        others: models beside EnvPipe's own: shipped and given profiles.
    """
    if name == "12":
        return _multi_node()
    if name == "13":
        return _microbatches([*map(fitted_model, _V100_MODELS), *others])
    if name == "orders":
        own = map(fitted_model, (*_V100_MODELS, *_RTX3090_MODELS))
        return _orders([*own, *others])
    title, names, manners = _BY_MODEL[name]
    return Figure(
        name=name,
        title=f"Figure {name}: {title}",
        groups=_by_model([*map(fitted_model, names), *others], manners),
    )


def _by_model(
    models: Sequence[Model], manners: Sequence[Manner]
) -> dict[str, tuple[Configuration, ...]]:
    return {_label(model): _group(model, manners, model.num_microbatches) for model in models}


def _label(model: Model, detail: str = "") -> str:
    """Return a group's name in two lines, with the origin of a profile that is not fitted."""
    parts = (model.gpu, detail, "" if model.origin == FITTED else model.origin)
    return f"{model.name}\n{', '.join(part for part in parts if part)}"


def _group(
    model: Model, manners: Sequence[Manner], num_microbatches: int, num_pipelines: int = 1
) -> tuple[Configuration, ...]:
    return tuple(
        Configuration(
            model=model,
            manner=manner,
            num_microbatches=num_microbatches,
            num_pipelines=num_pipelines,
        )
        for manner in manners
    )


def _multi_node() -> Figure:
    manners = (BASELINE, ENVPIPE, *_FRONTIERS)
    groups: dict[str, tuple[Configuration, ...]] = {}
    for num_pipelines, name in _MULTI_NODE:
        model = fitted_model(name, num_pipelines=num_pipelines)
        group = _label(model, f"{num_pipelines} x {model.num_stages}")
        groups[group] = _group(model, manners, model.num_microbatches, num_pipelines)
    return Figure(
        name="12",
        title="Figure 12: 16 GPUs on two nodes, data-parallel x pipeline-parallel",
        groups=groups,
    )


def _microbatches(models: Sequence[Model]) -> Figure:
    """K is the number of stages: the fewest microbatches that fill the pipeline once."""
    manners = (BASELINE, ENVPIPE, *_FRONTIERS)
    return Figure(
        name="13",
        title="Figure 13: K, 2K and 4K microbatches, K the number of stages",
        groups={
            _label(model, f"{multiple}K microbatches"): _group(
                model, manners, times * model.num_stages
            )
            for model in models
            for multiple, times in (("", 1), ("2", 2), ("4", 4))
        },
    )


def _orders(models: Sequence[Model]) -> Figure:
    heavier = [
        replace(
            model,
            name=f"{model.name}, last stage x {LAST_STAGE_FACTOR:g}",
            profile=with_heavier_last_stage(model.profile, LAST_STAGE_FACTOR),
        )
        for model in models
    ]
    return Figure(
        name="orders",
        title="EnvPipe's order against 1F1B, both with frontier",
        groups=_by_model([*models, *heavier], (FRONTIER_1F1B, FRONTIER_ENVPIPE)),
    )
