"""Settings of attach from a DeepSpeed config's blocks, variables and arguments."""

from __future__ import annotations

import base64
import inspect
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from flyball_integrations.deepspeed import config_file
from flyball_integrations.deepspeed.config_file import (
    attach_from_config,
    is_asked_for,
    load_config,
    read_attachment,
)
from flyball_integrations.deepspeed.pipeline import attach
from flyball_integrations.deepspeed.settings import (
    SETTINGS,
    Setting,
)
from flyball_integrations.shared.attach_options import AttachOptions
from flyball_wire.options import Option
from flyball_wire.plan_options import Policy
from flyball_wire.targets import TARGET_FORM

URL = "http://planner:7787"
# All that EnvPipe's own examples have in their config.
ENVPIPE = {
    "type": "envelope",
    "scheduling": "1f1b",
    "reconfig": "greedy",
    "gpu": "a100",
    "reconfigure_threshold_scale": "4",
}
# Two values of the settings that are texts, as JSON and a variable may have them.
TEXTS: dict[str, tuple[str, str]] = {
    "job_id": ("gpt", "bert"),
    "planner_url": (URL, "http://other:7787"),
    "target": ("slowdown:0.1", "least-energy"),
    "transitions": ("own.toml", "other.toml"),
    "gpu_type": ("a100", "v100"),
}
# EnvPipe has these too.
NAMED = {"policy": ("uniform", "envelope")}


def two_values(option: Option) -> tuple[Any, Any]:
    """Return two values of an option, by its declaration."""
    if option.kind is bool:
        return False, True
    if option.names:
        return NAMED.get(option.name, (option.names[0], option.names[-1]))
    if option.kind is str:
        return TEXTS[option.keyword]
    low = option.bounds[0] + (1 if option.is_above and option.kind is int else 0)
    one, other = (low + 1, low + 2) if option.kind is int else (low + 0.25, low + 0.5)
    return ((one, other), (other,)) if option.has_list else (one, other)


def sources_of(setting: Setting) -> list[str]:
    """The earlier wins."""
    sources = ["argument", "variable", "flyball"]
    if setting.envpipe is not None:
        sources.append("envpipe")
        if setting.envpipe.variable is not None:
            sources.insert(2, "EnvPipe's variable")
    return sources


