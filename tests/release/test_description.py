"""The long description of the wheel, as an index shows it: beyond the repository."""

from __future__ import annotations

import re
from email import message_from_string
from email.message import Message

import pytest
from build.util import project_wheel_metadata
from tests.release.distributions import ROOT, check_description, tracked_files

pytestmark = pytest.mark.slow

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)]*)\)|<(?:a|img)\b[^>]*\b(?:href|src)=[\"']([^\"']*)")
_NAMED = re.compile(r"(?<![\w./-])((?:docs|examples)/[\w./-]+\.md|[A-Z]+\.md)\b")


@pytest.fixture(scope="module")
def metadata() -> Message:
    made = project_wheel_metadata(ROOT, isolated=False)
    return message_from_string(str(made))


def test_every_link_leads_somewhere_beyond_the_repository(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    check_description(metadata)
    text = str(metadata.get_payload())
    targets = [markdown or html for markdown, html in _LINK.findall(text)]
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_pages_are_named_in_place_of_links_and_are_there(metadata: Message) -> None:
    text = str(metadata.get_payload())
    named = set(_NAMED.findall(text))
    linked = set(_NAMED.findall((ROOT / "README.md").read_text()))
    assert named == linked
    assert named <= tracked_files()
    assert "source distribution" in text


def test_no_picture_and_no_caption_of_one_is_left(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert "docs/images" not in text
    assert re.search(r"in nearly the same time.*?\n## ", text, re.DOTALL) is not None
    for address in metadata.get_all("Project-URL", []):
        assert address.partition(", ")[2].startswith("https://")


@pytest.mark.parametrize("link", ["[a page](docs/faq.md)", "![a picture](docs/images/plan.svg)"])
def test_a_link_of_the_repository_is_found(link: str) -> None:
    described = Message()
    described.set_payload(f"See {link}.")
    with pytest.raises(Exception, match="leads nowhere on an index's page"):
        check_description(described)
