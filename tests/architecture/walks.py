"""Walks of data through our modules: which function hands on to which, and the data handed on.

Calls from one module to a function of another count, and their answers. Methods of data (frozen
dataclasses, tuples, enumerations and errors) count as part of their caller, and calls during an
import do not count.

Processes started during a walk are followed too: their Python finds `sitecustomize` in the walk's
folder, which is first on PYTHONPATH.
"""

from __future__ import annotations

import array
import dataclasses
import enum
import inspect
import itertools
import json
import mmap
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[2]
_PACKAGES = tuple(
    f"{ROOT}/{folder}/flyball_" for folder in ("client", "integrations", "profiles", "server")
)
_FOLDER, _VALUES = "WALK_FOLDER", "WALK_VALUES"
_ROWS, _IS_OPEN = "rows", "is-open"
_SITE = """import os, sys
sys.path.append({root!r})
from tests.architecture.walks import follow_process
follow_process()
"""
# Limits of the search in data: number of nested objects, and of items of each sequence.
_DEPTH, _WIDTH = 8, 8


class HandOver(NamedTuple):
    """Calls of one function of ours from another module of ours, or their answers.

    Attributes:
        caller: module that called; empty: none of ours.
        module, function: the function.
        event: `call` or `return`.
        found: forms of the followed values in it: name of a type, `text` or `number`.
    """

    caller: str
    module: str
    function: str
    event: str
    found: frozenset[str]


class _Follower:
    """Follows the calls of this process.

    Args:
        folder: folder of the walk, where hand-overs are written.
        values: numbers to follow; none: only calls are followed.
    """

    def __init__(self, folder: Path, values: frozenset[float]) -> None:
        self._folder = folder
        self._writing = threading.Lock()
        with (folder / _IS_OPEN).open("r+b") as gate:
            self.is_open = mmap.mmap(gate.fileno(), 1)
        self._values = values
        either = "|".join(re.escape(f"{value:.12g}") for value in values)
        self._as_text = re.compile(rf"(?<![\w.])({either})(?![\w.])") if either else None
        self._modules: dict[CodeType, str] = {}
        self._of_data: dict[CodeType, bool] = {}
        self._seen: set[str] = set()

    def start(self) -> None:
        """Follow this thread, and those that begin from now on."""
        sys.setprofile(self._on_event)
        threading.setprofile(self._on_event)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, answer: Any) -> None:  # noqa: ANN401
        if not self.is_open[0] or event not in {"call", "return"}:
            return
        module = self._module_of(frame.f_code)
        if not module or self._is_of_data(frame.f_code, module):
            return
        caller = self._caller_of(frame, module)
        # Another module calls a private function only by unpickling.
        function = frame.f_code.co_qualname
        if caller is None or (function.startswith("_") and "." not in function):
            return
        found: set[str] = set()
        if self._values and event == "return":
            found.update(self._carried(answer))
        elif self._values:
            code = frame.f_code
            num_named = code.co_argcount + code.co_kwonlyargcount
            num_arguments = num_named + bool(code.co_flags & inspect.CO_VARARGS)
            for name in code.co_varnames[:num_arguments]:
                found.update(self._carried(frame.f_locals.get(name)))
        self._note(caller, module, function, event, sorted(found))

    def _module_of(self, code: CodeType) -> str:
        if code not in self._modules:
            is_ours = code.co_filename.startswith(_PACKAGES) and code.co_name != "<module>"
            path = Path(code.co_filename).with_suffix("")
            name = ".".join(path.parts[len(ROOT.parts) + 1 :]) if is_ours else ""
            self._modules[code] = name.removesuffix(".__init__")
        return self._modules[code]

    def _is_of_data(self, code: CodeType, module: str) -> bool:
        if code not in self._of_data:
            owner: Any = sys.modules.get(module)
            for name in code.co_qualname.split(".")[:-1]:
                owner = getattr(owner, name, None)
            self._of_data[code] = isinstance(owner, type) and _is_data(owner)
        return self._of_data[code]

    def _caller_of(self, frame: FrameType, module: str) -> str | None:
        """Return the module of ours that called it, empty: none; None: its own, or an import."""
        before = frame.f_back
        while before is not None:
            code = before.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(_PACKAGES):
                return None
            caller = self._module_of(code)
            if caller == module:
                return None
            if caller and not self._is_of_data(code, caller):
                return caller
            before = before.f_back
        return ""

    def _carried(self, found: object, depth: int = 0) -> Iterator[str]:
        """Find the followed values in data, in text or as numbers."""
        if isinstance(found, str | bytes | bytearray | memoryview):
            text = found if isinstance(found, str) else bytes(found).decode("latin-1")
            if self._as_text is not None and self._as_text.search(text):
                yield "text"
        elif isinstance(found, int | float) and found in self._values:
            yield "number"
        elif depth < _DEPTH and isinstance(found, tuple | list | array.array | Mapping):
            items = found.values() if isinstance(found, Mapping) else found
            width = _WIDTH * (4 if isinstance(found, Mapping) else 1)
            for item in [*itertools.islice(items, width)]:
                yield from self._carried(item, depth + 1)
        elif depth < _DEPTH and dataclasses.is_dataclass(found):
            for field in dataclasses.fields(found):
                for inner in self._carried(getattr(found, field.name, None), depth + 1):
                    yield type(found).__name__ if inner == "number" else inner

    def _note(self, *row: Any) -> None:  # noqa: ANN401
        line = json.dumps(row)
        if line not in self._seen:
            self._seen.add(line)
            # Opened each time, as a helper process closes files that it did not open.
            with self._writing, (self._folder / f"{os.getpid()}.{_ROWS}").open("a") as file:
                file.write(line + "\n")


def _is_data(owner: type) -> bool:
    if issubclass(owner, tuple | enum.Enum | BaseException):
        return True
    parameters = getattr(owner, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def follow_process() -> None:
    """Follow the calls of this process, which was started during a walk."""
    values = frozenset(map(float, os.environ[_VALUES].split()))
    _Follower(Path(os.environ[_FOLDER]), values).start()


class Walk:
    """A walk, followed from `begin` to `end`.

    Args:
        folder: folder for the hand-overs, with nothing else in it.
        values: numbers to follow; none: only calls are followed.
    """

    def __init__(self, folder: Path, values: Sequence[float] = ()) -> None:
        self._folder = folder
        (folder / _IS_OPEN).write_bytes(b"\0")
        (folder / "sitecustomize.py").write_text(_SITE.format(root=str(ROOT)))
        self.environment = {
            _FOLDER: str(folder),
            _VALUES: " ".join(map(str, values)),
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        }
        self._follower = _Follower(folder, frozenset(values))

    def __enter__(self) -> Self:
        self._follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._follower.stop()

    def begin(self) -> None:
        """Begin to follow, in all processes."""
        self._follower.is_open[0] = True

    def end(self) -> tuple[HandOver, ...]:
        """End, and return what was handed over."""
        self._follower.is_open[0] = False
        files = sorted(self._folder.glob(f"*.{_ROWS}"))
        rows = {line for file in files for line in file.read_text().splitlines()}
        return tuple(
            HandOver(caller, module, function, event, frozenset(found))
            for caller, module, function, event, found in map(json.loads, sorted(rows))
        )
