"""Job and options in the text that Zeus's client sends as `job_metadata`.

Zeus's calls have neither the number of microbatches nor a blocking power, and this text is the
only free field: `NAME+num_microbatches=8+blocking_power_w=83.64`. `FLYBALL_ZEUS_DEFAULTS` has the
same form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from flyball_server.http.zeus.messages import JobInfo
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.records import JOB_ID_PATTERN
from flyball_wire.messages import JobSpec, Profiling
from flyball_wire.options import Option, OptionError, options_of
from flyball_wire.plan_options import PlanOptions

_FIELD = "job_metadata"
_SEPARATOR = "+"
_MAX_NAME_CHARACTERS = 128
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._+-]+")


_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "num_microbatches": options_of(JobSpec)["num_microbatches"],
        **{
            name: declared
            for name, declared in options_of(PlanOptions).items()
            if declared.is_readable and name != "early_requests"
        },
    }
)


@dataclass(frozen=True, kw_only=True)
class JobMetadata:
    """Name and options of a job.

    Attributes:
        name: the text without options, each run of characters that no job's name has replaced by
            one `-`; None: no name.
        options: values of JobSpec's fields.
    """

    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_metadata(text: str | None) -> JobMetadata:
    """Read a name and options, separated by `+`.

    Only parts `OPTION=VALUE` with the name of an option are options, so that any text is valid.

    Raises:
        InvalidFieldError: the value of an option is out of its bounds.
    """
    names: list[str] = []
    options: dict[str, object] = {}
    for part in filter(None, (text or "").split(_SEPARATOR)):
        option, sign, value = part.partition("=")
        declared = _OPTIONS.get(option.strip()) if sign else None
        if declared is None:
            names.append(part)
            continue
        try:
            options[declared.name] = declared.read_text(value.strip())
        except OptionError as error:
            raise InvalidFieldError(_FIELD, f"{declared.name} {error.message}") from None
    return JobMetadata(name=_job_name(_SEPARATOR.join(names)), options=options)


def _job_name(text: str) -> str | None:
    name = _NOT_IN_A_NAME.sub("-", text.strip()).lstrip(".")[:_MAX_NAME_CHARACTERS]
    return name if re.fullmatch(JOB_ID_PATTERN, name) else None


def generated_name(info: JobInfo, now: datetime) -> str:
    """Return a name of Zeus's form for a job without one."""
    degrees = (f"dp{info.dp_degree}", f"pp{info.pp_degree}", f"tp{info.tp_degree}")
    return _SEPARATOR.join((now.strftime("%Y-%m-%d-%H-%M-%S-%f"), *degrees, "flyball"))


def zeus_job_spec(
    info: JobInfo, own: JobMetadata, defaults: JobMetadata, registered: JobSpec | None
) -> JobSpec:
    """Return the specification of a job that Zeus's client registers.

    Args:
        info: the client's registration.
        own: its metadata, which override the others.
        defaults: the planner's defaults, for a job that is not registered.
        registered: specification of a job that is registered already; None: it is new.

    Raises:
        InvalidFieldError: the degrees do not fit, or a value that Zeus does not send is missing.
    """
    _check_degrees(info)
    # Zeus's client measures nothing.
    fixed: dict[str, Any] = {
        "num_stages": info.pp_degree,
        "num_ranks": info.world_size,
        "profiling": Profiling.GIVEN,
    }
    if registered is not None:
        return replace(registered, **{**own.options, **fixed})
    options = {**defaults.options, **own.options}
    if "num_microbatches" not in options:
        raise InvalidFieldError(
            "num_microbatches",
            "Zeus's client does not send it; add it to job_metadata, as in"
            " NAME+num_microbatches=8+blocking_power_w=70, or to FLYBALL_ZEUS_DEFAULTS, or"
            " name a registered job",
        )
    # It requests a clock as an instruction begins.
    return JobSpec(**{**options, **fixed, "early_requests": False})


def _check_degrees(info: JobInfo) -> None:
    degrees = (info.pp_degree, info.dp_degree, info.tp_degree)
    if min(degrees) < 1 or info.pp_degree * info.dp_degree * info.tp_degree != info.world_size:
        raise InvalidFieldError(
            "world_size", "must be the product of pp_degree, dp_degree and tp_degree, each above 0"
        )
