"""What a DeepSpeed config's blocks, the variables and arguments come to for attach."""

from __future__ import annotations

import base64
import inspect
import itertools
import json
import logging
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
    SCHEDULES,
    SETTINGS,
    Setting,
)
from flyball_integrations.shared.attach_options import AttachOptions
from flyball_server.planning.frontier.targets import parse_target
from flyball_server.planning.schedule_choice import AUTO as PLANNERS_AUTO
from flyball_server.planning.schedules import SCHEDULES as PLANNERS_SCHEDULES
from flyball_wire.plan_options import Policy

URL = "http://planner:7787"
# All that EnvPipe's own examples have in their config.
ENVPIPE = {
    "type": "envelope",
    "scheduling": "1f1b",
    "reconfig": "greedy",
    "gpu": "a100",
    "reconfigure_threshold_scale": "4",
}
# Two values of each setting, as JSON and a variable may have them.
TWO_VALUES: dict[str, tuple[Any, Any]] = {
    "job_id": ("gpt", "bert"),
    "planner_url": (URL, "http://other:7787"),
    "policy": ("uniform", "envelope"),
    "schedule": ("envpipe", "1f1b"),
    "reconfigure": ("greedy", "default"),
    "target": ("slowdown:0.1", "least-energy"),
    "effort": ("low", "high"),
    "profiling": ("online", "given"),
    "profiling_slowdown": (0.05, 1.0),
    "reserve": (0.0, 0.5),
    "transition_ms": (0.0, 5.5),
    "transitions": ("own.toml", "other.toml"),
    "gpus_at_once": (8, 128),
    "gpus_in_node": (8, 1024),
    "early_requests": (False, True),
    "max_switches": (40, 0),
    "min_dwell_ms": (50.0, 0.5),
    "tail_ms": (20.0, 5.5),
    "transfer_ms": ((1.5, 2.0), (1.0,)),
    "adaptation": ("frontier", "reconfigure"),
    "gpu_type": ("a100", "v100"),
    "blocking_power_w": ((70.0, 84.0), (90.0,)),
    "p2p": ("eager", "stock"),
    "without_planner": ("default-clocks", "last-plan"),
    "lease_s": (12.5, 60.0),
    "strict": (True, False),
    "timing": ("synchronize", "stream"),
    "free_memory_bytes": (2_000_000_000, 0),
}
SOURCES = ("argument", "variable", "EnvPipe's variable", "flyball", "envpipe")


