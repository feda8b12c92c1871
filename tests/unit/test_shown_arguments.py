"""What a person decides on, in a terminal: every word of it once, and what is repeated by its beginning."""

from __future__ import annotations

from standfast.graph.cli.approval import AS_ABOVE, Repetitions

LONG = "To convey a modified version is permitted " + "if the conditions of this section are met and " * 3
BODY = f"Asked: something\n\n> {LONG}\n\nA short line\n\n## Side by side\n\n> {LONG}\n\nA short line"


def test_a_long_line_is_shown_once_and_then_by_its_beginning() -> None:
    shown = Repetitions()
    before, _, after = shown.text(BODY).partition("## Side by side")
    assert before == BODY.partition("## Side by side")[0]
    assert after.startswith("\n\n> To convey a modified version")
    assert AS_ABOVE in after
    assert after.endswith("A short line")
    assert shown.shortened == 1


def test_a_quotation_that_stands_in_the_text_is_shown_by_its_beginning_line_breaks_aside() -> None:
    shown = Repetitions()
    assert shown.quotation(LONG) == f'"{LONG}"'
    shown.text(BODY)
    assert shown.quotation(LONG.replace("conditions of", "conditions\n    of")).endswith(f'..."{AS_ABOVE}')
    assert shown.quotation("A short line") == '"A short line"'


def test_what_differs_in_one_character_is_shown_whole() -> None:
    shown = Repetitions()
    shown.text(BODY)
    for other in (LONG.replace("permitted", "forbidden"), LONG.replace(" is ", " is\u200b "), LONG + "not"):
        assert shown.quotation(other) == f'"{other}"'
        assert shown.text(f"> {other}") == f"> {other}"
    assert shown.shortened == 1  # in the body itself