def read_with(setting: Setting, by_source: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return what attach will be given where each source has its value, in its own spelling."""
    arguments: dict[str, Any] = {}
    environ: dict[str, str] = {}
    config: dict[str, dict[str, Any]] = {"flyball": {}, "envpipe": {}}
    for source, value in by_source.items():
        is_list = isinstance(value, tuple)
        if source == "argument":
            arguments[setting.key] = value
        elif source == "variable":
            environ[setting.variable] = ",".join(map(str, value)) if is_list else str(value)
        elif source == "flyball":
            config["flyball"][setting.key] = list(value) if is_list else value
        else:
            assert setting.envpipe is not None
            values = setting.envpipe.values
            name = next(theirs for theirs, ours in values.items() if ours == value)
            if source == "envpipe":
                config["envpipe"][setting.envpipe.key] = name
            else:
                environ[str(setting.envpipe.variable)] = name
    return read_attachment(config, environ, arguments).arguments[setting.key]


each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)


# ------------------------------------------------------------------ where a setting comes from


@each_setting
def test_each_source_is_read_and_wins_over_all_later_ones(setting: Setting) -> None:
    values = two_values(setting.option)
    sources = sources_of(setting)
    for place, source in enumerate(sources):
        for winner, loser in (values, values[::-1]):
            assert read_with(setting, {source: winner}) == winner
            later = dict.fromkeys(sources[place + 1 :], loser)
            assert read_with(setting, {source: winner, **later}) == winner


def test_the_settings_are_the_arguments_of_attach_that_are_no_objects_or_secrets() -> None:
    arguments = {*inspect.signature(attach).parameters, *AttachOptions.__optional_keys__}
    assert {setting.key for setting in SETTINGS} == arguments - {
        "engine",
        "options",
        "token",
        "gpu",
        "observer",
    }


@each_setting
def test_null_and_an_empty_variable_count_as_not_set(setting: Setting) -> None:
    blocks: dict[str, Any] = {"flyball": {setting.key: None}, "envpipe": {}}
    environ = {setting.variable: ""}
    if setting.envpipe is not None:
        blocks["envpipe"] = {setting.envpipe.key: None}
        if setting.envpipe.variable is not None:
            environ[setting.envpipe.variable] = ""
    read = read_attachment(blocks, environ, {setting.key: None})
    assert read.arguments == {"job_id": "deepspeed"}
    assert not is_asked_for({}, environ)


def test_a_value_that_another_source_overrides_is_not_looked_at() -> None:
    # A template whose placeholders nobody has filled in, with the variables exported.
    template = {"envpipe": dict.fromkeys(("type", "scheduling", "reconfig"), "PLACEHOLDER")}
    environ = {
        "ENVPIPE_TYPE": "uniform",
        "ENVPIPE_SCHEDULING": "ours",
        "ENVPIPE_RECONFIGURE": "balanced",
    }
    read = read_attachment(template, environ).arguments
    assert (read["policy"], read["schedule"]) == ("uniform", "envpipe")
    assert read["reconfigure"] == "balanced"
    with pytest.raises(ValueError, match=r"not 'PLACEHOLDER'$"):
        read_attachment(template, {})


def test_another_order_is_run_with_pulled_sends_unless_told_otherwise() -> None:
    for block in ({"envpipe": {"scheduling": "ours"}}, {"flyball": {"schedule": "envpipe"}}):
        assert read_attachment(block, {}).arguments["p2p"] == "pulled"
        assert read_attachment(block, {"FLYBALL_P2P": "eager"}).arguments["p2p"] == "eager"


# ------------------------------------------------------------------ what cannot be used


@pytest.mark.parametrize(
    ("where", "value", "must_be"),
    [
        ("envpipe.type", "envpipe", "one of baseline, uniform, envelope"),
        ("envpipe.reconfigure_threshold_scale", "four", "a number above 0"),
        ("flyball.job_id", "a b", "1 to 128 of letters, digits, '.', '_', '+' and '-'"),
        ("flyball.planner_url", 7787, "like http://HOST:PORT"),
        ("flyball.policy", "perseus", f"one of {', '.join(Policy)}"),
        ("flyball.reserve", -0.01, "a share from 0 to 0.5 (0.01)"),
        ("flyball.strict", "often", "true or false"),
        ("flyball.schedule", "auto", "one of 1f1b, envpipe"),
        (
            "flyball.free_memory_bytes",
            1.5,
            "a whole number of bytes, at least 0, or one per stage",
        ),
        *(
            (
                "flyball.target",
                target,
                TARGET_FORM,
            )
            for target in ("slow", 3)
        ),
        *(
            (
                "flyball.blocking_power_w",
                power,
                "a number of W from 0 to 100000, or one per stage (70 or 70,84)",
            )
            for power in ("x", -1)
        ),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_used_is_named_in_one_line(
    where: str, value: object, must_be: str
) -> None:
    block, _, key = where.partition(".")
    with pytest.raises(ValueError, match="must be") as raised:
        read_attachment({block: {key: value}}, {})
    assert str(raised.value) == f"{where} must be {must_be}, not {value!r}"


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (
            {"envpipe": "envelope"},
            "envpipe must be an object with keys of scheduling, type, reconfig, gpu,"
            " reconfigure_threshold_scale, not 'envelope'",
        ),
        (
            {"flyball": {"token": "secret"}},
            f"flyball.token is unknown; known: {', '.join(setting.key for setting in SETTINGS)}",
        ),
    ],
)
def test_a_block_that_cannot_be_used_is_named_in_one_line(block: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is unknown") as raised:
        read_attachment(block, {})
    assert str(raised.value) == says


@each_setting
def test_a_variable_that_cannot_be_used_is_named(setting: Setting) -> None:
    with pytest.raises(ValueError, match=f"^{setting.variable} must be .*, not ' '$"):
        read_attachment({}, {setting.variable: " "})
    if setting.envpipe is not None and setting.envpipe.variable is not None:
        variable = setting.envpipe.variable
        with pytest.raises(ValueError, match=f"^{variable} must be one of .*, not 'best'$"):
            read_attachment({}, {variable: "best"})


def test_an_argument_that_attach_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="'polcy'"):
        read_attachment({}, {}, {"polcy": "frontier"})


# ------------------------------------------------------------------ the job's name


@pytest.mark.parametrize(
    ("environ", "job_id"),
    [
        ({"TORCHELASTIC_RUN_ID": "gpt3", "SLURM_JOB_ID": "17"}, "torchrun-gpt3"),
        ({"TORCHELASTIC_RUN_ID": "a/b c"}, "torchrun-a-b-c"),
        ({"TORCHELASTIC_RUN_ID": "x" * 200}, "torchrun-" + "x" * 119),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "17"}, "slurm-17"),
        ({"SLURM_JOB_ID": "17"}, "slurm-17"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "deepspeed"),
        ({"SLURM_JOB_ID": "17", "FLYBALL_JOB_ID": "gpt"}, "gpt"),
    ],
)
def test_a_job_without_a_name_has_its_launchers(environ: dict[str, str], job_id: str) -> None:
    assert read_attachment({}, environ).arguments["job_id"] == job_id


# ------------------------------------------------------------------ what is told


@pytest.mark.parametrize(
    ("flyball", "told"),
    [
        ({}, ["no planner is set, so no clocks are set: give its address in"]),
        (
            {"planner_url": URL},
            ["the planner knows this job as 'deepspeed'", "the blocking power of the GPU is not"],
        ),
        ({"planner_url": URL, "job_id": "gpt", "gpu_type": "a100"}, []),
        (
            {"planner_url": URL, "job_id": "gpt", "gpu_type": "v100"},
            ["the blocking power of v100 is not known, and without it the planner refuses"],
        ),
        ({"planner_url": URL, "job_id": "gpt", "gpu_type": "v100", "blocking_power_w": 70}, []),
        ({"planner_url": URL, "job_id": "gpt", "gpu_type": "v100", "profiling": "online"}, []),
    ],
)
def test_what_will_keep_clocks_at_their_default_is_told(
    flyball: dict[str, Any], told: list[str]
) -> None:
    notes = read_attachment({"flyball": flyball}, {}).notes
    assert len(notes) == len(told)
    assert all(note.startswith(start) for note, start in zip(notes, told, strict=True))


def test_a_gpu_type_given_in_the_script_is_left_to_the_planner() -> None:
    arguments = {"gpu_type": "h300", "planner_url": URL, "job_id": "gpt"}
    read = read_attachment({}, {}, arguments)
    assert (read.arguments["gpu_type"], read.notes) == ("h300", ())


@pytest.mark.parametrize(("rank", "num_lines"), [(0, 2), (1, 0)])
def test_attach_gets_what_is_given_and_only_rank_0_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int, num_lines: int
) -> None:
    attached: list[tuple[object, dict[str, Any]]] = []

    def record(engine: object, **arguments: object) -> str:
        attached.append((engine, arguments))
        return "session"

    monkeypatch.setattr(config_file, "attach", record)
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("FLYBALL_LEASE_S", "9")
    engine: Any = SimpleNamespace(global_rank=rank)
    with caplog.at_level(logging.INFO):
        session: object = attach_from_config(
            engine,
            {"envpipe": ENVPIPE},
            policy="frontier",
            job_id="gpt",
            token="t",  # noqa: S106
        )
    assert session == "session"
    assert attached == [
        (
            engine,
            {
                "job_id": "gpt",
                "policy": "frontier",
                "schedule": "1f1b",
                "reconfigure": "greedy",
                "gpu_type": "a100",
                "lease_s": 9.0,
                "token": "t",
                "gpu": None,
                "observer": None,
            },
        )
    ]
    assert len(caplog.messages) == num_lines


# ------------------------------------------------------------------ reading a config


def test_a_file_or_base64_is_read_as_deepspeed_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text('{\n  # EnvPipe, as before\n  "envpipe": {"type": "uniform"}\n}')
    for given in (file, str(file)):
        assert read_attachment(given, {}).arguments["policy"] == "uniform"
        assert is_asked_for(given, {})
    # Base64, so long that it can be no file's name.
    config = {"envpipe": {"type": "uniform"}, "filling": "?>" * 3000}
    text = base64.urlsafe_b64encode(json.dumps(config).encode()).decode()
    assert "_" in text or "-" in text
    assert load_config(text) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Bad key name (eof): line 1 column 2 (char 1)"),
        ("[1, 2]", "a DeepSpeed config must be an object"),
        ("just text", "a DeepSpeed config must be an object"),
        (b"{\xff}", "not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_a_config_is_named(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    file = tmp_path / "ds_config.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"ds_config\.json: ") as raised:
        load_config(file)
    assert str(raised.value) == f"{file}: {says}"


def test_what_is_no_file_is_named_and_not_repeated_at_length(tmp_path: Path) -> None:
    says = "no such file, and no DeepSpeed config in base64"
    with pytest.raises(ValueError, match=f"^{tmp_path}/ds_config.json: {says}$"):
        load_config(tmp_path / "ds_config.json")
    with pytest.raises(ValueError, match=f"^{tmp_path}: cannot be read: Is a directory$"):
        load_config(tmp_path)
    with pytest.raises(ValueError, match=says) as raised:
        load_config("?" * 5000)
    assert len(str(raised.value)) < 300


def test_flyball_is_asked_for_by_a_block_or_a_variable() -> None:
    names = [setting.variable for setting in SETTINGS]
    for name in (*names, "ENVPIPE_TYPE", "ENVPIPE_SCHEDULING", "ENVPIPE_RECONFIGURE"):
        assert is_asked_for({}, {name: "x"}), name
    for block in ("envpipe", "flyball"):
        assert is_asked_for({block: {}}, {})
        assert not is_asked_for({"train_batch_size": 8, block: None}, {})
    others = {"FLYBALL_TOKEN": "t", "FLYBALL_CLOCK_CONTROL": "nvml", "ENVPIPE_GPU": "x"}
    assert not is_asked_for({}, others)
