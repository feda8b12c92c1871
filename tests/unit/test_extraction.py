"""Which words of a request count, and which sentences they lead to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.nodes.composition import documents_named, names_document
from standfast.nodes.extraction import concepts, keywords, queries, rank, sentences, stem, subject


def test_names_are_kept_as_written_and_errands_and_small_words_left_out() -> None:
    about = keywords(
        "Compare what GPL-3 and Apache-2.0 ask of someone who ships modified binaries, and publish a report"
    )
    assert about.names == ("GPL-3", "Apache-2.0")
    assert about.terms == ("ask", "ships", "modified", "binaries")
    assert about.pairs == ("ships modified", "modified binaries")
    assert [query.split()[0] for query in queries(about)[:2]] == ["GPL-3", "Apache-2.0"]
    assert len(queries(about)) == 4


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Write a short report comparing GPLv3 and MPL 2.0 on patents", ("GPLv3", "MPL 2.0")),
        ("what does the Mozilla Public License version 2 say?", ("Mozilla Public License 2",)),
        ("Summarise contract.pdf", ("contract.pdf",)),
        ("Payment terms. Deadlines? Everything: Please.", ()),
    ],
)
def test_names_are_told_by_digits_capitals_and_endings(request_: str, expected: tuple[str, ...]) -> None:
    assert keywords(request_).names == expected


@pytest.mark.parametrize("greeting", ["", "hello", "Hi there!", "Good morning, thanks", "what can you do for me?"])
def test_a_greeting_has_no_keywords(greeting: str) -> None:
    assert not keywords(greeting)
    assert queries(keywords(greeting)) == []


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Publish a report about how incidents must be reported", "how incidents must be reported"),
        ("Please review the terms, and then write me a summary.", "the terms"),
        ("Compare A with B", "A with B"),
    ],
)
def test_the_subject_is_the_request_without_its_errand(request_: str, expected: str) -> None:
    assert subject(request_) == expected


@pytest.mark.parametrize(
    "family",
    [
        "modify modifies modified modifying modification modifications",
        "ship ships shipped shipping",
        "binary binaries",
        "distribute distributes distributed distributing distribution",
        "require requires required requirement requirements",
        "copy copies copied copying",
        "license licenses licensed licensing",
    ],
)
def test_a_family_of_words_has_one_stem(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


def test_sentences_are_told_from_headings_scraps_numbers_and_abbreviations() -> None:
    text = (
        "4. Redistribution. You may copy the work as in section 7. "
        "This holds, e.g. Also, for Mr. Smith and his firm.\n\n"
        "Some Heading\n\nThe following has to be done:\n(a) give the others a copy; and\n(b) keep all of the notices."
    )
    assert sentences(text) == [
        "You may copy the work as in section 7.",
        "This holds, e.g. Also, for Mr. Smith and his firm.",
        "The following has to be done:",
        "(a) give the others a copy; and",
        "(b) keep all of the notices.",
    ]


@given(st.text(st.sampled_from("abc AB12.;:()\n\"'-#"), max_size=2_000) | st.text(max_size=500))
def test_sentences_stand_in_the_text_word_for_word_and_in_order(text: str) -> None:
    position = 0
    for sentence in sentences(text):
        position = text.index(sentence, position) + len(sentence)


def test_a_text_with_more_of_the_concepts_ranks_first_and_one_with_none_not_at_all() -> None:
    texts = [
        "Ships sail and ships sink.",
        "Who distributes compiled programs must add the source.",
        "The weather was fine.",
        "A condition applies.",
    ]
    order = [index for index, _ in rank(texts, concepts(["ask", "ships", "binaries"]))]
    assert order[0] == 1
    assert 2 not in order
    assert rank([], concepts(["ask"])) == rank(texts, []) == []


@pytest.mark.parametrize(
    ("name", "document", "title", "expected"),
    [
        ("GPL-3", "gpl-3.0.txt", "", True),
        ("GPLv3", "gpl-3.0.txt", "", True),
        ("GPL", "gpl-3.0.txt", "", True),
        ("GPL-2", "gpl-3.0.txt", "", False),
        ("GPL-3", "lgpl-3.0.txt", "", False),
        ("GPL-3.0", "gpl-3.txt", "", True),
        ("Apache-2.0", "LICENSE", "Apache License, Version 2.0", True),
        ("2024", "report-2024.md", "", False),
        ("ACME", "contract.pdf", "Contract with Acme Ltd", True),
    ],
)
def test_a_name_means_a_document_by_its_words_and_its_version(
    name: str, document: str, title: str, expected: bool
) -> None:
    assert names_document(name, document, title) is expected


def test_a_plain_word_names_a_document_unless_all_have_it() -> None:
    known = {"apache-license.txt": "", "mozilla-license.txt": ""}
    assert documents_named(keywords("compare the apache license terms"), known) == ["apache-license.txt"]
    assert documents_named(keywords("compare the license terms"), known) == []
