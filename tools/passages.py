"""Passages: the pieces in which a document is searched, read and quoted.

Invariant: the same text is always cut into the same passages, in order, without overlap, and every passage is
`text[start:end]` of it. Only blank space between passages is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ENOUGH = 400
"""Characters from which a passage is long enough to stand alone."""
MOST = 1200
"""Characters that no passage exceeds."""
_SECTION_ENOUGH = 250  # a new section closes the passage before it a little sooner

_PARAGRAPH = re.compile(r"\S[^\n]*(?:\n[^\S\n]*\S[^\n]*)*")
_NUMBERED = re.compile(r"(?:\d+(?:\.\d+)*\.?|[IVXLC]+\.|§\s?\d+|(?i:section|article|chapter|part)\s+\w+\b)\s+\S")
_MARKDOWN_HEADING = re.compile(r"#{1,6}\s+\S")
_UNDERLINE = re.compile(r"[^\n]+\n\s*(?:={3,}|-{3,})\s*")
_LIST_ITEM = re.compile(r"(?:[-*+•]|\(?(?:[a-zA-Z]|[ivxIVX]{1,4}|\d{1,2})\))\s+\S")
_SENTENCE_END = re.compile(r"[.!?;:][\"')\]\u201d\u2019]*\s")
_HEADING_MOST = 90


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage; `index` counts from 0, `start` and `end` are offsets into the text, in characters."""

    index: int
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is not torn apart unless it is too long: a paragraph with the headings right above it."""

    start: int
    end: int
    opens_section: bool
    list_item: bool


def passages(text: str) -> list[Passage]:
    """Cut `text` along its paragraphs into passages of about 400 to 1200 characters.

    A heading stays with the paragraph below it, the items of a list with their lead-in as far as they fit,
    and a section's start opens a new passage unless the one before is very short. A paragraph beyond 1200
    characters is cut after a sentence, or else at a space, or else (a text without spaces) hard. Time is
    linear in the text.
    """
    spans = enumerate(_packed(_units(text)))
    return [Passage(index, text[start:end], start, end) for index, (start, end) in spans]


def is_heading(paragraph: str) -> bool:
    """Whether a paragraph reads as a heading: short, and numbered, marked up, or without a sentence's end."""
    if _UNDERLINE.fullmatch(paragraph):
        return True
    line = paragraph.strip()
    if "\n" in line or len(line) > _HEADING_MOST:
        return False
    if _MARKDOWN_HEADING.match(line):
        return True
    if _NUMBERED.match(line):
        return len(_SENTENCE_END.findall(line[:-1])) <= 1  # the number's own full stop
    return line[:1].isupper() and line[-1] not in ".,:;!?\"'\u201d)" and not is_list_item(line)


def is_list_item(paragraph: str) -> bool:
    """Whether a paragraph begins with a bullet or with the letter or number of a list, such as (b)."""
    return _LIST_ITEM.match(paragraph.lstrip()) is not None


def _units(text: str) -> Iterator[_Unit]:
    start: int | None = None
    for match in _PARAGRAPH.finditer(text):
        paragraph = match.group()
        heading = is_heading(paragraph)
        if start is None:
            start = match.start()
            opens_section = heading or _NUMBERED.match(paragraph) is not None
            list_item = is_list_item(paragraph)
        end = match.end()
        if heading and end - start < ENOUGH:  # a long run of headings is a table of contents
            continue
        yield from _cut(text, _Unit(start, end, opens_section, list_item))
        start = None
    if start is not None:
        yield from _cut(text, _Unit(start, end, opens_section, list_item))


def _cut(text: str, unit: _Unit) -> Iterator[_Unit]:
    start, opens_section, list_item = unit.start, unit.opens_section, unit.list_item
    while unit.end - start > MOST:
        cut = _cutting_point(text, start)
        end = start + len(text[start:cut].rstrip())
        yield _Unit(start, end, opens_section, list_item)
        opens_section = list_item = False
        start = cut
    if start < unit.end:
        yield _Unit(start, unit.end, opens_section, list_item)


def _cutting_point(text: str, start: int) -> int:
    """The offset at which the next piece begins: never a space, always beyond `start`."""
    window = text[start : start + MOST + 1]
    ends = [match.end() for match in _SENTENCE_END.finditer(window) if match.end() >= ENOUGH]
    space = max(window.rfind(" "), window.rfind("\n"))
    if ends:
        cut = start + ends[-1]
    elif space >= ENOUGH:
        cut = start + space + 1
    else:
        cut = start + MOST
    while cut < len(text) and text[cut].isspace():
        cut += 1
    return cut


def _packed(units: Iterable[_Unit]) -> Iterator[tuple[int, int]]:
    start = end = 0
    for unit in units:
        length = end - start
        if length and (
            unit.end - start > MOST
            or (length >= ENOUGH and not unit.list_item)
            or (length >= _SECTION_ENOUGH and unit.opens_section)
        ):
            yield start, end
            length = 0
        if not length:
            start = unit.start
        end = unit.end
    if end > start:
        yield start, end
