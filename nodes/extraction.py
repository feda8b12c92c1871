"""Extraction: which words of a request matter, and which sentences of a text they point to.

Invariant: pure functions of their arguments. What they return of a text stands in it, character by character.
Counting words is all that happens here; the only knowledge of English is in the tables below.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from standfast.tools.passages import is_heading

_STOP_WORDS: Final = """
a about above after again against all also am an and another any anyone are as at be because been before
being below between both but by can cannot could did do does doing don't down during each either else etc
every few for from further get gets give given had has have having he her here hers him his how however i if
in into is it its itself just kind let like many me might mine more most much my no nor not of off on once
one only onto or other our ours out over own per please quite rather really same say says shall she should
side so some somebody someone something such tell than that the their theirs them then there these they
thing things this those through to too under until up upon us use used very want was we were what when where
whether which while who whole whom whose why will with within without would yes yet you your yours according
across concerning regarding document documents file files text texts passage passages sentence sentences
hello hi hey thanks thank happen happens good morning afternoon evening day bye goodbye welcome greetings
"""
_STOP: Final = frozenset(_STOP_WORDS.split())
# Words of one meaning in contracts, rules and reports: a text seldom uses the word that is asked with.
_RELATED_WORDS: Final = """
ship distribute redistribute convey deliver release supply distribution
binary executable object compiled
modify modification change alter adapt derivative revise amend
ask require must oblige obligation condition duty comply provided demand
allow permit permission grant right may
forbid prohibit restrict restriction
end terminate termination cancel expire revoke
cost price fee charge payment pay royalty
deadline period days term until
warranty guarantee liability liable damages
credit attribution notice copyright acknowledge
code source software program
licence license
sue litigation lawsuit
employee staff worker personnel
holiday vacation leave absence
buy purchase order procure
customer client buyer
risk danger hazard threat
error failure fault defect incident
"""
_RELATED: Final = tuple(frozenset(line.split()) for line in _RELATED_WORDS.split("\n") if line)
_RELATED_WEIGHT: Final = 0.7
_MOST_TERMS: Final = 12
_LONGEST_WORD: Final = 60
_MOST_QUERIES: Final = 4

_TOKEN: Final = re.compile(r"[^\W_]+(?:[-.+/_'\u2019][^\W_]+)*")
_FILE_NAME: Final = re.compile(r".+\.[a-z]{2,4}")
_VERSION: Final = re.compile(r"\s+(?:version\s+|v\.?\s?)?(\d+(?:\.\d+)*)\b", re.IGNORECASE)
_ERRAND: Final = re.compile(
    r"(?:[,;]?\s*\b(?:and|then|please|also)\b)*\s*"
    r"\b(?:publish|post|write|prepare|draft|produce|create|make)(?:ing)?\s+(?:me\s+|us\s+)?"
    r"(?:it\b|them\b|this\b|(?:(?:a|an|the|your|my|our|one)\s+)?(?:[\w-]+\s+){0,2}?"
    r"(?:report|summary|memo|brief|overview|comparison|findings|results?|answer)\b)"
    r"(?:\s+(?:about|on|of|that|which)\b)?",
    re.IGNORECASE,
)
_IMPERATIVE: Final = re.compile(
    r"^\W*(?:please\s+)?(?:compar(?:e|es|ing)|contrast|summari[sz](?:e|es|ing)|review|explain|describe"
    r"|list|find(?:\s+out)?|show|tell\s+(?:me|us)|analy[sz]e|examine|check|look\s+(?:up|at)|collect|extract"
    r"|quote|search(?:\s+for)?)\b\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Keywords:
    """What a request is about: `names` as written, other `terms` in order, and `pairs` of neighbours."""

    names: tuple[str, ...]
    terms: tuple[str, ...]
    pairs: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.names or self.terms)


def subject(request: str) -> str:
    """The request without its errand: what to look for, not what to do with it."""
    text = " ".join(_ERRAND.sub(" ", " ".join(request.split())).split())
    return _IMPERATIVE.sub("", text).strip(" ,;.") or text


def keywords(request: str) -> Keywords:
    """The words of a request that are worth searching for; none for a greeting. Meant for requests of some pages."""
    text = subject(request)
    names: list[str] = []
    terms: list[str] = []
    pairs: list[str] = []
    name_end = term_end = -1  # where the last name or term ended, if the next word may belong to it
    for match in _TOKEN.finditer(text):
        word, start = match.group(), match.start()
        if start < name_end or len(word) > _LONGEST_WORD:
            continue  # a version, taken with its name; or no word at all
        if _is_name(word, opens=not text[:start].strip() if start < 3 else text[start - 2] in ".!?:;"):
            version = None if any(map(str.isdigit, word)) else _VERSION.match(text, match.end())
            name = f"{word} {version.group(1)}" if version else word
            if name_end >= 0 and text[name_end:start] == " " and word[0].isupper() and len(names[-1]) < _LONGEST_WORD:
                names[-1] += f" {name}"
            else:
                names.append(name)
            name_end, term_end = version.end() if version else match.end(), -1
        elif word.lower() in _STOP or len(word) < 2:
            name_end = term_end = -1
        else:
            if term_end >= 0 and text[term_end:start] == " ":
                pairs.append(f"{terms[-1]} {word.lower()}")
            terms.append(word.lower())
            name_end, term_end = -1, match.end()
    often = {term for term, _ in Counter(terms).most_common(_MOST_TERMS)}
    return Keywords(
        names=tuple(dict.fromkeys(names))[:_MOST_TERMS],
        terms=tuple(dict.fromkeys(term for term in terms if term in often)),
        pairs=tuple(dict.fromkeys(pairs))[:_MOST_TERMS],
    )


def queries(about: Keywords) -> list[str]:
    """At most four searches: the terms with each name (or all names, if many), in other words, and a pair."""
    terms = " ".join(about.terms)
    named = list(about.names) if len(about.names) <= 2 else [" ".join(about.names)]
    planned = [f"{name} {terms}".strip() for name in named]
    others = " ".join(related(about.terms))
    planned += [f"{terms} {others}" if others else terms, *about.pairs[-1:]]
    return list(dict.fromkeys(query for query in planned if query))[:_MOST_QUERIES]


def related(terms: Iterable[str]) -> list[str]:
    """Words that mean about the same as some of the terms, without these."""
    stems = {stem(term) for term in terms}
    groups = [group for group in _RELATED if stems & {stem(word) for word in group}]
    return sorted({word for group in groups for word in group if stem(word) not in stems})


Concept = Mapping[str, float]
"""Stems that stand for one thing, with their weights."""


def concepts(terms: Iterable[str]) -> list[Concept]:
    """What to look for: each term with the words related to it; terms that are related are one concept."""
    found: list[dict[str, float]] = []
    for term in terms:
        concept = {stem(word): _RELATED_WEIGHT for word in related([term])} | {stem(term): 1.0}
        same = next((one for one in found if stem(term) in one), None)
        if same is None:
            found.append(concept)
        else:
            same |= {stem(term): 1.0}
    return list(found)


def mentions(text: str, concept: Concept) -> bool:
    """Whether a text has one of the concept's words."""
    return any(stem(token) in concept for token in tokens(text))


