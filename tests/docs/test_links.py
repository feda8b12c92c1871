"""The pages are found from one another, and what is made from the code is as the code is."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.docs.pages import DOCS, ROOT, links, pages


def headings(text: str) -> Iterator[str]:
    """The anchors of a page's headings, as the forges make them."""
    for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_somewhere(page: str) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in headings(target.read_text()), f"{page}: {link}"


def test_every_page_is_linked_from_the_index() -> None:
    linked = {(DOCS / link).resolve().relative_to(ROOT) for link in links("docs/index.md") if "://" not in link}
    assert set() == {page for page in pages() if page != "docs/index.md"} - set(map(str, linked))


def test_the_reference_is_what_the_code_says() -> None:
    made: Final[dict[str, Any]] = runpy.run_path(str(DOCS / "reference.py"))
    assert made["page"]() == (DOCS / "reference.md").read_text(), "run: python docs/reference.py"
