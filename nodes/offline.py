"""The offline model: a chat model without a language model in it, which drives the agent by counting words.

Invariant: an answer is a pure function of the messages and of the tools that are bound; nothing is fetched,
nothing is kept between calls, and every sentence that it quotes was in a tool's result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from standfast.nodes.composition import (
    Quotation,
    Report,
    best_of,
    compose,
    documents_named,
    leading_documents,
    quoted,
    scored,
    shortened,
    unmatched,
    wanted_terms,
)
from standfast.nodes.extraction import Keywords, concepts, is_file_name, keywords, queries, rank, related, subject
from standfast.nodes.transcript import ReadPassage, ToolUse, Transcript

SEARCH: Final = "search_documents"
READ: Final = "read_document"
DELEGATE: Final = "delegate"
PUBLISH: Final = "publish_report"

_PASSAGES_PER_SEARCH: Final = 20
_PASSAGES_UNSEEN: Final = 5  # read from the start of a document that no search found
_READS_PER_DOCUMENT: Final = 6
_READS_OF_SPECIALIST: Final = 4  # of each document: it looks where the agent looked, and a little elsewhere
_MOST_SEARCHES: Final = 4
_MOST_READS: Final = 12
_MOST_FINDINGS: Final = 6  # sentences of each document
_MOST_DOCUMENTS: Final = 4  # that the specialist quotes if its task names none
_MOST_MENDS: Final = 2
_LONGEST_TASK: Final = 500  # characters
_SPECIALIST: Final = re.compile(r"\byou are (?:the|an?)\b[^.\n]*\bspecialist\b", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"\(([^()\n]+), passage (\d+)\)")
_QUESTION: Final = re.compile(
    r"^\W*(?:what|which|who|whose|when|where|why|how|is|are|do|does|did|can|may)\b|\?\s*$", re.IGNORECASE
)
_PUBLISHING: Final = re.compile(r"\b(?:publi[sc]\w+|report|post)\b", re.IGNORECASE)
_NO_PUBLISHING: Final = re.compile(r"\b(?:not|never|without|don't)\s+(?:\w+\s+)?(?:publish|post)", re.IGNORECASE)
_GREETING: Final = (
    "Hello. I am the offline model: not a language model, but a program that searches documents for the words of "
    "a request and quotes what it finds. Ask something about the documents of this run."
)
_NO_SEARCH: Final = (
    f"I am the offline model and can do nothing here: I work by searching documents, and the tool {SEARCH} is "
    "not among mine."
)

Calls = list[tuple[str, dict[str, Any]]]
"""Tool calls: names with arguments."""
Answer = str | Calls
"""A plain answer, or calls."""


class OfflineModel(BaseChatModel):
    """A deterministic stand-in where no language model is to be had.

    Bound to `search_documents`, `read_document`, `delegate` and `publish_report` (or some of them; others are
    left alone) it searches for the words of the request, reads what was found, has the specialist look too, and
    proposes a report of quotations. A system message that says "you are the specialist" makes it that: it
    returns sentences. It reports no usage, for words are not tokens.
    """

    model_name: str = "offline"

    @property
    def _llm_type(self) -> str:
        return "offline"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name}

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools; `tool_choice="none"` offers none, any other choice is left to the model."""
        offered = [] if tool_choice == "none" else [convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=offered, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = _message(messages, kwargs.get("tools") or (), self.model_name)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        whole = _message(messages, kwargs.get("tools") or (), self.model_name)
        for word in re.findall(r"\s*\S+|\s+$", str(whole.content)):
            yield _told(AIMessageChunk(content=word), run_manager)
        for index, call in enumerate(whole.tool_calls):
            part = tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
            yield _told(AIMessageChunk(content="", tool_call_chunks=[part]), run_manager)
        last = AIMessageChunk(content="", response_metadata=whole.response_metadata, chunk_position="last")
        yield _told(last, run_manager)


def _told(message: AIMessageChunk, run_manager: CallbackManagerForLLMRun | None) -> ChatGenerationChunk:
    chunk = ChatGenerationChunk(message=message)
    if run_manager is not None:
        run_manager.on_llm_new_token(str(message.content), chunk=chunk)
    return chunk


def _message(messages: Sequence[BaseMessage], tools: Sequence[Mapping[str, Any]], model_name: str) -> AIMessage:
    talk = Transcript.of(messages, tools)
    answer = _as_specialist(talk) if _is_specialist(talk) else _as_agent(talk)
    calls = [] if isinstance(answer, str) else answer
    return AIMessage(
        content=answer if isinstance(answer, str) else "",
        tool_calls=[
            tool_call(name=name, args=arguments, id=talk.call_id(index))
            for index, (name, arguments) in enumerate(calls)
        ],
        response_metadata={"model_name": model_name, "finish_reason": "tool_calls" if calls else "stop"},
    )


def _is_specialist(talk: Transcript) -> bool:
    return _SPECIALIST.search(talk.system) is not None and not {DELEGATE, PUBLISH} & set(talk.schemas)


def _as_agent(talk: Transcript) -> Answer:
    """Search, search again for what is missing, read, have the specialist look, read what it found, propose, tell."""
    about = keywords(talk.request)
    if talk.used(PUBLISH):
        return _after_proposal(talk, about)
    if not about:
        return _GREETING
    if SEARCH not in talk.schemas:
        return _NO_SEARCH
    steps = (_search, _search_again, _read, _delegate, _read_findings)
    calls = next((calls for step in steps if (calls := step(talk, about))), [])
    return calls or _propose(talk, about)


def _search(talk: Transcript, about: Keywords) -> Calls:
    if talk.used(SEARCH):
        return []
    return [call for query in queries(about) for call in _searching(talk, query)]


def _search_again(talk: Transcript, about: Keywords) -> Calls:
    """Word by word if nothing was found, and for each name that no document found so far has."""
    if talk.times(SEARCH) != 1 or talk.used(READ):
        return []
    known = _titles(talk)
    words = [*about.terms, *related(about.terms)] if not known else []
    missing = unmatched(about, known)
    bare = [re.split(r"[\W\d_]+", name, maxsplit=1)[0] for name in missing]
    asked = {str(use.args.get("query")) for use in talk.used(SEARCH)}
    fresh = [query for query in dict.fromkeys([*bare, *words]) if query and query not in asked]
    return [call for query in fresh[:_MOST_SEARCHES] for call in _searching(talk, query)]


def _searching(talk: Transcript, query: str) -> Calls:
    return talk.call(SEARCH, query=query, limit=_PASSAGES_PER_SEARCH)


def _read(talk: Transcript, about: Keywords) -> Calls:
    """The passages that promise most, of each document that the request names, or of all."""
    if talk.used(READ):
        return []
    known = _titles(talk)
    chosen = _promising(talk.passages(SEARCH), about, documents_named(about, known), _READS_PER_DOCUMENT)
    unseen = [name for name in unmatched(about, known) if is_file_name(name)]
    return [
        *(call for one in chosen[:_MOST_READS] for call in _reading(talk, one.document, one.passage)),
        *(call for name in unseen for call in talk.call(READ, document=name, passage=0, count=_PASSAGES_UNSEEN)),
    ]


def _reading(talk: Transcript, document: str, passage: int) -> Calls:
    return talk.call(READ, document=document, passage=passage)


def _promising(found: Sequence[ReadPassage], about: Keywords, named: Collection[str], each: int) -> list[ReadPassage]:
    """The best passages of each document (of the named ones, if any), document after document."""
    wanted = concepts(wanted_terms(about, {one.document: one.title for one in found}))
    order = [found[index] for index, _ in rank([passage.text for passage in found], wanted)]
    order += [passage for passage in found if passage not in order]
    documents = dict.fromkeys(named or [passage.document for passage in order])
    best = {name: [one for one in order if one.document == name][:each] for name in documents}
    if not named:  # the best of all, not as many of each
        first = set(order[: 2 * each])
        best = {name: [one for one in group if one in first] for name, group in best.items()}
    return [one for group in best.values() for one in sorted(group, key=lambda one: one.passage)]


def _delegate(talk: Transcript, about: Keywords) -> Calls:
    read = talk.passages(READ, SEARCH)
    if talk.used(DELEGATE) or not read or not wanted_terms(about, _titles(talk)):
        return []
    named = documents_named(about, _titles(talk)) or list(dict.fromkeys(one.document for one in talk.passages(READ)))
    where = f" in {', '.join(named)}" if named else ""
    what = shortened(subject(talk.request), _LONGEST_TASK)
    return talk.call(DELEGATE, specialist="extractor", task=f"Find the sentences{where} about: {what}")


def _read_findings(talk: Transcript, about: Keywords) -> Calls:
    """The passages that the specialist quotes and that were not read yet: nothing is quoted from hearsay."""
    if not talk.used(DELEGATE) or talk.times(READ) > 1:
        return []
    read = {(one.document, one.passage) for one in talk.passages(READ)}
    cited = dict.fromkeys((one.document, one.passage) for one in _findings(talk))
    fresh = [place for place in cited if place not in read]
    return [call for document, passage in fresh[:_MOST_READS] for call in _reading(talk, document, passage)]


def _propose(talk: Transcript, about: Keywords) -> Answer:
    if not talk.passages(SEARCH, READ):
        failed = [use.text for use in talk.used(SEARCH) if use.failed]
        if failed and len(failed) == len(talk.used(SEARCH)):
            return f"The documents could not be searched, so nothing was done: {failed[-1]}"
        return (
            f"Nothing was found in the documents of this run for {', '.join([*about.names, *about.terms])}, "
            "so there is nothing to report and nothing was proposed."
        )
    report = _report(talk, about)
    if report is None:
        return "Passages were found, but no sentence in them says anything about the request; nothing was proposed."
    calls = talk.call(PUBLISH, **report.arguments()) if _wants_publishing(talk.request) else []
    return calls or f"# {report.title}\n\n{report.body}"


def _report(talk: Transcript, about: Keywords) -> Report | None:
    return compose(
        talk.request,
        about,
        talk.passages(READ) or talk.passages(SEARCH),
        favoured={one.quote for one in _findings(talk)},
        without={failing for use in talk.used(PUBLISH) for failing in _failing(use)},
    )


def _after_proposal(talk: Transcript, about: Keywords) -> Answer:
    proposals = talk.used(PUBLISH)
    last = proposals[-1]
    title = f"The report \u201c{last.args.get('title', '')}\u201d"
    if not last.failed:
        if not isinstance(last.data, Mapping) or "published" not in last.data:
            return f"{title} was answered with: {last.text}"
        note = last.text.rpartition("\n")[0]
        proposed = _quotations_of(last)
        names = ", ".join(dict.fromkeys(one.document for one in proposed))
        return (
            f"{title} was published: {last.data['published']}\n"
            + (f"{note}\n" if note else "")
            + f"As proposed, it quotes {len(proposed)} sentences from {names}."
        )
    if _failing(last) and len(proposals) <= _MOST_MENDS and (report := _report(talk, about)) is not None:
        return talk.call(PUBLISH, **report.arguments()) or f"{title} was not published. {last.text}"
    return f"{title} was not published. {last.text}"


def _failing(proposal: ToolUse) -> list[Quotation]:
    """The quotations that a failed check of a proposal names: by number, by their words, or by their document."""
    if not proposal.failed or proposal.declined:
        return []
    numbers = {int(number) for number in re.findall(r"\bquotation (\d+)\b", proposal.text)}
    sources = set(re.findall(r"\bsource '([^'\n]+)'", proposal.text))
    return [
        quotation
        for number, quotation in enumerate(_quotations_of(proposal), 1)
        if number in numbers or quotation.document in sources or quotation.quote in proposal.text
    ]


def _quotations_of(proposal: ToolUse) -> list[Quotation]:
    try:
        return [Quotation(one["document"], one["passage"], one["quote"]) for one in proposal.args["quotations"]]
    except (KeyError, TypeError):  # another model's proposal
        return []


def _as_specialist(talk: Transcript) -> Answer:
    """Search and read what the task names, then return the sentences that have most of its words."""
    about = keywords(_REFERENCE.sub(" ", talk.request))
    if not about:
        return "The task names nothing to look for."
    if not talk.rounds:
        named = [(document, int(passage)) for document, passage in _REFERENCE.findall(talk.request)]
        calls = [call for query in queries(about) for call in _searching(talk, query)]
        calls += [call for document, passage in named for call in _reading(talk, document, passage)]
        if calls:
            return calls
    documents = documents_named(about, _titles(talk))
    read = talk.passages(READ)
    if talk.times(READ) < 2 and len(talk.rounds) < 2:
        promising = _promising(talk.passages(SEARCH), about, documents, _READS_OF_SPECIALIST)
        calls = [
            call
            for one in promising[:_MOST_READS]
            if (one.document, one.passage) not in {(p.document, p.passage) for p in read}
            for call in _reading(talk, one.document, one.passage)
        ]
        if calls:
            return calls
    passages = read or talk.passages(SEARCH)
    found = scored(passages, concepts(wanted_terms(about, _titles(talk))))
    groups = documents or leading_documents(found)[:_MOST_DOCUMENTS]
    best = [one for document in groups for one in best_of(document, found, _MOST_FINDINGS)]
    return "\n\n".join(map(str, best)) or "No sentence in the documents bears on the task."


def _titles(talk: Transcript) -> dict[str, str]:
    return {passage.document: passage.title for passage in talk.passages(SEARCH, READ)}


def _findings(talk: Transcript) -> list[Quotation]:
    return [one for use in talk.used(DELEGATE) if not use.failed for one in quoted(use.text)]


def _wants_publishing(request: str) -> bool:
    """Not if the request says so, nor if it is a question that mentions no report."""
    if _NO_PUBLISHING.search(request):
        return False
    return _QUESTION.search(request) is None or _PUBLISHING.search(request) is not None
