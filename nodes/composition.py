"""Composition: a report made of nothing but quotations and the lines that say where they stand.

Invariant: every quotation is a stretch of a passage that was read, character by character, and stands in the
body with only its line breaks taken out. Nothing is judged, paraphrased or concluded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from standfast.nodes.extraction import Concept, Keywords, concepts, mentions, rank, sentences, stem, subject, tokens
from standfast.nodes.transcript import ReadPassage
from standfast.tools.passages import is_list_item

_QUOTES_EACH: Final = 6  # sentences of one document
_MOST_DOCUMENTS: Final = 3  # quoted, if the request names none
_MOST_TOPICS: Final = 3
_LEAST: Final = 0.3  # of the best score: what has less is left out
_FAVOUR: Final = 1.25
_MOST_ITEMS: Final = 3  # of a list
_SAME: Final = 0.6  # shared words from which two sentences say the same
_LONGEST_TITLE: Final = 100  # characters
_LONGEST_REQUEST: Final = 500
_QUOTATION: Final = re.compile(r'^> "(?P<quote>.+)" \((?P<document>.+), passage (?P<passage>\d+)\)$', re.MULTILINE)


@dataclass(frozen=True)
class Quotation:
    """Words of a passage."""

    document: str
    passage: int
    quote: str

    def __str__(self) -> str:
        return f'> "{_one_line(self.quote)}" ({self.document}, passage {self.passage})'


@dataclass(frozen=True)
class Report:
    """A report to propose; `body` is Markdown without the title."""

    title: str
    body: str
    quotations: tuple[Quotation, ...]
    sources: Mapping[str, str]  # document -> SHA-256

    def arguments(self) -> dict[str, Any]:
        """The report as arguments of `publish_report`."""
        return {
            "title": self.title,
            "body": self.body,
            "quotations": [vars(quotation) for quotation in self.quotations],
            "sources": [{"document": name, "sha256": sha256} for name, sha256 in self.sources.items()],
        }


def documents_named(about: Keywords, known: Mapping[str, str]) -> list[str]:
    """The known documents (name -> title) that the request names, in the order of the request.

    GPL-3 names gpl-3.0.txt and no lgpl-3.0.txt: letters must be the same words, numbers must begin the same way.
    A plain word names a document too, unless it stands in the names of all.
    """
    named: dict[str, None] = {}
    for name in about.names:
        named |= dict.fromkeys(document for document in known if names_document(name, document, known[document]))
    words = {document: set(tokens(document.rpartition(".")[0] or document)) for document in known}
    for term in about.terms:
        hits = [document for document in known if term in words[document]]
        if len(hits) < len(known):
            named |= dict.fromkeys(hits)
    return list(named)


def names_document(name: str, document: str, title: str = "") -> bool:
    """Whether `name`, as people write it, can mean the document of this file name or title."""
    wanted = tokens(re.sub(r"v(?=\d)", " ", name))  # GPLv3 is GPL-3
    letters = {token for token in wanted if token.isalpha()}
    numbers = [token for token in wanted if token.isdigit()]
    for known in (tokens(document), tokens(title)):
        known_numbers = [token for token in known if token.isdigit()]
        same_version = (
            not known_numbers
            or known_numbers[: len(numbers)] == numbers
            or (numbers[: len(known_numbers)] == known_numbers and not any(map(int, numbers[len(known_numbers) :])))
        )
        if letters and letters <= set(known) and same_version:
            return True
    return False


def wanted_terms(about: Keywords, known: Mapping[str, str]) -> list[str]:
    """The terms to look for in documents: also the names that are not those of known documents."""
    strange = unmatched(about, known)
    return [*about.terms, *(token for name in strange for token in tokens(name) if token.isalpha() and len(token) > 1)]


def unmatched(about: Keywords, known: Mapping[str, str]) -> list[str]:
    """The names in a request that no known document (name -> title) has."""
    return [name for name in about.names if not any(names_document(name, one, known[one]) for one in known)]


Scored = Sequence[tuple[float, Quotation]]
"""Quotations with their scores, best first."""


def scored(passages: Iterable[ReadPassage], wanted: Sequence[Concept], favoured: Collection[str] = ()) -> Scored:
    """Every sentence that mentions something wanted; all of them, in order, if nothing is wanted.

    `favoured` are sentences (their line breaks aside) that somebody else picked; they come before equals.
    """
    pool = list(dict.fromkeys(Quotation(p.document, p.passage, s) for p in passages for s in sentences(p.text)))
    if not wanted:
        return [(1.0, quotation) for quotation in pool]
    ranked = [
        (score * (_FAVOUR if _one_line(pool[index].quote) in favoured else 1.0), index)
        for index, score in rank([quotation.quote for quotation in pool], wanted)
    ]
    return [(score, pool[index]) for score, index in sorted(ranked, key=lambda one: (-one[0], one[1]))]


def best_of(document: str, found: Scored, most: int) -> list[Quotation]:
    """The best sentences of one document, no two of them alike and none far behind the first."""
    chosen: list[Quotation] = []
    own = [(score, quotation) for score, quotation in found if quotation.document == document]
    for score, quotation in own:
        if len(chosen) == most or score < own[0][0] * _LEAST:
            break
        if not any(_alike(quotation.quote, other.quote) for other in chosen):
            chosen.append(quotation)
    return chosen


def leading_documents(found: Scored) -> list[str]:
    """The documents of the best sentences, without those whose best is far behind."""
    return list(dict.fromkeys(quotation.document for score, quotation in found if score >= found[0][0] * _LEAST))


def quoted(text: str) -> list[Quotation]:
    """The quotations that stand in a text in the form `str(Quotation)` gives them."""
    return [Quotation(match["document"], int(match["passage"]), match["quote"]) for match in _QUOTATION.finditer(text)]


def compose(
    request: str,
    about: Keywords,
    passages: Sequence[ReadPassage],
    *,
    favoured: Collection[str] = (),
    without: Collection[Quotation] = (),
) -> Report | None:
    """A report of quotations on a request: one section per document, then, of several, one side by side.

    Of `without` nothing is quoted. None if no sentence of the passages has any of the request's words.
    """
    titles = {passage.document: passage.title for passage in passages}
    named = documents_named(about, titles)
    terms = wanted_terms(about, titles)
    found = scored(passages, concepts(terms), favoured)
    documents = named or leading_documents(found)[:_MOST_DOCUMENTS]
    sections: dict[str, list[Quotation]] = {}
    for document in documents:
        read = [passage for passage in passages if passage.document == document]
        best = best_of(document, found, _QUOTES_EACH)
        best += [item for one in best for item in _items_below(one, read) if item not in best]
        kept = [quotation for quotation in best if quotation not in without]
        if kept:
            sections[document] = sorted(kept, key=lambda one: (one.passage, _place(one, read)))
    if not sections:
        return None
    pairs = _side_by_side(terms, list(sections), [one for _, one in found if one not in without])
    used = [one for group in [*sections.values(), *(row for _, row in pairs)] for one in group]
    sources = {p.document: p.sha256 for p in passages if p.document in sections}
    return Report(
        title=_title(request) if terms else f"From {', '.join(sections)}",
        body=_body(request, sections, titles, pairs, sources, unmatched(about, titles) if named else []),
        quotations=tuple(dict.fromkeys(used)),
        sources=sources,
    )


def _side_by_side(
    terms: Sequence[str], documents: Sequence[str], ranked: Sequence[Quotation]
) -> list[tuple[str, list[Quotation]]]:
    """For each of the request's words, the sentence of each document that mentions it and most of the rest."""
    if len(documents) < 2:
        return []
    wanted = concepts(terms)
    rows: list[tuple[str, list[Quotation]]] = []
    used: set[Quotation] = set()
    for term in reversed(terms):  # in English the last words are the most specific
        concept = next(one for one in wanted if stem(term) in one)
        hits = [one for one in ranked if one not in used and mentions(one.quote, concept)]
        row = [next((one for one in hits if one.document == document), None) for document in documents]
        if None not in row:
            rows.append((term, [one for one in row if one is not None]))
            used.update(rows[-1][1])
    return rows[:_MOST_TOPICS]


