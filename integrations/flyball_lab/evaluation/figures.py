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
# Data-parallel pipelines of the models of figure 12.
_NODES = (2, 4)
_FRONTIERS = (FRONTIER_1F1B, FRONTIER_ENVPIPE)
# Titles, fitted models, and the policies and orders that each of them runs with.
_FIGURES: dict[str, tuple[str, tuple[str, ...], tuple[Manner, ...]]] = {
    "9": (
        "Figure 9: throughput and energy of the models",
        (*_V100_MODELS, *_RTX3090_MODELS),
        (BASELINE, UNIFORM, ENVPIPE, *_FRONTIERS),
    ),
    "10": (
        "Figure 10: what each part brings",
        ("bert-1.3b", "gpt-350m"),
        (
            *(BASELINE, UNIFORM, ENVELOPE_1F1B, ENVELOPE_DEFAULT, ENVELOPE_GREEDY, ENVPIPE),
            *_FRONTIERS,
        ),
    ),
    "11": (
        "Figure 11: reconfiguration policies",
        _V100_MODELS,
        (BASELINE, ENVELOPE_DEFAULT, ENVELOPE_GREEDY, ENVPIPE, *_FRONTIERS),
    ),
    "12": (
        "Figure 12: 16 GPUs on two nodes, data-parallel x pipeline-parallel",
        ("megatron-1.3b-pp8", "megatron-1.3b-pp4"),
        (BASELINE, ENVPIPE, *_FRONTIERS),
    ),
    "13": (
        "Figure 13: K, 2K and 4K microbatches, K the number of stages",
        _V100_MODELS,
        (BASELINE, ENVPIPE, *_FRONTIERS),
    ),
    "orders": (
        "EnvPipe's order against 1F1B, both with frontier",
        (*_V100_MODELS, *_RTX3090_MODELS),
        _FRONTIERS,
    ),
}
FIGURE_NAMES = tuple(_FIGURES)
LAST_STAGE_FACTOR = 1.3


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: runs in groups, each compared with the first of its group.

    Attributes:
        name: Value of `--figure`.
        title: Title of table and plot.
        groups: Group's name -> its runs.
    """

    name: str
    title: str
    groups: dict[str, tuple[Configuration, ...]]

    @property
    def runs(self) -> tuple[Configuration, ...]:
        """All runs, group by group."""
        return tuple(run for group in self.groups.values() for run in group)


def make_figure(name: str, others: Sequence[Model]) -> Figure:
    """Return a figure of EnvPipe's evaluation.

    Args:
        name: One of FIGURE_NAMES.
        others: Models beside EnvPipe's own: shipped and given profiles.
    """
    groups: dict[str, tuple[Configuration, ...]] = {}

    def add(
        model: Model,
        manners: Sequence[Manner],
        num_microbatches: int,
        num_pipelines: int = 1,
        detail: str = "",
    ) -> None:
        # Two lines, with the origin of a profile that is not fitted.
        parts = (model.gpu, detail, "" if model.origin == FITTED else model.origin)
        groups[f"{model.name}\n{', '.join(filter(None, parts))}"] = tuple(
            Configuration(
                model=model,
                manner=manner,
                num_microbatches=num_microbatches,
                num_pipelines=num_pipelines,
            )
            for manner in manners
        )

    title, names, manners = _FIGURES[name]
    if name == "12":
        for num_pipelines, fitted in zip(_NODES, names, strict=True):
            model = fitted_model(fitted, num_pipelines=num_pipelines)
            shape = f"{num_pipelines} x {model.num_stages}"
            add(model, manners, model.num_microbatches, num_pipelines, shape)
        return Figure(name=name, title=title, groups=groups)
    models = [*map(fitted_model, names), *others]
    if name == "orders":
        models += [
            replace(
                model,
                name=f"{model.name}, last stage x {LAST_STAGE_FACTOR:g}",
                profile=with_heavier_last_stage(model.profile, LAST_STAGE_FACTOR),
            )
            for model in models
        ]
    for model in models:
        if name == "13":  # K, the number of stages, fills the pipeline once
            for times, multiple in ((1, ""), (2, "2"), (4, "4")):
                num_microbatches = times * model.num_stages
                add(model, manners, num_microbatches, detail=f"{multiple}K microbatches")
        else:
            add(model, manners, model.num_microbatches)
    return Figure(name=name, title=title, groups=groups)
