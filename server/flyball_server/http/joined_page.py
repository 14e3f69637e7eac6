"""The dashboard's page as browsers get it: its modules and its styles joined to one file each.

The files of the folder are a page by themselves. Joining them needs no build step, as the scripts
use a small part of what modules can do: named imports and exports, each at the start of a line.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

_IMPORT = re.compile(r'^import (\{[^}]*\}|\w+) from "(\.[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export \{ ?(?:(\w+) as default)? ?\};$", re.MULTILINE)
# Left out, but for licences: types, and code that is switched off.
_COMMENT = re.compile(r"^[ \t]*/\*(?:(?!Copyright|\*/).)*\*/\n", re.MULTILINE | re.DOTALL)
_LEFT = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_STYLES = re.compile(r'(?: *<link rel="stylesheet" href="[^"]+">\n)+')
_SCRIPT = re.compile(r'(<script type="module" src=")([^"]+)(">)')
_ADDRESS = re.compile(r'(?<==")dashboard/[^"]+(?=")')


class UnjoinableError(ValueError):
    """A module that uses a form of import or export that is not joined."""


@dataclass(frozen=True, kw_only=True)
class JoinedPage:
    """The page with the files that it loads.

    Attributes:
        text: HTML; each address in it contains the hash of its file.
        files: content by address, relative to the page.
    """

    text: str
    files: Mapping[str, bytes]


def content_hash(content: bytes) -> str:
    """Return 24 characters that name this content, for a tag or an address."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()[:18]).decode()


def joined_page(text: str, files: Mapping[str, bytes]) -> JoinedPage:
    """Join the page's styles and modules.

    Args:
        text: HTML of the page.
        files: content of its files by address, relative to the page.

    Raises:
        UnjoinableError: a module cannot be joined.
    """
    joined = dict(files)

    def styles(found: re.Match[str]) -> str:
        joined["dashboard/page.css"] = b"".join(files[name] for name in _ADDRESS.findall(found[0]))
        return '    <link rel="stylesheet" href="dashboard/page.css">\n'

    def script(found: re.Match[str]) -> str:
        joined["dashboard/page.js"] = joined_modules(found[2], files).encode()
        return f"{found[1]}dashboard/page.js{found[3]}"

    named: dict[str, bytes] = {}

    def address(found: re.Match[str]) -> str:
        content = joined.get(found[0])
        if content is None:
            return found[0]
        stem, suffix = posixpath.splitext(found[0])
        name = f"{stem}.{content_hash(content)}{suffix}"
        named[name] = content
        return name

    text = _SCRIPT.sub(script, _STYLES.sub(styles, text))
    return JoinedPage(text=_ADDRESS.sub(address, text), files=named)


def joined_modules(entry: str, files: Mapping[str, bytes]) -> str:
    """Return a script that runs like the module at `entry` with all that it imports.

    Args:
        entry: address of the module.
        files: content of all modules by address.

    Raises:
        UnjoinableError: a module imports or exports in another way, or they import each other.
    """
    joining = _Joining(files)
    joining.add(entry, ())
    return "\n".join(joining.parts)


class _Joining:
    """Modules as functions that return what they export, each after those that it imports."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._names: dict[str, str] = {}
        self.parts: list[str] = []

    def add(self, path: str, importing: tuple[str, ...]) -> str:
        """Add a module if it is missing; return the name of its export."""
        if path in importing:
            raise UnjoinableError(f"{path} imports itself through {', '.join(importing)}")
        if path not in self._names:
            body, exported = self._as_body(path, (*importing, path))
            name = self._names[path] = f"module{len(self._names)}"
            self.parts += [f"// {path}", f"const {name} = (() => {{", body]
            self.parts += [f"return {{ {', '.join(exported)} }};", "})();"]
        return self._names[path]

    def _as_body(self, path: str, importing: tuple[str, ...]) -> tuple[str, list[str]]:
        folder, text = posixpath.dirname(path), _COMMENT.sub("", self._files[path].decode())

        def taken(found: re.Match[str]) -> str:
            other = self.add(posixpath.normpath(posixpath.join(folder, found[2])), importing)
            names = found[1].replace(" as ", ": ")
            return f"const {names if names[0] == '{' else f'{{ default: {names} }}'} = {other};"

        exported = [found[1] for found in _EXPORT.finditer(text)]
        exported += [f"default: {found[1]}" for found in _EXPORT_LIST.finditer(text) if found[1]]
        body = _EXPORT_LIST.sub("", _EXPORT.sub("", _IMPORT.sub(taken, text)))
        if left := _LEFT.search(body):
            raise UnjoinableError(f"{path} cannot be joined: {left[0]}")
        return body, exported