def _body(
    request: str,
    sections: Mapping[str, Sequence[Quotation]],
    titles: Mapping[str, str],
    pairs: Sequence[tuple[str, Sequence[Quotation]]],
    sources: Mapping[str, str],
    strange: Sequence[str],
) -> str:
    lines = [
        f"Asked: {shortened(request, _LONGEST_REQUEST)}",
        "Put together by the offline model, which finds and quotes sentences by their words and judges nothing.",
    ]
    if strange:
        lines.append(f"No document that was found is called {', '.join(strange)}.")
    for document, chosen in sections.items():
        title = titles[document]
        lines.append(f"## {title} ({document})" if title and title != document else f"## {document}")
        lines += map(str, chosen)
    if pairs:
        lines.append("## Side by side")
        for term, row in pairs:
            lines += [f"### On: {term}", *map(str, row)]
    lines.append("## Sources")
    lines.append("\n".join(f"- {name}" + (f" (SHA-256 {sha})" if sha else "") for name, sha in sources.items()))
    return "\n\n".join(lines)


def _title(request: str) -> str:
    title = shortened(subject(request), _LONGEST_TITLE)
    return title[:1].upper() + title[1:]


def shortened(text: str, most: int) -> str:
    """A text on one line, cut at a space if it has more than `most` characters."""
    line = _one_line(text)
    return line if len(line) <= most else (line[:most].rpartition(" ")[0] or line[:most]) + " ..."


def _items_below(lead_in: Quotation, passages: Iterable[ReadPassage]) -> list[Quotation]:
    """The first items of the list that a sentence opens with a colon: without them it says nothing."""
    if not lead_in.quote.endswith(":"):
        return []
    text = next(p.text for p in passages if p.passage == lead_in.passage)
    below = itertools.takewhile(is_list_item, sentences(text[text.find(lead_in.quote) + len(lead_in.quote) :]))
    return [Quotation(lead_in.document, lead_in.passage, item) for item in itertools.islice(below, _MOST_ITEMS)]


def _place(quotation: Quotation, passages: Iterable[ReadPassage]) -> int:
    return next(p.text.find(quotation.quote) for p in passages if p.passage == quotation.passage)


def _alike(one: str, other: str) -> bool:
    a, b = set(tokens(one)), set(tokens(other))
    return len(a & b) / len(a | b) > _SAME


def _one_line(text: str) -> str:
    return " ".join(text.split())
