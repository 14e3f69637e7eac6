"""`flyball demo`: the whole loop on this machine, and whether it did what it promises."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flyball_lab.demo.child_process import DemoFailedError
from flyball_lab.demo.options import DemoOptions, missing_prerequisites
from flyball_lab.demo.run_folder import RunFolder
from flyball_lab.demo.verdict import DemoResult, failed_condition
from flyball_wire.command import Command, CommandError

_DEFAULTS = DemoOptions()


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a planner and four ranks that train a small language model through DeepSpeed on"
        " the CPU, each with an emulated A100; measures some steps at the highest clocks, then"
        " on the plan, and compares both with the prediction. Exit status 0: everything held."
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=_DEFAULTS.num_steps,
        metavar="N",
        help="steps measured without and with the plan (default: %(default)s)",
    )
    parser.add_argument(
        "--microbatches",
        type=int,
        default=_DEFAULTS.num_microbatches,
        metavar="M",
        help="microbatches of an iteration (default: %(default)s)",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=_DEFAULTS.time_scale,
        metavar="X",
        help="wall seconds per emulated second; more on a busy computer (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, alone")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep logs, database, profile and plan in this folder (new or empty)",
    )


def _run(arguments: argparse.Namespace) -> int:
    missing = missing_prerequisites()
    if missing:
        raise CommandError(f"missing: {'; '.join(missing)}")
    try:
        options = DemoOptions(
            num_steps=arguments.steps,
            num_microbatches=arguments.microbatches,
            time_scale=arguments.time_scale,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    with _folder(arguments.keep) as folder:
        try:
            return _run_in(folder, options, as_json=arguments.json, keep=arguments.keep is not None)
        except DemoFailedError as error:
            if error.log_tail:
                print(error.log_tail, file=sys.stderr)
            print(f"flyball demo: failed: {error}", file=sys.stderr)
            return 1


def _run_in(folder: RunFolder, options: DemoOptions, *, as_json: bool, keep: bool) -> int:
    # rich is in the demo's extra only, and is known to be there by now.
    from rich.console import Console  # noqa: PLC0415

    from flyball_lab.demo.child_process import Interruption  # noqa: PLC0415
    from flyball_lab.demo.demo_run import run_demo  # noqa: PLC0415
    from flyball_lab.demo.progress import DemoProgress  # noqa: PLC0415
    from flyball_lab.demo.report import print_report, result_document  # noqa: PLC0415

    def conclude(result: DemoResult, plan_lines: list[str], url: str) -> int:
        failed = failed_condition(result, num_steps=options.num_steps)
        if as_json:
            print(json.dumps(result_document(result, failed=failed)))
        elif result.comparison is not None:
            print_report(
                Console(),
                result.comparison,
                result.losses,
                plan_lines=plan_lines,
                where_to_look=_where_to_look(url, folder, keep=keep),
            )
        if failed is not None:
            print(f"flyball demo: failed: {failed}", file=sys.stderr)
        return 0 if failed is None else 1

    with Interruption() as interruption:
        return run_demo(
            folder,
            options,
            interruption=interruption,
            progress=DemoProgress(Console(stderr=True)),
            conclude=conclude,
        )


def _where_to_look(url: str, folder: RunFolder, *, keep: bool) -> list[str]:
    ended = f"The planner's API was at {url}/docs; it ends with this command."
    if not keep:
        return [
            ended,
            "`flyball demo --keep DIR` keeps its files; `flyball serve` starts a planner.",
        ]
    again = f"flyball serve --database sqlite:///{folder.database}"
    return [
        f"{ended} Start it again on this run with",
        f"    {again}",
        "and look at http://127.0.0.1:7787/docs",
    ]


@contextmanager
def _folder(keep: Path | None) -> Iterator[RunFolder]:
    if keep is None:
        with tempfile.TemporaryDirectory(
            prefix="flyball-demo-", ignore_cleanup_errors=True
        ) as path:
            yield RunFolder(Path(path))
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise CommandError(f"--keep {keep}: {error.strerror}") from None
    if used:
        raise CommandError(f"--keep {keep}: the folder is not empty; name a new one")
    yield RunFolder(keep.resolve())


COMMAND = Command(
    summary="planner, emulated GPUs and a real training run on this machine",
    configure=_configure,
    run=_run,
)
