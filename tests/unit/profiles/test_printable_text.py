from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.printable_text import printable, toml_string

# Also halves of characters, as in a file's name that is not UTF-8.
_CHARACTERS = st.characters(exclude_categories=())


@given(st.text(_CHARACTERS))
def test_untrusted_text_is_one_line_and_as_toml_reads_the_same(text: str) -> None:
    line = printable(text)
    assert line.isprintable()
    assert len(line) == len(text)
    assert tomllib.loads(f"x = {toml_string(text)}")["x"] == line


def test_what_people_can_read_stays() -> None:
    assert printable("GPU “Ä” 😀\n\x1b[31m\u202e\udc80") == "GPU “Ä” 😀??[31m??"
    assert toml_string('a "b" \\ 😀') == '"a \\"b\\" \\\\ 😀"'