def rank(texts: Sequence[str], wanted: Sequence[Concept]) -> list[tuple[int, float]]:
    """Indices and scores of the texts that mention something wanted, best first; ties stay in order.

    BM25 (Robertson and Zaragoza 2009) over just these texts, with concepts for words: what all the texts mention
    says little. Then the share of the concepts that a text mentions counts, as a factor.
    """
    k, b = 0.8, 0.4
    counts = [Counter(stem(token) for token in tokens(text)) for text in texts]
    mean = sum(count.total() for count in counts) / max(len(texts), 1)
    amounts = [[sum(w * count[word] for word, w in concept.items()) for concept in wanted] for count in counts]
    found = [sum(1 for amount in column if amount) for column in zip(*amounts, strict=True)]
    rarity = [math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for n in found]
    scores = []
    for index, (count, amount) in enumerate(zip(counts, amounts, strict=True)):
        norm = k * (1 - b + b * count.total() / mean) if mean else k
        score = sum(r * a * (k + 1) / (a + norm) for r, a in zip(rarity, amount, strict=True))
        if score:
            share = sum(1 for a in amount if a) / len(amount)
            scores.append((index, score * share))
    return sorted(scores, key=lambda one: (-round(one[1], 9), one[0]))


_BREAK: Final = re.compile(
    r"\n\s*\n|\n(?=\s*[-*+\u2022]\s)|(?:(?<=[.;:,!?])|(?<=\band)|(?<=\bor))\n(?=\s*\(?(?:[a-zA-Z]|[ivx]{1,4}|\d{1,2})[.)]\s)"
)
_END: Final = re.compile(r"[.!?][\"')\]\u201d]*\s+(?=[\"'(\[\u201c]?[^\W\da-z_])")
_CLAUSE: Final = re.compile(r"[;:]\s+")
_NO_END: Final = re.compile(
    r"^\(?\d+(?:\.\d+)*[.)]$|(?:^|[\s(])(?:[A-Z]|(?:e\.g|i\.e|cf|vs|Inc|Ltd|Co|No|Sec|Art|Mr|Mrs|Ms|Dr|St))\.$"
)
_FEWEST_WORDS: Final = 5
_LONGEST_TITLE: Final = 8  # words
_LONGEST: Final = 420