class Given:
    """Arguments, environment and config, with settings written where a test wants them."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.environ: dict[str, str] = {}
        self.config: dict[str, Any] = {"flyball": {}, "envpipe": {}}

    def write(self, setting: Setting, source: str, value: Any) -> None:  # noqa: ANN401
        """Let this source have the value, in its own spelling."""
        envpipe = setting.envpipe
        if source == "argument":
            self.arguments[setting.key] = value
        elif source == "variable":
            self.environ[setting.variable] = _as_text(value)
        elif source == "flyball":
            self.config["flyball"][setting.key] = list(value) if _is_list(value) else value
        elif envpipe is not None:
            name = next(theirs for theirs, ours in envpipe.values.items() if ours == value)
            if source == "envpipe":
                self.config["envpipe"][envpipe.key] = name
            else:
                assert envpipe.variable is not None
                self.environ[envpipe.variable] = name

    def read(self, setting: Setting) -> Any:  # noqa: ANN401
        """Return what attach will be given for it."""
        return read_attachment(self.config, self.environ, self.arguments).arguments[setting.key]


def _is_list(value: object) -> bool:
    return isinstance(value, tuple)


def _as_text(value: Any) -> str:  # noqa: ANN401
    return ",".join(map(str, value)) if _is_list(value) else str(value)


def _sources_of(setting: Setting) -> list[str]:
    envpipe = setting.envpipe
    lacking = set()
    if envpipe is None:
        lacking = {"EnvPipe's variable", "envpipe"}
    elif envpipe.variable is None:
        lacking = {"EnvPipe's variable"}
    return [source for source in SOURCES if source not in lacking]


EACH_SOURCE = [(setting, source) for setting in SETTINGS for source in _sources_of(setting)]
EACH_PAIR = [
    (setting, first, second)
    for setting in SETTINGS
    for first, second in itertools.combinations(_sources_of(setting), 2)
]


def _id(value: object) -> str:
    return value.key if isinstance(value, Setting) else str(value)


# ------------------------------------------------------------------ where a setting comes from


@pytest.mark.parametrize(("setting", "source"), EACH_SOURCE, ids=_id)
def test_each_source_is_read(setting: Setting, source: str) -> None:
    for value in TWO_VALUES[setting.key]:
        given = Given()
        given.write(setting, source, value)
        assert given.read(setting) == value


@pytest.mark.parametrize(("setting", "first", "second"), EACH_PAIR, ids=_id)
def test_an_earlier_source_wins_over_a_later_one(setting: Setting, first: str, second: str) -> None:
    values = TWO_VALUES[setting.key]
    for winner, loser in (values, values[::-1]):
        given = Given()
        given.write(setting, first, winner)
        given.write(setting, second, loser)
        assert given.read(setting) == winner


def test_the_settings_are_the_arguments_of_attach_that_are_no_objects_or_secrets() -> None:
    arguments = {*inspect.signature(attach).parameters, *AttachOptions.__optional_keys__}
    assert {setting.key for setting in SETTINGS} == arguments - {
        "engine",
        "options",
        "token",
        "gpu",
        "observer",
    }


def test_the_names_are_those_that_the_planner_knows() -> None:
    assert set(SCHEDULES) <= {*PLANNERS_SCHEDULES, PLANNERS_AUTO}


def test_nothing_given_leaves_all_to_attach() -> None:
    assert read_attachment({}, {}).arguments == {"job_id": "deepspeed"}


@pytest.mark.parametrize("setting", SETTINGS, ids=_id)
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
    template = {"envpipe": {"type": "ENVPIPE_TYPE", "reconfig": "ENVPIPE_RECONFIGURE"}}
    environ = {"ENVPIPE_TYPE": "uniform", "ENVPIPE_RECONFIGURE": "balanced"}
    read = read_attachment(template, environ)
    assert (read.arguments["policy"], read.arguments["reconfigure"]) == ("uniform", "balanced")
    with pytest.raises(ValueError, match=r"not 'ENVPIPE_TYPE'$"):
        read_attachment(template, {})


# ------------------------------------------------------------------ EnvPipe's own names


def test_envpipes_whole_block_becomes_arguments_of_attach() -> None:
    assert read_attachment({"envpipe": ENVPIPE}, {}).arguments == {
        "job_id": "deepspeed",
        "policy": "envelope",
        "schedule": "1f1b",
        "reconfigure": "greedy",
        "gpu_type": "a100",
    }


@pytest.mark.parametrize(
    ("key", "variable", "value", "argument", "becomes"),
    [
        ("type", "ENVPIPE_TYPE", "envelope", "policy", "envelope"),
        ("scheduling", "ENVPIPE_SCHEDULING", "ours", "schedule", "envpipe"),
        ("reconfig", "ENVPIPE_RECONFIGURE", "balanced", "reconfigure", "balanced"),
        ("gpu", None, "a100", "gpu_type", "a100"),
    ],
)
def test_each_value_that_envpipe_has_is_understood(
    key: str, variable: str | None, value: str, argument: str, becomes: str
) -> None:
    assert read_attachment({"envpipe": {key: value}}, {}).arguments[argument] == becomes
    if variable is not None:
        assert read_attachment({}, {variable: value}).arguments[argument] == becomes


@pytest.mark.parametrize(
    ("block", "environ"),
    [
        ({"envpipe": {"scheduling": "ours"}}, {}),
        ({"flyball": {"schedule": "auto"}}, {}),
        ({"flyball": {}}, {"FLYBALL_SCHEDULE": "gpipe"}),
    ],
)
def test_another_order_is_run_with_pulled_sends_unless_told_otherwise(
    block: dict[str, Any], environ: dict[str, str]
) -> None:
    assert read_attachment(block, environ).arguments["p2p"] == "pulled"
    with_variable = read_attachment(block, {**environ, "FLYBALL_P2P": "eager"})
    assert with_variable.arguments["p2p"] == "eager"
    assert "p2p" not in read_attachment({"envpipe": {"scheduling": "1f1b"}}, {}).arguments


@pytest.mark.parametrize("scale", ["4", "8", 4, "1.5"])
def test_the_threshold_scale_is_taken_and_said_to_have_no_effect(scale: object) -> None:
    read = read_attachment({"envpipe": {"reconfigure_threshold_scale": scale}}, {})
    assert read.notes[0].startswith("envpipe.reconfigure_threshold_scale has no effect: ")


# ------------------------------------------------------------------ what cannot be used


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (
            {"envpipe": {"type": "envpipe"}},
            "envpipe.type must be one of baseline, uniform, envelope, not 'envpipe'",
        ),
        (
            {"envpipe": {"reconfig": True}},
            "envpipe.reconfig must be one of default, greedy, balanced, not True",
        ),
        (
            {"envpipe": {"reconfigure_threshold_scale": "four"}},
            "envpipe.reconfigure_threshold_scale must be a number above 0, not 'four'",
        ),
        (
            {"envpipe": {"reconfigure": "greedy"}},
            "envpipe.reconfigure is unknown; known: type, scheduling, reconfig, gpu,"
            " reconfigure_threshold_scale",
        ),
        (
            {"envpipe": "envelope"},
            "envpipe must be an object with keys of type, scheduling, reconfig, gpu,"
            " reconfigure_threshold_scale, not 'envelope'",
        ),
        (
            {"flyball": {"token": "secret"}},
            "flyball.token is unknown; known: job_id, planner_url, policy, schedule, reconfigure,"
            " target, effort, gpu_type, blocking_power_w, profiling, profiling_slowdown,"
            " adaptation, reserve, transition_ms, transitions, gpus_at_once, gpus_in_node,"
            " early_requests, max_switches, min_dwell_ms, tail_ms, transfer_ms, p2p,"
            " without_planner, lease_s, strict, timing, free_memory_bytes",
        ),
        (
            {"flyball": {"job_id": "a b"}},
            "flyball.job_id must be 1 to 128 of letters, digits, '.', '_', '+' and '-', not 'a b'",
        ),
        (
            {"flyball": {"planner_url": 7787}},
            "flyball.planner_url must be like http://HOST:PORT, not 7787",
        ),
        (
            {"flyball": {"policy": "perseus"}},
            f"flyball.policy must be one of {', '.join(Policy)}, not 'perseus'",
        ),
        (
            {"flyball": {"target": "slowdown"}},
            "flyball.target must be fastest, least-energy, slowdown:5%, deadline:2.9 (s) or"
            " power:8000 (W), not 'slowdown'",
        ),
        (
            {"flyball": {"blocking_power_w": [70, 0]}},
            "flyball.blocking_power_w must be W above 0, one value or one per stage (70 or"
            " 70,84), not [70, 0]",
        ),
        (
            {"flyball": {"profiling_slowdown": 10}},
            "flyball.profiling_slowdown must be a share above 0 and at most 1 (0.1), not 10",
        ),
        (
            {"flyball": {"reserve": -0.01}},
            "flyball.reserve must be a share from 0 to 0.5 (0.01), not -0.01",
        ),
        (
            {"flyball": {"lease_s": float("inf")}},
            "flyball.lease_s must be a number of seconds above 0, not inf",
        ),
        (
            {"flyball": {"strict": "often"}},
            "flyball.strict must be true or false, 1 or 0, not 'often'",
        ),
        (
            {"flyball": {"free_memory_bytes": 1.5}},
            "flyball.free_memory_bytes must be a whole number of bytes, at least 0, not 1.5",
        ),
        (
            {"flyball": []},
            "flyball must be an object with keys of job_id, planner_url, policy, schedule,"
            " reconfigure, target, effort, gpu_type, blocking_power_w, profiling,"
            " profiling_slowdown, adaptation, reserve, transition_ms, transitions,"
            " gpus_at_once, gpus_in_node, early_requests, max_switches, min_dwell_ms, tail_ms,"
            " transfer_ms, p2p, without_planner, lease_s, strict, timing, free_memory_bytes,"
            " not []",
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_used_is_named_in_one_line(block: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is unknown") as raised:
        read_attachment(block, {})
    assert str(raised.value) == says


@pytest.mark.parametrize("setting", SETTINGS, ids=_id)
def test_a_variable_that_cannot_be_used_is_named(setting: Setting) -> None:
    with pytest.raises(ValueError, match=f"^{setting.variable} must be .*, not ' '$"):
        read_attachment({}, {setting.variable: " "})
    if setting.envpipe is not None and setting.envpipe.variable is not None:
        variable = setting.envpipe.variable
        with pytest.raises(ValueError, match=f"^{variable} must be one of .*, not 'best'$"):
            read_attachment({}, {variable: "best"})


@pytest.mark.parametrize(
    "value", ["", "70,", "70,-1", "nan", True, [], [70, "x"], {"0": 70}, [[70]]], ids=repr
)
def test_powers_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^flyball\.blocking_power_w must be W above 0"):
        read_attachment({"flyball": {"blocking_power_w": value}}, {})


@pytest.mark.parametrize(
    "target",
    ["fastest", "least-energy", "slowdown:0.05", "slowdown:5%", "deadline:2.9", "power:8000"],
)
def test_every_target_that_is_taken_is_one_that_the_planner_reads(target: str) -> None:
    assert read_attachment({"flyball": {"target": target}}, {}).arguments["target"] == target
    parse_target(target)


@pytest.mark.parametrize(
    "target", ["", "slow", "slowdown:", "deadline:soon", "deadline:5%", "fastest:1", 3]
)
def test_a_target_that_is_none_is_refused(target: object) -> None:
    with pytest.raises(ValueError, match=r"^flyball\.target must be fastest"):
        read_attachment({"flyball": {"target": target}}, {})


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


def test_a_file_is_read_as_deepspeed_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text('{\n  # EnvPipe, as before\n  "envpipe": {"type": "uniform"}\n}')
    for config in (file, str(file)):
        assert read_attachment(config, {}).arguments["policy"] == "uniform"
        assert is_asked_for(config, {})


def test_base64_of_any_length_is_read_as_deepspeed_reads_it() -> None:
    # So long that it can be no file's name.
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


@pytest.mark.parametrize("name", ["ds_config.json", "config", "configs/none.json"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"no such file, and no DeepSpeed config in base64$"):
        load_config(tmp_path / name)


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{tmp_path}: cannot be read: Is a directory$"):
        load_config(tmp_path)


def test_what_is_no_config_is_not_repeated_at_length() -> None:
    with pytest.raises(ValueError, match="no such file") as raised:
        load_config("?" * 5000)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("config", "environ", "asked"),
    [
        ({"train_batch_size": 8}, {}, False),
        ({"envpipe": {}}, {}, True),
        ({"flyball": {}}, {}, True),
        ({"flyball": None}, {}, False),
        ({}, {"FLYBALL_TOKEN": "t", "FLYBALL_CLOCK_CONTROL": "nvml", "ENVPIPE_GPU": "x"}, False),
        *(({}, {setting.variable: "x"}, True) for setting in SETTINGS),
        *(({}, {f"ENVPIPE_{name}": "x"}, True) for name in ("TYPE", "SCHEDULING", "RECONFIGURE")),
    ],
)
def test_flyball_is_asked_for_by_a_block_or_a_variable(
    config: dict[str, Any], environ: dict[str, str], asked: bool
) -> None:
    assert is_asked_for(config, environ) is asked
