"""`flyball convert` on files in the shapes that Perseus, Zeus, Kareus, torch and EnvPipe write."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from tests.integration.command_in_process import document_of, flyball, refusal
from tests.unit.replay.perseus_tree import write_perseus_tree
from tests.unit.replay.synthetic_runs import synthetic_document

PROFILE = """stage,instruction,frequency,time,energy
0,forward,1410,0.1,30
0,forward,1200,0.11,26
0,backward,1410,0.2,62
0,backward,1200,0.22,54
1,forward,1410,0.1,30
1,forward,1200,0.11,26
1,backward,1410,0.2,62
1,backward,1200,0.22,54
"""
# As lowtime 0.3 writes it: a line a stage, then comments.
FREQS = """[
[('forward', 1410), ('forward', 1200), ('backward', 1410), ('forward', 1200), ('backward', 1410), \
('backward', 1410)],
[('forward', 1410), ('backward', 1410), ('forward', 1410), ('backward', 1410), ('forward', 1410), \
('backward', 1410)],
]
# Iteration 9 cost change: 1.0
# Iteration 9 total cost with P2P: 592.0
"""
CLOCKS = [[1410, 1200, 1410, 1200, 1410, 1410], [1410] * 6]
# As Kareus composes it, with activation checkpointing: forwards have two knobs, backwards four.
KAREUS = """stage,instruction,frequency,recompute_attention_configs,recompute_mlp_configs,\
attention_configs,mlp_configs,time,energy
0,forward,1410,,,2-8-27-1024,0-6-24-1024,0.1,30
0,forward,1410,,,0-8-27-1024,0-6-24-1024,0.12,30.5
0,forward,1200,,,0-8-27-1024,0-6-24-1024,0.13,26
0,backward,1410,0-8-27-1024,0-6-24-1024,3-8-24-1024,0-6-6-1024,0.2,62
0,backward,1200,0-8-27-1024,0-6-6-1024,3-8-24-1024,0-6-9-1024,0.22,54
"""
# What a run of EnvPipe prints: its profile, ranks in any order, then a plan a step.
ENVPIPE_LOG = """[2026-01-01 00:00:00,000] [INFO] steps: 1 loss: 0.5
[ENVPIPE] Minimum sm freq for stage 1 : 1980
Forward: 18.5 18.5 Backward 41.25 41.25
[ENVPIPE] Minimum sm freq for stage 0 : 1260
Forward: 18.0 24.5 Backward 40.0 52.0
Stage 0 | [F0 1980 0.0] F1 1260 0.0  B0 1260 85.8 [B1 1980 40.3]
Stage 1 | [F0 1980 23.4][B0 1980 0.0][F1 1980 0.6][B1 1980 0.0]

Stage 0 | [F0 1980 0.0] F1 1290 0.0  B0 1260 85.8 [B1 1980 40.3]
Stage 1 | [F0 1980 23.4][B0 1980 0.0][F1 1980 0.6][B1 1980 0.0]

[RESULT] 1.0 , 2.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "profile.csv": PROFILE,
        "freqs_pipeline_00009.py": FREQS,
        "kareus.csv": KAREUS,
        "run.log": ENVPIPE_LOG,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def convert(folder: Path, source: str, target: str, *options: str | Path) -> str:
    """Convert a file of the folder, and return the text written."""
    done = flyball("convert", folder / source, folder / target, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / target).read_text(encoding="utf-8")


def on_profile(folder: Path) -> tuple[str, str, str, str]:
    return "--profile", str(folder / "profile.csv"), "--blocking-power", "80"


def clocks_of(plan: str) -> list[list[int]]:
    return [[entry[2] for entry in stage] for stage in json.loads(plan)["stages"]]


