"""Readers: files on disk become texts that can be searched and quoted; what cannot is named, with the reason.

Invariant: one bad file never ends the reading. Every file met is reported once, as a `ReadDocument` or as a
`SkippedFile`, in an order that depends only on the names.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from bs4 import BeautifulSoup
from bs4.element import NavigableString, PageElement, Tag

from standfast.checkpoint.errors import InvalidRequest
from standfast.tools.passages import Passage, is_heading, passages

__all__ = ["LARGEST", "Passage", "ReadDocument", "SkippedFile", "passages", "read_documents"]

LARGEST = 50 * 1024 * 1024
"""Bytes; a larger file is skipped."""

MediaType = Literal["text/plain", "text/markdown", "text/html", "application/pdf"]

_MEDIA_TYPES: dict[str, MediaType] = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "text/html",
    ".pdf": "application/pdf",
}
_PROVENANCE = "PROVENANCE.md"
_LONGEST_TITLE = 200
_CENTRED = " " * 6
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
_UNSTORABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# pypdf tells of every oddity that it mends; in a program without logging handlers that would go to stderr.
logging.getLogger("pypdf").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """One file as text. `name` is its path below the given folder; `sha256` and `size` are of its bytes."""

    name: str
    sha256: str
    media_type: MediaType
    title: str
    text: str = field(repr=False)
    size: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """One file that was not read, and why."""

    name: str
    reason: str


class _Unreadable(Exception):
    """Why a file cannot become text; ends up as the reason of a `SkippedFile`."""


def read_documents(paths: Sequence[Path]) -> Iterator[ReadDocument | SkippedFile]:
    """Read files, and folders with all that is below them, in the order given and then by name.

    Text, Markdown, HTML and PDF are read; what a file is follows from its content, then from its name.
    Skipped, each with its reason: binary files, text that is not UTF-8, empty files, files above 50 MB,
    broken or encrypted PDFs, what may not be read, hidden files and folders (unless named themselves), links
    inside a folder (they could lead out of it or round in circles), and `PROVENANCE.md`, which tells where a
    folder's texts come from and is not one of them.

    The text is fit for Postgres and for quoting: line ends become a newline, a form feed a blank line, and
    every other control character (NUL too) and lone surrogate U+FFFD, one for one; the lines of a
    hard-wrapped paragraph are joined by spaces. Two files that would have one name get their folder's name
    in front.

    Raises `InvalidRequest`, before anything is read, for a path that does not exist or cannot be looked at.
    """
    for path in paths:
        try:
            os.stat(path)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InvalidRequest(
                f"The documents at {str(path)!r} cannot be read: {why}. Name a file or a folder that exists.",
                path=str(path),
            ) from error
    return _read_all([Path(path) for path in paths])


def count_files(paths: Sequence[Path]) -> int:
    """How many files `read_documents` would tell of, found without opening any; 0 for paths that do not exist."""
    return sum(1 for path in paths if os.path.exists(path) for _ in _walk(Path(path)))


def _read_all(roots: Sequence[Path]) -> Iterator[ReadDocument | SkippedFile]:
    read_as: dict[str, str] = {}  # real path -> the name it was reported under
    names: set[str] = set()
    for root in roots:
        for path, reason in _walk(root):
            name = _free_name(root, path, names)
            names.add(name)
            if reason is None:
                real = os.path.realpath(path)
                if real in read_as:
                    reason = f"the same file as {read_as[real]!r}"
                read_as.setdefault(real, name)
            yield SkippedFile(name, reason) if reason is not None else _read(path, name)


def _walk(root: Path) -> Iterator[tuple[Path, str | None]]:
    """Every file at or below `root`, with the reason to skip it if its place alone gives one."""
    if not root.is_dir():
        yield root, None
        return
    ahead = [root]
    while ahead:
        path = ahead.pop()
        if path != root and (reason := _out_of_place(path)) is not None:
            yield path, reason
            continue
        try:
            if path != root and not stat.S_ISDIR(path.lstat().st_mode):
                yield path, None
                continue
            below = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            yield path, _why(error)
            continue
        ahead.extend(path / name for name in below)


def _out_of_place(path: Path) -> str | None:
    if path.name.startswith("."):
        return "hidden"
    if path.name == _PROVENANCE:
        return "tells where the other files come from, is not a source itself"
    if path.is_symlink():
        return "a link; links inside a folder are not followed, name the target to have it read"
    return None


def _free_name(root: Path, path: Path, taken: set[str]) -> str:
    relative = path.relative_to(root).as_posix() if path != root else root.resolve().name or "/"
    name = _printable(relative)
    if name in taken:
        folder = root.resolve() if path != root else root.resolve().parent
        name = _printable((PurePosixPath(folder.name) / relative).as_posix())
    plain, count = name, 1
    while name in taken:
        count += 1
        name = f"{plain} ({count})"
    return name


def _printable(name: str) -> str:
    """A file's name as storable text: bytes that are not UTF-8, and control characters, become U+FFFD."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", _REPLACEMENT, text)


