"""The offline model at work: driven by a plain loop, with tools that really search and read the shipped texts."""

from __future__ import annotations

import functools
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)
from langchain_core.tools import StructuredTool

from standfast.nodes.offline import OfflineModel
from standfast.tools.readers import ReadDocument, passages, read_documents

FOLDER = Path(__file__).parents[2] / "notebooks" / "documents"
REQUEST = "Compare what GPL-3 and Apache-2.0 ask of someone who ships modified binaries, and publish a report"
AGENT = "You carry out requests. Let the specialist 'extractor' pick out sentences, then propose a report."
SPECIALIST = "You are the specialist 'extractor'. Find and return sentences."

Texts = dict[tuple[str, int], str]


class Desk:
    """The tools of one run over some documents, and what was done with them."""

    def __init__(self, documents: Sequence[ReadDocument], answers: Sequence[str | Exception] = ()) -> None:
        self.documents = documents
        self.texts: Texts = {(d.name, p.index): p.text for d in documents for p in passages(d.text)}
        self.answers = list(answers)  # what publish_report says, in order; then it publishes
        self.read: set[tuple[str, int]] = set()
        self.proposed: list[dict[str, Any]] = []
        self.log: list[AIMessage] = []

    def search_documents(self, query: str, limit: int = 5) -> str:
        """Find passages that have any of the words."""
        words = {word[:6] for word in re.findall(r"\w{3,}", query.lower())}
        hits = []
        for (name, index), text in self.texts.items():
            count = Counter(word[:6] for word in re.findall(r"\w{3,}", text.lower()))
            rank = sum(min(count[word], 2) for word in words)
            if rank:
                hits.append((-rank, name, index))
        return json.dumps([self._passage(name, index) | {"rank": -rank} for rank, name, index in sorted(hits)[:limit]])

    def read_document(self, document: str, passage: int = 0, count: int = 1) -> str:
        """Read passages of a document."""
        places = [(document, number) for number in range(passage, passage + count) if (document, number) in self.texts]
        if not places:
            raise LookupError(f"there is no passage {passage} of a document {document!r}")
        self.read.update(places)
        return json.dumps([self._passage(*place) for place in places])

    def delegate(self, specialist: str, task: str) -> str:
        """Give a task to a specialist."""
        assert specialist == "extractor"
        talk = [SystemMessage(SPECIALIST), HumanMessage(task)]
        return str(drive(talk, [self.search_documents, self.read_document], self.log)[-1].text)

    def publish_report(
        self, title: str, body: str, quotations: list[dict[str, Any]], sources: list[dict[str, str]]
    ) -> str:
        """Publish a report."""
        self.proposed.append({"title": title, "body": body, "quotations": quotations, "sources": sources})
        answer = self.answers.pop(0) if self.answers else json.dumps({"published": "/reports/a.md"})
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, request: str, *tools: str) -> list[BaseMessage]:
        names = tools or ("search_documents", "read_document", "delegate", "publish_report")
        talk = [SystemMessage(AGENT), HumanMessage(request)]
        return drive(talk, [getattr(self, name) for name in names], self.log)

    def _passage(self, name: str, index: int) -> dict[str, Any]:
        document = next(one for one in self.documents if one.name == name)
        return {
            "document": name,
            "sha256": document.sha256,
            "passage": index,
            "title": document.title,
            "text": self.texts[name, index],
        }


def drive(
    talk: Sequence[BaseMessage], functions: Sequence[Callable[..., str]], log: list[AIMessage]
) -> list[BaseMessage]:
    tools = {one.__name__: StructuredTool.from_function(one) for one in functions}
    model = OfflineModel().bind_tools(list(tools.values()))
    messages = list(talk)
    for _ in range(12):
        answer = model.invoke(messages)
        assert isinstance(answer, AIMessage)
        log.append(answer)
        messages.append(answer)
        if not answer.tool_calls:
            return messages
        messages += [_result(tools, call) for call in answer.tool_calls]
    raise AssertionError("the model does not come to an end")


def _result(tools: Mapping[str, StructuredTool], call: Any) -> ToolMessage:
    try:
        text, status = str(tools[call["name"]].invoke(call["args"])), "success"
    except (LookupError, RuntimeError) as error:
        text, status = str(error.args[0]), "error"
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)