def test_a_plan_goes_through_every_format_and_comes_back(folder: Path) -> None:
    plan = convert(folder, "freqs_pipeline_00009.py", "plan.json", *on_profile(folder))
    assert clocks_of(plan) == CLOCKS
    document = json.loads(plan)
    # By hand: F2 of stage 0 is 10 ms late; 600 J less 3 times 4 J saved and 0.05 s of waiting more.
    assert (document["schedule"], document["num_microbatches"]) == ("1f1b", 3)
    assert document["iteration_time_s"] == pytest.approx(1.21)
    assert document["energy_j"] == pytest.approx(592.0)
    assert document["baseline"] == pytest.approx({"iteration_time_s": 1.2, "energy_j": 600.0})
    shape = ("--stages", "2", "--microbatches", "3")
    rows = convert(folder, "freqs_pipeline_00009.py", "rows.log", *on_profile(folder))
    # EnvPipe's rows show predicted waits where a profile is given.
    assert "[B0 1410 190.0] [F2 1200 0.0]" in rows
    convert(folder, "plan.json", "bare.log")
    convert(folder, "bare.log", "4.sched.json", "--ranks", "4")
    for source, options in (("rows.log", ()), ("4.sched.json", shape)):
        back = convert(folder, source, "freqs_back.py", *options, "--force")
        assert back == FREQS.partition("# ")[0]
    assert clocks_of(convert(folder, "freqs_back.py", "back.json", *on_profile(folder))) == CLOCKS
    simulated = document_of("simulate", folder / "profile.csv", folder / "back.json")
    assert simulated["energy_j"] == pytest.approx(592.0)
    # Requests that a format does not have are counted.
    document["requests"] = [[0, 1, 0, "begin", 0.05]]
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    done = flyball("convert", folder / "plan.json", folder / "again_freqs.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(", 1 request left out\n")


def test_an_order_is_torchs_csv_and_back_and_torch_reads_it(folder: Path) -> None:
    text = convert(folder, "freqs_pipeline_00009.py", "order.csv")
    assert text == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
    order = json.loads(convert(folder, "order.csv", "order.json"))
    assert convert(folder, "order.json", "again.csv") == text
    planned = document_of(
        "plan",
        folder / "profile.csv",
        *("--microbatches", "3", "--order", folder / "order.json", "--blocking-power", "80"),
    )
    assert [[entry[:2] for entry in stage] for stage in planned["stages"]] == order["stages"]
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    reader = schedules._PipelineScheduleRuntime.__new__(schedules._PipelineScheduleRuntime)
    reader.pipeline_order = {}
    reader._validate_and_set_stage_mapping = lambda _: None
    schedules.PipelineScheduleMulti._load_csv(reader, str(folder / "order.csv"))
    assert [",".join(map(str, row)) for row in reader.pipeline_order.values()] == text.split()


def test_clocks_of_the_perseus_artifact_come_by_its_folders_name(folder: Path) -> None:
    document = synthetic_document(count=4)
    document["dp"] = 2
    workload = write_perseus_tree(folder, document)
    freqs = convert(workload, "2.sched.json", "freqs.py")
    clocks = [[mhz for _, mhz in stage] for stage in ast.literal_eval(freqs)]
    assert clocks == document["runs"][1]["clocks_mhz"]
    convert(workload, "freqs.py", "mine.sched.json", "--ranks", "6")
    assert convert(workload, "mine.sched.json", "again.py") == freqs


def test_a_planned_clock_comes_with_its_kernel_schedule(folder: Path) -> None:
    # 30 J in 0.1 s and 30.5 J in 0.12 s: above 80 W of waiting 22 and 20.9 J.
    for name, options, left_out in (
        ("least.csv", (), "0,forward,1410,,,0-8"),
        ("fastest.csv", ("--keep", "fastest", "--blocking-power", "80"), "0,forward,1410,,,0-8"),
        ("planned.csv", ("--blocking-power", "80"), "0,forward,1410,,,2-8"),
    ):
        assert convert(folder, "kareus.csv", name, *options).splitlines() == [
            line for line in KAREUS.splitlines() if not line.startswith(left_out)
        ]
    done = flyball(
        "plan", folder / "planned.csv", "--microbatches", "2", "--blocking-power", "80",
        "--target", "least-energy", "-o", folder / "plan.json",
    )  # fmt: skip
    assert done.returncode == 0
    scheds = convert(
        folder, "plan.json", "scheds_pipeline_1.py", "--kernels", folder / "planned.csv"
    )
    forward = ("forward", "0-8-27-1024", "0-6-24-1024")
    backward = ("backward", "0-8-27-1024", "0-6-6-1024", "3-8-24-1024", "0-6-9-1024")
    assert scheds == f"[\n{[forward, backward, forward, backward]},\n]\n"
    pairs = convert(
        folder, "plan.json", "scheds_pairs.py", "--by-microbatch",
        "--kernels", folder / "planned.csv",
    )  # fmt: skip
    assert pairs == f"[\n{[(forward, backward), (forward, backward)]},\n]\n"
    # Kareus's pair of files becomes one plan, which keeps the schedules.
    convert(folder, "plan.json", "freqs_pipeline_1.py")
    for kernels in ("scheds_pipeline_1.py", "scheds_pairs.py"):
        convert(
            folder, "freqs_pipeline_1.py", "with.json", "--kernels", folder / kernels, "--profile",
            folder / "planned.csv", "--blocking-power", "80", "--force",
        )  # fmt: skip
        assert convert(folder, "with.json", "scheds_back.py", "--force") == scheds


def test_envpipes_log_gives_its_last_plan_and_its_profile(folder: Path) -> None:
    freqs = convert(folder, "run.log", "freqs.py")
    assert "[('forward', 1980), ('forward', 1290), ('backward', 1260), ('backward', 1980)]" in freqs
    text = convert(folder, "run.log", "out.csv", "--computing-power", "300,200")
    assert text.splitlines()[1:] == [
        "0,forward,1980,0.018,5.4",
        "0,forward,1260,0.0245,4.9",
        "0,backward,1980,0.04,12.0",
        "0,backward,1260,0.052,10.4",
        "1,forward,1980,0.0185,5.55",
        "1,backward,1980,0.04125,12.375",
    ]
    lines = [line for line in ENVPIPE_LOG.splitlines() if "Minimum" in line or "Forward:" in line]
    again = convert(folder, "out.csv", "again.log").splitlines()
    assert [again[0], again[2]] == [lines[2], lines[0]]
    assert again[1].split()[1::3] == ["18.000000", "40.000000"]


@pytest.mark.parametrize(
    ("source", "text", "options", "said"),
    [
        ("a.py", "__import__('os').system('true')", "", "not a Python literal; lists, tuples, tex"),
        ("a.py", "[" * 100_000, "", "not a Python literal"),
        ("a.py", "[[('forward', 1410), ('backward', 0)]]", "", "a frequency of 0 leaves the clock"),
        ("a.py", "[[('forward', 1410)]]", "", "does not run one forward and one backward"),
        ("a.py", "[[('fwd', 1410)]]", "", "stages[0][0]: unknown instruction 'fwd'; known: "),
        ("a.py", "[[1410, 1410], [1410]]", "", "clocks without instructions must be two for each"),
        ("scheds.py", "[[('forward', 1)]]", "", "kernel schedules must be text"),
        ("a.sched.json", "[]", "", "the folder's name does not give the pipeline's shape; give"),
        ("a.sched.json", "[]", "--stages 2", "--stages and --microbatches go together: give"),
        ("a.sched.json", "{}", "--stages 2 --microbatches 1", "do not fill pipelines of"),
        ("a.log", "Stage 0 | F0 1410\n", "", "line 1: must be units such as [F0 1410 0.0]"),
        ("a.log", "nothing", "", "has no lines '[ENVPIPE] Minimum sm freq for stage 0 : MHZ'"),
        ("a.log", ENVPIPE_LOG, "--to profile", "EnvPipe prints no energy; give --computing"),
        ("a.csv", "0F0,0B0\n", "", "is an order without clocks; flyball plan --order makes a plan"),
        ("a.csv", PROFILE, "", "flyball plan makes a plan from a profile"),
        ("a.py", "[[1410, 1410]]", "--wide", "--wide, --merge and labels are for profiles"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tmp_path: Path, source: str, text: str, options: str, said: str
) -> None:
    (tmp_path / source).write_text(text, encoding="utf-8")
    out = tmp_path / ("out.csv" if source.endswith(".log") and not options else "out.py")
    assert said in refusal(flyball("convert", tmp_path / source, out, *options.split()))
    assert not out.exists()