def sentences(text: str) -> list[str]:
    """The sentences and list items of a text, word for word; headings and scraps are left out.

    One beyond 420 characters is cut after a semicolon or colon, if it has any.
    """
    found: list[str] = []
    for block in _split(text, _BREAK):
        if is_heading(block):
            continue
        for sentence in _split(block, _END, unless=_NO_END):
            found += _split(sentence, _CLAUSE) if len(sentence) > _LONGEST else [sentence]
    return [one for one in found if len(tokens(one)) >= _FEWEST_WORDS and not _is_title(one)]


def _is_title(text: str) -> bool:
    """Whether a sentence is only the title that a paragraph opens with, or shouted."""
    words = [word for word in tokens(text, lower=False) if word.isalpha()]
    small = sum(word.islower() for word in words)
    return small == 0 or (text[:1].isdigit() and len(words) <= _LONGEST_TITLE and small < len(words) / 2)


def _split(text: str, end: re.Pattern[str], *, unless: re.Pattern[str] | None = None) -> list[str]:
    """Cut after each match of `end`, unless what ends there matches `unless`."""
    pieces = []
    start = 0
    for match in end.finditer(text):
        piece = text[start : match.end()].strip()
        if unless is not None and unless.search(piece):
            continue
        pieces.append(piece)
        start = match.end()
    pieces.append(text[start:].strip())
    return [piece for piece in pieces if piece]


def tokens(text: str, *, lower: bool = True) -> list[str]:
    """Runs of letters or of digits, in lower case unless said otherwise: `GPL-3.0` is gpl, 3, 0."""
    return re.findall(r"[^\W\d_]+|\d+", text.lower() if lower else text)


def stem(word: str) -> str:
    """A word without its usual English endings: modify, modified and modification are one."""
    for ending, instead, least in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            word = word[: len(word) - len(ending)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sle":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word


_ENDINGS: Final = (
    ("ifications", "ify", 2),
    ("ification", "ify", 2),
    ("ations", "at", 3),
    ("ation", "at", 3),
    ("ments", "", 4),
    ("ment", "", 4),
    ("tions", "t", 3),
    ("tion", "t", 3),
    ("ying", "y", 2),
    ("ings", "", 3),
    ("ing", "", 3),
    ("ied", "y", 2),
    ("ies", "y", 2),
    ("sses", "ss", 2),
    ("ches", "ch", 2),
    ("shes", "sh", 2),
    ("xes", "x", 2),
    ("eed", "eed", 1),
    ("ed", "", 3),
    ("ss", "ss", 1),
    ("us", "us", 1),
    ("is", "is", 1),
    ("s", "", 2),
)


def is_file_name(word: str) -> bool:
    """Whether a word looks like the name of a file."""
    return _FILE_NAME.fullmatch(word) is not None


def _is_name(word: str, *, opens: bool) -> bool:
    """Whether a word is a name by its form; a capital says nothing where it `opens` a sentence."""
    letters = any(map(str.isalpha, word))
    if letters and any(map(str.isdigit, word)):
        return True
    if (len(word) > 1 and word.isupper()) or is_file_name(word):
        return True
    return not opens and word[0].isupper() and word.lower() not in _STOP and len(word) > 1
