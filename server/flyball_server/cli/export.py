"""`flyball export`: a plan's predicted timeline as a file for a trace viewer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flyball_server.cli import offline_inputs
from flyball_server.cli.offline_inputs import add_timeline_arguments, read_timeline
from flyball_server.cli.plots.chrome_trace import trace_document
from flyball_wire.command import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    add_timeline_arguments(parser)
    parser.add_argument(
        "--chrome-trace",
        metavar="FILE.json",
        type=Path,
        required=True,
        help="write it in the Trace Event Format, for ui.perfetto.dev and chrome://tracing",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.chrome_trace
    timeline = read_timeline(arguments)
    document = trace_document(timeline)
    offline_inputs.write_text(path, json.dumps(document, allow_nan=False) + "\n")
    num_instructions = sum(map(len, timeline.assignments))
    num_events = len(document["traceEvents"])
    if arguments.json:
        written = {"num_instructions": num_instructions, "num_events": num_events}
        print(json.dumps({"chrome_trace": str(path), "predicted": True, **written}))
    else:
        print(
            f"{path}: {num_instructions} instructions (predicted), {num_events} events;"
            " open it in ui.perfetto.dev"
        )
    return 0


COMMAND = Command(
    summary="a plan's predicted timeline for a trace viewer", configure=_configure, run=_run
)