def made_of(**texts: str) -> list[ReadDocument]:
    return [
        ReadDocument(f"{name}.txt", name * 8, "text/plain", name.title(), text, len(text))
        for name, text in texts.items()
    ]


@pytest.fixture(scope="module")
def licences() -> list[ReadDocument]:
    return [one for one in read_documents([FOLDER]) if isinstance(one, ReadDocument)]


@pytest.fixture
def desk(licences: list[ReadDocument]) -> Desk:
    return Desk(licences)


def called(messages: Sequence[BaseMessage]) -> list[list[str]]:
    return [
        sorted({call["name"] for call in one.tool_calls})
        for one in messages
        if isinstance(one, AIMessage) and one.tool_calls
    ]


def test_the_request_goes_through_searching_reading_delegating_and_proposing(desk: Desk) -> None:
    messages = desk.run(REQUEST)
    steps = [step for step, before in zip(called(messages), [[], *called(messages)], strict=False) if step != before]
    assert steps[:3] == [["search_documents"], ["read_document"], ["delegate"]]
    assert steps[-1] == ["publish_report"]
    assert "was published: /reports/a.md" in str(messages[-1].text)


def test_every_quotation_stands_word_for_word_in_a_passage_that_was_read_and_in_the_body(desk: Desk) -> None:
    desk.run(REQUEST)
    (report,) = desk.proposed
    for one in report["quotations"]:
        place = one["document"], one["passage"]
        assert place in desk.read
        assert one["quote"] in desk.texts[place]
        assert f'> "{" ".join(one["quote"].split())}" ({place[0]}, passage {place[1]})' in report["body"]
    assert report["body"].count('\n> "') >= len(report["quotations"])
    hashes = {one.name: one.sha256 for one in desk.documents}
    assert {one["document"]: one["sha256"] for one in report["sources"]} == {
        name: hashes[name] for name in ("gpl-3.0.txt", "apache-2.0.txt")
    }


def test_the_report_quotes_what_each_licence_asks_of_those_who_ship_modified_binaries(desk: Desk) -> None:
    desk.run(REQUEST)
    (report,) = desk.proposed
    assert report["title"] == "What GPL-3 and Apache-2.0 ask of someone who ships modified binaries"
    quotes: dict[str, list[str]] = {"gpl-3.0.txt": [], "apache-2.0.txt": []}
    for one in report["quotations"]:
        quotes[one["document"]].append(one["quote"])
    gpl, apache = map("\n".join, quotes.values())
    assert min(map(len, quotes.values())) >= 3
    # GPL-3, section 6: object code goes with the Corresponding Source, in one of these ways.
    assert "provided that you also convey the machine-readable Corresponding Source" in gpl
    assert "Convey the object code in, or embodied in, a physical product" in gpl
    assert sum("object code" in quote for quote in quotes["gpl-3.0.txt"]) >= 3
    # Apache-2.0, section 4: a copy of the licence, notices of changes, the NOTICE file.
    assert "You must give any other recipients of the Work or Derivative Works a copy of this License" in apache
    assert "You must cause any modified files to carry prominent notices" in apache
    assert 'If the Work includes a "NOTICE" text file as part of its distribution' in apache


def test_the_comparison_is_made_of_quotations_alone(desk: Desk) -> None:
    desk.run(REQUEST)
    _, _, rest = desk.proposed[0]["body"].partition("\n## Side by side\n")
    comparison, _, _ = rest.partition("\n## ")
    rows = comparison.split("### On: ")[1:]
    assert len(rows) >= 2
    for row in rows:
        _, *quotes = [line for line in row.splitlines() if line]
        found = [re.fullmatch(r'> ".+" \((.+), passage \d+\)', quote) for quote in quotes]
        assert [one and one[1] for one in found] == ["gpl-3.0.txt", "apache-2.0.txt"]


def test_the_same_conversation_gets_the_same_answer_with_the_same_ids(licences: list[ReadDocument]) -> None:
    logs = []
    for _ in range(2):
        desk = Desk(licences)
        desk.run(REQUEST)
        logs.append([(one.content, one.tool_calls) for one in desk.log])
    assert logs[0] == logs[1]
    ids = [call["id"] for _, calls in logs[0] for call in calls]
    assert len(ids) == len(set(ids))


