"""Reading real files of every kind: what becomes text, what is passed over, and why."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from standfast.checkpoint.errors import InvalidRequest
from standfast.tools import readers
from standfast.tools.passages import MOST
from standfast.tools.readers import ReadDocument, SkippedFile, passages, read_documents

DOCUMENTS = Path(__file__).parents[2] / "notebooks" / "documents"


def read(*paths: Path) -> dict[str, ReadDocument | SkippedFile]:
    return {result.name: result for result in read_documents(paths)}


def document(path: Path) -> ReadDocument:
    (result,) = read_documents([path])
    assert isinstance(result, ReadDocument), result
    return result


def reason(path: Path) -> str:
    (result,) = read_documents([path])
    assert isinstance(result, SkippedFile), result
    return result.reason


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_pdf(path: Path, lines: Sequence[str], *, title: str = "", password: str = "") -> Path:
    writer = PdfWriter()
    page = writer.add_blank_page(width=595, height=842)
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(_names(font))})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    content = DecodedStreamObject()
    shown = "".join(f"({line}) Tj 0 -14 Td " for line in lines)
    content.set_data(f"BT /F1 11 Tf 72 770 Td {shown}ET".encode())
    page[NameObject("/Contents")] = writer._add_object(content)
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


def _names(entries: dict[str, str]) -> DictionaryObject:
    return DictionaryObject({NameObject(key): NameObject(value) for key, value in entries.items()})


def test_the_shipped_texts_are_read_and_their_provenance_is_not_one_of_them() -> None:
    results = read(DOCUMENTS)
    provenance = results.pop("PROVENANCE.md")
    assert isinstance(provenance, SkippedFile)
    assert "where the other files come from" in provenance.reason
    assert list(results) == [
        "apache-2.0.txt",
        "blue-oak-1.0.0.md",
        "bsd-3-clause.txt",
        "cc0-1.0.txt",
        "gpl-3.0.txt",
        "lgpl-3.0.txt",
        "mpl-2.0.txt",
    ]
    for name, result in results.items():
        data = (DOCUMENTS / name).read_bytes()
        assert isinstance(result, ReadDocument)
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (result.sha256, result.size)
        assert data.decode().split() == result.text.split()  # nothing but blank space was changed


def test_titles_are_what_the_texts_call_themselves() -> None:
    titles = {name: r.title for name, r in read(DOCUMENTS).items() if isinstance(r, ReadDocument)}
    assert titles["gpl-3.0.txt"] == "GNU GENERAL PUBLIC LICENSE, Version 3, 29 June 2007"
    assert titles["apache-2.0.txt"] == "Apache License, Version 2.0, January 2004"
    assert titles["blue-oak-1.0.0.md"] == "Blue Oak Model License"
    assert titles["mpl-2.0.txt"] == "Mozilla Public License Version 2.0"


def test_the_lines_of_a_hard_wrapped_paragraph_flow_and_a_verse_stays(tmp_path: Path) -> None:
    prose = (
        "The quick brown fox jumps over the lazy dog, and then it goes home\n"
        "and sleeps until the next morning, when the whole thing begins anew\n"
        "with another dog."
    )
    verse = "Tyger Tyger, burning bright,\nIn the forests of the night;"
    fence = "```\nx = 1\n" + "y" * 66 + "\nz = 3\n```"
    text = document(write(tmp_path / "a.md", f"{prose}\n\n{verse}\n\n- one\n- two\n\n{fence}\n")).text
    assert text == f"{prose.replace(chr(10), ' ')}\n\n{verse}\n\n- one\n- two\n\n{fence}"


def test_markdown_is_known_by_its_name_and_titled_by_its_heading(tmp_path: Path) -> None:
    read_ = document(write(tmp_path / "a.markdown", "intro\n\n## The *terms* ##\n\nPay within 30 days.\n"))
    assert (read_.media_type, read_.title) == ("text/markdown", "The *terms*")


def test_html_gives_its_visible_words_in_blocks(tmp_path: Path) -> None:
    page = """<?xml version="1.0"?><html><head><title>Terms &amp; rules</title>
    <style>p {color: red}</style></head>
    <body><h1>Terms</h1><p>Pay <b>with</b>in
       30 days.<script>alert("no")</script></p><!-- unseen --><ul><li>one</li><li>two</li></ul>
    <table><tr><td>a</td><td>b</td></tr></table><pre>x  =\n  1</pre>line<br>break</body></html>"""
    read_ = document(write(tmp_path / "a.html", page))
    assert (read_.media_type, read_.title) == ("text/html", "Terms & rules")
    expected = ["Terms", "Pay within 30 days.", "- one", "- two", "a b", "x  =\n  1", "line\nbreak"]
    assert expected == [" ".join(p.split(" ")).strip() for p in read_.text.split("\n\n") if p.strip()]


def test_html_that_is_only_a_few_words_is_read_without_a_warning(tmp_path: Path) -> None:
    assert document(write(tmp_path / "a.html", "https://example.com")).text == "https://example.com"


def test_a_pdf_is_read_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "contract", ["Either side may end this", "with 30 days notice."], title="A contract")
    read_ = document(path)
    assert (read_.media_type, read_.title) == ("application/pdf", "A contract")
    assert read_.text.split() == ["Either", "side", "may", "end", "this", "with", "30", "days", "notice."]


def test_a_pdf_with_a_password_is_skipped_and_one_without_is_not(tmp_path: Path) -> None:
    assert reason(write_pdf(tmp_path / "a.pdf", ["secret"], password="hunter2")) == "an encrypted PDF"
    assert document(write_pdf(tmp_path / "b.pdf", ["not secret"])).text == "not secret"


def test_a_pdf_of_nothing_but_pictures_is_skipped_as_a_scan(tmp_path: Path) -> None:
    assert reason(write_pdf(tmp_path / "a.pdf", [])) == "holds no text (a scan?)"


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_broken_pdf_is_skipped(tmp_path: Path, kept: float) -> None:
    whole = write_pdf(tmp_path / "whole.pdf", ["some text"]).read_bytes()
    garbled = whole[: int(len(whole) * kept)].replace(b"obj", b"???")
    assert reason(write(tmp_path / "a.pdf", garbled)).startswith("a broken PDF (")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b" \n\n\t\n", "holds no text"),
        ("caf\u00e9".encode("latin-1"), "not UTF-8 (byte 0xe9 at offset 3)"),
        ("caf\u00e9".encode("utf-16"), "UTF-16, not UTF-8: save it as UTF-8 to have it read"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
        (b"\1\2\3\4 text", "binary"),
    ],
)
def test_what_is_no_text_is_skipped_with_the_reason(tmp_path: Path, content: bytes, expected: str) -> None:
    assert reason(write(tmp_path / "a.txt", content)) == expected


def test_control_characters_are_replaced_one_for_one(tmp_path: Path) -> None:
    text = document(write(tmp_path / "a.txt", "one\0two\x1bthree, tab\there\r\nnext\rlast\fpage \u00e9\n")).text
    assert text == "one\ufffdtwo\ufffdthree, tab\there\nnext\nlast\n\npage \u00e9"


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    assert document(write(tmp_path / "a.txt", b"\xef\xbb\xbfhello")).text == "hello"


def test_a_file_above_the_limit_is_skipped(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(readers.LARGEST + 1)
    assert reason(tmp_path / "a.txt") == "larger than 50 MB"


def test_ten_megabytes_are_read_and_cut_in_seconds(tmp_path: Path) -> None:
    started = time.monotonic()
    paragraphs = document(write(tmp_path / "a.txt", ("Some words in a line. " * 30 + "\n\n") * 15_000)).text
    one_line = document(write(tmp_path / "b.txt", "x" * 10_000_000)).text
    assert len(passages(paragraphs)) == 15_000
    assert len(passages(one_line)) == -(-10_000_000 // MOST)
    assert time.monotonic() - started < 20


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "secret").chmod(0)
    assert reason(tmp_path / "a.txt") == "permission denied"


def test_a_pipe_is_skipped_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    assert reason(tmp_path / "a.txt") == "not a regular file"


def test_hidden_files_and_folders_are_skipped_unless_named(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "config", "x")
    hidden = write(tmp_path / ".notes.txt", "y")
    results = read(tmp_path)
    assert {name: r.reason for name, r in results.items() if isinstance(r, SkippedFile)} == {
        ".git": "hidden",
        ".notes.txt": "hidden",
    }
    assert document(hidden).text == "y"


def test_links_inside_a_folder_are_never_followed(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "key.txt", "secret")
    folder = tmp_path / "folder"
    write(folder / "real.txt", "text")
    (folder / "loop").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    (folder / "out.txt").symlink_to(tmp_path / "outside" / "key.txt")
    results = read(folder)
    assert list(results) == ["loop", "out.txt", "real.txt", "self"]
    assert [name for name, r in results.items() if isinstance(r, ReadDocument)] == ["real.txt"]
    assert document(folder / "out.txt").text == "secret"  # named by the user himself


def test_order_and_names_depend_on_the_names_alone(tmp_path: Path) -> None:
    for name in ["b.txt", "a/z.txt", "a/b/c.txt", "c.txt"]:
        write(tmp_path / name, name)
    assert list(read(tmp_path)) == ["a/b/c.txt", "a/z.txt", "b.txt", "c.txt"]


def test_two_files_of_one_name_are_told_apart_and_one_file_is_read_once(tmp_path: Path) -> None:
    for folder in ["one", "two"]:
        write(tmp_path / folder / "a.txt", folder)
    results = read(tmp_path / "one", tmp_path / "two", tmp_path / "one")
    assert list(results) == ["a.txt", "two/a.txt", "one/a.txt"]
    again = results["one/a.txt"]
    assert isinstance(again, SkippedFile)
    assert again.reason == "the same file as 'a.txt'"


def test_a_name_that_is_not_utf8_is_made_storable(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9\n.txt")).write_text("text")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    assert list(read(tmp_path)) == ["caf\ufffd\ufffd.txt"]


@pytest.mark.parametrize("name", ["absent.txt", "nul\0.txt"])
def test_a_missing_path_is_refused_by_name_before_anything_is_read(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.txt", "text")
    with pytest.raises(InvalidRequest) as refused:
        read_documents([tmp_path / "a.txt", tmp_path / name])
    assert repr(str(tmp_path / name)) in str(refused.value)


def test_passages_keep_headings_with_their_paragraph_and_lists_with_their_lead_in() -> None:
    gpl = [p.text for p in passages(document(DOCUMENTS / "gpl-3.0.txt").text)]
    (conveying,) = [text for text in gpl if text.startswith("6. Conveying Non-Source Forms.")]
    assert "in one of these ways:" in conveying
    assert "b) Convey the object code in, or embodied in, a physical product" in conveying
    apache = [p.text for p in passages(document(DOCUMENTS / "apache-2.0.txt").text)]
    (redistribution,) = [text for text in apache if text.startswith("4. Redistribution.")]
    assert "(b) You must cause any modified files to carry prominent notices" in redistribution


def test_most_passages_of_the_shipped_texts_have_the_intended_size() -> None:
    sizes = [
        len(passage.text)
        for result in read(DOCUMENTS).values()
        if isinstance(result, ReadDocument)
        for passage in passages(result.text)
    ]
    assert max(sizes) <= MOST
    assert sum(size >= 250 for size in sizes) / len(sizes) > 0.95


@given(st.text(st.sampled_from("ab A1.;\n\t#-()"), max_size=6_000) | st.text(max_size=3_000))
def test_passages_are_ordered_disjoint_slices_that_lose_nothing_but_blank_space(text: str) -> None:
    cut = passages(text)
    assert list(range(len(cut))) == [p.index for p in cut]
    assert all(text[p.start : p.end] == p.text and 0 < len(p.text) <= MOST for p in cut)
    edges = [0, *(offset for p in cut for offset in (p.start, p.end)), len(text)]
    assert edges == sorted(edges)
    assert "".join(text.split()) == "".join("".join(p.text.split()) for p in cut)
