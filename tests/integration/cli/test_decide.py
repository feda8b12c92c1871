"""`approve`, `reject`, `edit`, `resume`, `cancel`: one decision, once, for exactly what was shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

Propose = Callable[..., str]


def test_a_rejection_reaches_the_agent_and_the_run_ends_well(cli: Any, propose: Propose, tmp_path: Path) -> None:
    done = cli("reject", propose(), "--reason", "not before the audit", "--as", "alex")
    assert done.code == 0, done.err
    assert "Not done: publish_report. Rejected by alex: not before the audit" in done.out
    assert not (tmp_path / "reports").exists()
    decided = cli("approvals", "--all", "--json").json[0]
    assert ("rejected", "alex", True) == (decided["state"], decided["decided_by"], decided["vouched"])


def test_an_edit_is_published_as_edited(cli: Any, propose: Propose, tmp_path: Path) -> None:
    identifier = propose()
    (tmp_path / "changes.json").write_text(json.dumps({"title": "From the file"}))
    done = cli("edit", identifier, "--from", "changes.json", "--set", "title=My title", "--as", "alex", "--json")
    assert (done.code, done.json["status"]) == (0, "succeeded"), done.err
    published = Path(done.json["outcome"]["effects"][0]["result"]["published"])
    assert published.read_text().startswith("# My title\n")
    assert "edit" == cli("approvals", "--all", "--json").json[0]["decision"]


BAD_EDITS: tuple[tuple[list[str], str], ...] = (
    ([], "nothing to edit: give --set FIELD=VALUE"),
    (["--set", "title"], "--set takes FIELD=VALUE, not 'title'"),
    (["--set", "titel=x"], "no argument 'titel'"),
    (["--set", "title=7"], "the edit was not taken"),
    (["--set", "quotations.99.quote=x"], "'99' is not one of"),
    (["--set", "sources.0.hash.deep=x"], "there is no field 'hash'"),
    (["--set", "title.deep=x"], "would be inside str"),
    (["--from", "nowhere.json"], "'nowhere.json' cannot be read: No such file or directory"),
    (["--from", "broken.json"], "broken.json is not JSON"),
    (["--from", "list.json"], "must be a JSON object of arguments, not list"),
)


def test_an_edit_that_does_not_fit_leaves_the_approval_open(
    cli: Any, propose: Propose, count: Any, tmp_path: Path
) -> None:
    identifier = propose()
    (tmp_path / "broken.json").write_text('{"title": ')
    (tmp_path / "list.json").write_text("[1]")
    before = count()
    for changes, sentence in BAD_EDITS:
        done = cli("edit", identifier, *changes)
        assert done.code == 2, changes
        assert sentence in done.sentence, changes
    assert before == count()


def test_a_nested_field_of_an_edit_is_checked_again(cli: Any, propose: Propose) -> None:
    done = cli("edit", propose(), "--set", "quotations.0.quote=Nobody wrote this.", "--no-wait", "--json")
    assert done.code == 0, done.err
    assert "Nobody wrote this." == done.json["arguments"]["quotations"][0]["quote"]


def test_deciding_without_waiting_only_decides(cli: Any, propose: Propose, tmp_path: Path) -> None:
    done = cli("approve", propose(), "--no-wait", "--json", "--reason", "looks right")
    assert (done.code, done.json["state"], done.json["reason"]) == (0, "approved", "looks right")
    assert not (tmp_path / "reports").exists()
    assert cli("resume", "t").code == 0
    assert len(list((tmp_path / "reports").glob("*.md"))) == 1


def test_a_used_approval_says_what_was_decided_and_by_whom(cli: Any, propose: Propose, count: Any) -> None:
    identifier = propose()
    assert cli("approve", identifier, "--as", "alex").code == 0
    before = count()
    for command in (["approve", identifier], ["reject", identifier, "--reason", "no"]):
        done = cli(*command)
        assert done.code == 2
        assert f"approval '{identifier}' is already approved by alex; nothing was changed" in done.sentence
    assert before == count()


def test_an_unknown_approval_is_refused(cli: Any, propose: Propose, count: Any) -> None:
    propose()
    before = count()
    for identifier in ("apr-0000000000000000", "", "x" * 10_000, "'; drop table approvals; --", "apr-\udcff"):
        for command in (["approve", identifier], ["reject", identifier, "--reason", "no"]):
            done = cli(*command)
            assert done.code == 2, identifier
            assert "there is no approval" in done.sentence
    assert before == count()


def test_an_expired_approval_counts_as_rejected(
    clock: Any, cli: Any, propose: Propose, tmp_path: Path, query: Callable[..., list[tuple[Any, ...]]]
) -> None:
    identifier = propose()
    clock.move(timedelta(days=8))
    done = cli("approve", identifier)
    assert done.code == 2
    assert f"approval '{identifier}' expired at" in done.sentence
    ended = cli("resume", "t")
    assert ended.code == 0, ended.err
    assert "Not done: publish_report. Not done: nobody decided before" in ended.out
    assert not (tmp_path / "reports").exists()


def test_a_decision_for_another_digest_is_refused(cli: Any, propose: Propose) -> None:
    identifier = propose()
    done = cli("approve", identifier, "--digest", "0" * 64)
    assert done.code == 2
    assert "not for 000000000000" in done.sentence
    digest = cli("approvals", "--json").json[0]["digest"]
    assert cli("approve", identifier, "--digest", digest).code == 0


def test_free_text_never_approves(cli: Any, propose: Propose, count: Any) -> None:
    propose()
    before = count()
    for answer in ("yes", "approve", "true"):
        done = cli("resume", "t", answer)
        assert done.code == 2
        assert ("--json-answer" if answer == "true" else "is not a decision") in done.sentence
    assert before == count()


def test_a_decision_as_json_answers_the_open_question(cli: Any, propose: Propose) -> None:
    propose()
    done = cli("resume", "t", '{"decisions": [{"type": "reject", "message": "no"}]}', "--json-answer", "--as", "alex")
    assert done.code == 0, done.err
    assert "alex" == cli("approvals", "--all", "--json").json[0]["decided_by"]


def test_resuming_changes_nothing_while_it_waits_and_after_its_end(cli: Any, propose: Propose, count: Any) -> None:
    identifier = propose()
    before = count()
    assert cli("resume", "t").code == 3
    assert before == count()
    assert cli("approve", identifier).code == 0
    before = count()
    ended = cli("resume", "t")
    assert (ended.code, ended.out.startswith("Published: ")) == (0, True)
    assert before == count()
    answered = cli("resume", "t", "yes")
    assert answered.code == 2
    assert "asks nothing" in answered.sentence


def test_an_unknown_thread_is_refused(cli: Any, count: Any) -> None:
    for command in (["resume"], ["show"], ["cancel"], ["approvals", "--thread"]):
        done = cli(*command, "nobody")
        assert done.code == 2, command
        assert done.sentence == "standfast: there is no thread 'nobody'; see: standfast threads"
    assert set(count().values()) == {0}


def test_a_cancelled_run_ends_and_its_approval_is_void(cli: Any, propose: Propose, tmp_path: Path) -> None:
    identifier = propose()
    done = cli("cancel", "t")
    assert done.code == 0
    assert done.out == "cancelled: cancelled on request\n"
    assert cli("resume", "t").code == 1
    again = cli("cancel", "t")
    assert (again.code, "there is nothing to cancel" in again.sentence) == (2, True)
    assert cli("approve", identifier).code == 2
    assert not (tmp_path / "reports").exists()