async def test_streaming_gives_what_invoking_gives(desk: Desk) -> None:
    tools = [desk.search_documents, desk.read_document, desk.publish_report]
    model = OfflineModel().bind_tools([StructuredTool.from_function(one) for one in tools])
    talk: list[BaseMessage] = [SystemMessage(AGENT), HumanMessage(REQUEST)]
    for ending in [[], [AIMessage("Hello."), HumanMessage("hello")]]:
        whole = await model.ainvoke([*talk, *ending])
        chunks = list(model.stream([*talk, *ending]))
        merged: Any = sum(chunks[1:], chunks[0])
        async_merged: Any = None
        async for chunk in model.astream([*talk, *ending]):
            async_merged = chunk if async_merged is None else async_merged + chunk
        for streamed in (merged, async_merged):
            assert isinstance(streamed, AIMessageChunk)
            assert (whole.content, whole.tool_calls, whole.response_metadata) == (
                streamed.content,
                streamed.tool_calls,
                streamed.response_metadata,
            )
        assert len(chunks) > 3


def test_it_says_what_it_is_and_counts_no_tokens(desk: Desk) -> None:
    messages = desk.run("hello")
    assert "not a language model" in str(messages[-1].text)
    assert called(messages) == []
    answer = desk.log[-1]
    assert answer.usage_metadata is None
    assert (answer.response_metadata["model_name"], OfflineModel()._llm_type) == ("offline", "offline")


@pytest.mark.parametrize("request_", ["", "  \n", "what can you do?", "Hi there!", "\0"])
def test_a_request_without_content_gets_a_plain_answer(desk: Desk, request_: str) -> None:
    messages = desk.run(request_)
    assert called(messages) == []
    assert str(messages[-1].text)


@pytest.mark.parametrize("documents", [{}, {"recipe": "Boil the potatoes for twenty minutes, then drain them."}])
def test_when_nothing_is_found_it_says_so_and_proposes_nothing(documents: dict[str, str]) -> None:
    desk = Desk(made_of(**documents))
    messages = desk.run("Publish a report about quantum chromodynamics")
    assert str(messages[-1].text).startswith(
        "Nothing was found in the documents of this run for quantum, chromodynamics"
    )
    assert {"search_documents"} == {name for step in called(messages) for name in step}
    assert desk.proposed == []