def _read(path: Path, name: str) -> ReadDocument | SkippedFile:
    try:
        data = _bytes(path)
        media_type = _media_type(path, data)
        title, text = _text(data, media_type)
    except _Unreadable as error:
        return SkippedFile(name, str(error))
    except OSError as error:
        return SkippedFile(name, _why(error))
    if not text:
        return SkippedFile(name, "holds no text" + (" (a scan?)" if media_type == "application/pdf" else ""))
    digest = hashlib.sha256(data).hexdigest()
    return ReadDocument(name, digest, media_type, title or PurePosixPath(name).name, text, len(data))


def _bytes(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
        raise _Unreadable("not a regular file")
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _Unreadable(f"larger than {LARGEST // 2**20} MB")
    if not data:
        raise _Unreadable("empty")
    return data


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _media_type(path: Path, data: bytes) -> MediaType:
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    return _MEDIA_TYPES.get(path.suffix.lower(), "text/plain")


def _text(data: bytes, media_type: MediaType) -> tuple[str, str]:
    """Title ('' if there is none) and text."""
    match media_type:
        case "application/pdf":
            title, raw = _pdf(data)
        case "text/html":
            title, raw = _html(_decoded(data))
        case _:
            title, raw = "", _decoded(data)
    text = _storable(raw)
    title = " ".join(_storable(title).split()) or _title(text, media_type)
    return title[:_LONGEST_TITLE], _flowing(text)


def _decoded(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _Unreadable("UTF-16, not UTF-8: save it as UTF-8 to have it read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise _Unreadable("binary") from error
        raise _Unreadable(f"not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start})") from error
    if len(_CONTROL.findall(text)) > len(text) / 10:
        raise _Unreadable("binary")
    return text.removeprefix("\ufeff")


def _storable(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    return _UNSTORABLE.sub(_REPLACEMENT, text)


_XML_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")
_DROPPED = frozenset(("script", "style", "template", "noscript", "head"))
_BLOCK = re.compile(
    r"address|article|aside|blockquote|body|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6r]|header"
    r"|li|main|nav|[ou]l|p|pre|section|table|tr"
)


def _html(markup: str) -> tuple[str, str]:
    try:
        # The doctype in front keeps bs4 from warning that a short text might be a file name or XML.
        soup = BeautifulSoup("<!DOCTYPE html>" + _XML_DECLARATION.sub("", markup, count=1), "html.parser")
        title = soup.title.get_text() if soup.title is not None else ""
        return title, "".join(_visible(soup))
    except Exception as error:
        raise _Unreadable(f"broken HTML ({type(error).__name__})") from error


def _visible(root: Tag) -> Iterator[str]:
    """The words that a browser would show, blocks apart by blank lines; one pass, however deep it is nested."""
    ahead: list[tuple[PageElement | str, bool]] = [(root, False)]  # with: is it inside a <pre>
    while ahead:
        node, preformatted = ahead.pop()
        if isinstance(node, Tag):
            if node.name in _DROPPED:
                continue
            before, after = _edges(node.name)
            yield before
            ahead.append((after, True))
            inside = preformatted or node.name == "pre"
            ahead.extend((child, inside) for child in reversed(node.contents))
        elif isinstance(node, NavigableString):
            if type(node) is NavigableString:  # its subclasses are comments, declarations and the like
                yield node if preformatted else re.sub(r"\s+", " ", node)
        else:
            yield str(node)


def _edges(tag: str) -> tuple[str, str]:
    """What stands before and after a tag's content."""
    if tag == "br":
        return "\n", ""
    if tag in ("td", "th"):
        return "", " "
    if _BLOCK.fullmatch(tag):
        return "\n\n- " if tag == "li" else "\n\n", "\n\n"
    return "", ""


def _pdf(data: bytes) -> tuple[str, str]:
    import pypdf  # takes long, and most never read a PDF
    import pypdf.errors

    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise _Unreadable("an encrypted PDF")
        title = reader.metadata.title if reader.metadata is not None else None
        return str(title or ""), "\n\n".join(page.extract_text() for page in reader.pages)
    except _Unreadable:
        raise
    except pypdf.errors.DependencyError as error:
        raise _Unreadable("an encrypted PDF") from error
    except Exception as error:  # on a broken file pypdf raises nearly anything
        raise _Unreadable(f"a broken PDF ({type(error).__name__})") from error


_STRUCTURE = re.compile(r"\s*(?:[-*+\u2022]\s|[|>#]|={3,}|-{3,}|```|~~~)")
_NUMBERED = re.compile(r"\s*(?:\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)]\s|\d+(?:\.\d+)+)")
_RESTING = re.compile(r"(?:[.;:,!?]|\band|\bor)$")  # how a line before a numbered item ends
_FENCE = re.compile(r"\s*(?:```|~~~)")
_NARROWEST, _WIDEST = 50, 120  # columns between which a text can be hard-wrapped


def _flowing(text: str) -> str:
    """Join the lines that were broken only because the next word did not fit, and squeeze blank lines.

    Whether it did not fit is judged by the width that most lines of the text keep. Lists, tables, headings
    and fenced code stay as they are, and so do verses and addresses: their next word would have fitted.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    following = [*lines[1:], ""]
    columns = [len(line.expandtabs()) for line in lines]
    followed = sorted(columns[i] for i, line in enumerate(lines) if line and following[i])
    width = followed[len(followed) * 9 // 10] if followed else _WIDEST + 1
    pieces: list[str] = []
    between = ""  # what stands between the last line and the next: nothing yet, a newline, or a space
    fenced = False
    for line, column, after in zip(lines, columns, following, strict=True):
        if not line and between != " " and (not pieces or not pieces[-1]):
            continue
        pieces += between, line.lstrip() if between == " " else line
        fenced ^= _FENCE.match(line) is not None
        word = after.split(maxsplit=1)[0] if after else ""
        broken_off = column + 1 + len(word) > max(_NARROWEST, width * 9 // 10)
        item = _STRUCTURE.match(after) or (_NUMBERED.match(after) and _RESTING.search(line))
        flows = line and word and broken_off and width <= _WIDEST and not fenced and not item
        between = " " if flows else "\n"
    return "".join(pieces).strip("\n").rstrip()


def _title(text: str, media_type: MediaType) -> str:
    if media_type == "text/markdown":
        heading = re.search(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", text, re.MULTILINE)
        if heading is not None:
            return heading.group(1)
    first, _, rest = text.lstrip("\n").partition("\n")
    second = rest.partition("\n")[0]
    title = " ".join(first.split())
    # Two centred lines on top, such as a name and its version, are one title.
    if first.startswith(_CENTRED) and second.startswith(_CENTRED) and is_heading(second):
        return f"{title}, {' '.join(second.split())}"
    return title