@pytest.mark.parametrize("filler", ["and object code ", " ", "x", "\n- publish ", "GPL-3 ", "Aa "])
def test_a_request_of_ten_megabytes_is_served_in_seconds(desk: Desk, filler: str) -> None:
    started = time.monotonic()
    desk.run("Publish a report about warranty in Apache-2.0 " + filler * (10_000_000 // len(filler)))
    assert time.monotonic() - started < 20
    assert all(len(json.dumps(report)) < 100_000 for report in desk.proposed)


def test_any_documents_will_do() -> None:
    desk = Desk(
        made_of(
            handbook="1. Leave\n\nEvery employee has thirty days of paid leave in a year. Leave must be asked for two "
            "weeks ahead.\n\n2. Tools\n\nEach desk has one lamp and two chairs, and nobody may take a lamp home.",
            contract="Staff may take twenty days of vacation each year, provided that their manager agrees.",
        )
    )
    desk.run("Compare the holiday rules in handbook.txt and contract.txt, and publish a report")
    (report,) = desk.proposed
    assert {
        "Every employee has thirty days of paid leave in a year.",
        "Leave must be asked for two weeks ahead.",
        "Staff may take twenty days of vacation each year, provided that their manager agrees.",
    } == {one["quote"] for one in report["quotations"]}


def test_a_document_that_is_only_named_is_read_from_its_start(desk: Desk) -> None:
    desk.run("Summarise bsd-3-clause.txt")
    (report,) = desk.proposed
    assert report["title"] == "From bsd-3-clause.txt"
    assert any(one["quote"].startswith("2. Redistributions in binary form must") for one in report["quotations"])


def test_a_name_means_its_own_document_and_no_namesake(desk: Desk) -> None:
    desk.run("Publish a report on how GPL-3 treats patents")
    assert {"gpl-3.0.txt"} == {one["document"] for one in desk.proposed[0]["quotations"]}


def test_a_question_is_answered_and_not_published(desk: Desk) -> None:
    messages = desk.run("What does the Mozilla Public License say about trademarks?")
    assert desk.proposed == []
    assert "does not grant any rights in the trademarks, service marks, or logos" in str(messages[-1].text)


def test_it_does_not_publish_against_the_request(desk: Desk) -> None:
    desk.run("Review the patent terms of Apache-2.0, but do not publish anything")
    assert desk.proposed == []


def test_the_specialist_answers_with_sentences_that_stand_in_the_documents(desk: Desk) -> None:
    answer = desk.delegate("extractor", "Find the sentences in mpl-2.0.txt about: distribution in executable form")
    quotes = re.findall(r'^> "(.+)" \((.+), passage (\d+)\)$', answer, re.MULTILINE)
    assert "If You distribute Covered Software in Executable Form then:" in quotes[0][0]
    for quote, document, number in quotes:
        assert quote in " ".join(desk.texts[document, int(number)].split())


def test_the_specialist_reads_the_passages_that_its_task_points_to(desk: Desk) -> None:
    desk.delegate("extractor", "What says (cc0-1.0.txt, passage 2) about: the Affirmer?")
    assert ("cc0-1.0.txt", 2) in desk.read


def test_a_rejection_is_accepted_and_told_with_its_reason(desk: Desk) -> None:
    talk = desk.run(REQUEST)[:-2]  # up to the proposal
    proposal = talk[-1]
    assert isinstance(proposal, AIMessage)
    rejection = ToolMessage(
        "Rejected by anna: quotation 2 is out of place",  # a person's words, no order to mend
        tool_call_id=proposal.tool_calls[0]["id"] or "",
        status="error",
        additional_kwargs={"approval": "a-1", "decision": "reject"},
    )
    model = OfflineModel().bind_tools([StructuredTool.from_function(desk.publish_report)])
    answer = model.invoke([*talk, rejection])
    assert answer.tool_calls == []
    assert str(answer.text).endswith("was not published. Rejected by anna: quotation 2 is out of place")


def test_an_answer_instead_of_a_decision_is_told(licences: list[ReadDocument]) -> None:
    messages = Desk(licences, ["Ask me again on Monday."]).run(REQUEST)
    assert str(messages[-1].text).endswith("was answered with: Ask me again on Monday.")


def test_an_edit_before_publishing_is_told(licences: list[ReadDocument]) -> None:
    edited = 'anna edited the call before approving it.\n{"published": "/reports/b.md"}'
    text = str(Desk(licences, [edited]).run(REQUEST)[-1].text)
    assert "was published: /reports/b.md\nanna edited the call before approving it." in text


def test_failing_quotations_are_dropped_and_the_report_proposed_again(licences: list[ReadDocument]) -> None:
    reasons = "Mend the call and send it again:\n- quotation 1 (x, passage 0): not read\n- quotation 3 (x): not read"
    desk = Desk(licences, [LookupError(reasons)])
    messages = desk.run(REQUEST)
    first, second = desk.proposed
    assert [one for i, one in enumerate(first["quotations"], 1) if i not in (1, 3)] == [
        one for one in second["quotations"] if one in first["quotations"]
    ]
    assert first["quotations"][0] not in second["quotations"]
    assert first["quotations"][2] not in second["quotations"]
    assert first["quotations"][0]["quote"] not in second["body"]
    assert "was published" in str(messages[-1].text)


def test_it_mends_at_most_twice(licences: list[ReadDocument]) -> None:
    desk = Desk(licences, [LookupError("- quotation 1 (x, passage 0): not read")] * 5)
    messages = desk.run(REQUEST)
    assert len(desk.proposed) == 3
    assert "was not published. - quotation 1" in str(messages[-1].text)


@pytest.mark.parametrize(
    "tools",
    [
        ["publish_report"],
        ["delegate"],
        ["search_documents"],
        ["search_documents", "publish_report"],
        ["search_documents", "read_document"],
        ["read_document", "delegate"],
        ["search_documents", "delegate", "publish_report"],
    ],
)
def test_it_does_what_it_can_with_the_tools_it_has(desk: Desk, tools: list[str]) -> None:
    messages = desk.run(REQUEST, *tools)
    assert str(messages[-1].text)
    assert ("search_documents" in tools and "publish_report" in tools) == bool(desk.proposed)
    if "publish_report" not in tools and "search_documents" in tools:
        assert "provided that you also convey the machine-readable Corresponding Source" in str(messages[-1].text)


@pytest.mark.parametrize("broken", ["search_documents", "read_document", "delegate", "publish_report"])
def test_a_tool_that_always_fails_ends_in_a_plain_answer(
    desk: Desk, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.wraps(getattr(desk, broken))  # with its name and arguments
    def fails(*args: Any, **kwargs: Any) -> str:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(desk, broken, fails)
    messages = desk.run(REQUEST)
    text = str(messages[-1].text)
    assert text
    if broken in ("search_documents", "publish_report"):
        assert "the disk is full" in text
    else:
        assert "was published" in text


def test_results_in_other_shapes_are_read_and_nonsense_is_passed_over(desk: Desk) -> None:
    whole = desk.search_documents

    def search_documents(query: str) -> str:
        """Find passages."""
        return json.dumps({"passages": json.loads(whole(query, 20)), "total": 20})

    def read_document(document: str, passage: int) -> str:
        """Read one passage."""
        return "[1, null, {}]" if passage % 2 else json.dumps(json.loads(desk.read_document(document, passage))[0])

    messages = drive([HumanMessage(REQUEST)], [search_documents, read_document, desk.publish_report], desk.log)
    assert "was published" in str(messages[-1].text)
    assert all(one["passage"] % 2 == 0 for one in desk.proposed[0]["quotations"])


def test_a_tool_that_needs_more_than_the_model_can_give_is_left_alone(desk: Desk) -> None:
    def publish_report(title: str, body: str, budget: int) -> str:
        """Publish a report at a price."""
        raise AssertionError("was called")

    messages = drive([HumanMessage(REQUEST)], [desk.search_documents, publish_report], desk.log)
    assert str(messages[-1].text).startswith("# What GPL-3 and Apache-2.0 ask")


def test_an_earlier_request_of_the_thread_is_over(desk: Desk) -> None:
    messages = desk.run(REQUEST)
    tools = [StructuredTool.from_function(desk.search_documents)]
    answer = OfflineModel().bind_tools(tools).invoke([*messages, HumanMessage("Summarise the warranty terms of CC0")])
    assert {"search_documents"} == {call["name"] for call in answer.tool_calls}
    earlier = {call["id"] for one in messages if isinstance(one, AIMessage) for call in one.tool_calls}
    assert earlier.isdisjoint(call["id"] for call in answer.tool_calls)


def test_without_tools_it_answers_and_tool_choice_none_offers_none(desk: Desk) -> None:
    tools = [StructuredTool.from_function(desk.search_documents)]
    for model in (OfflineModel(), OfflineModel().bind_tools(tools, tool_choice="none")):
        answer = model.invoke(REQUEST)
        assert answer.tool_calls == []
        assert "I am the offline model" in str(answer.text)


def test_its_messages_are_plain_data(desk: Desk) -> None:
    desk.run(REQUEST)
    assert all(json.dumps(message_to_dict(one)) for one in desk.log)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["document", "passage", "text", "title", "published", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(st.lists(_JSON.map(json.dumps) | st.text(max_size=40), min_size=1, max_size=6))
def test_whatever_the_tools_return_it_comes_to_an_answer(results: list[str]) -> None:
    turn = itertools.cycle(results)

    def search_documents(query: str) -> str:
        """Find passages."""
        return next(turn)

    def read_document(document: str, passage: int) -> str:
        """Read a passage."""
        return next(turn)

    def delegate(specialist: str, task: str) -> str:
        """Give a task to a specialist."""
        return next(turn)

    def publish_report(title: str, body: str, quotations: list[Any], sources: list[Any]) -> str:
        """Publish a report."""
        return next(turn)

    messages = drive([HumanMessage(REQUEST)], [search_documents, read_document, delegate, publish_report], [])
    assert str(messages[-1].text)
