"""Places outside Postgres for the bytes of artifacts: whatever fsspec reaches, such as a folder or a bucket.

Invariant: bytes appear under their final name complete or not at all. Credentials are the file system's own matter:
a place is a URL without any.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from standfast.checkpoint import errors


def require_place(url: str) -> str:
    """The URL of a usable place. Raises `ConfigurationError`."""
    if urlsplit(url).username is not None or urlsplit(url).password is not None:
        raise errors.ConfigurationError(
            "the URL of a place for artifacts holds credentials, and it is stored; leave them to the environment"
        )
    _file_system(url)
    return url.rstrip("/")


def write(url: str, sha256: str, source: BinaryIO, *, piece: int) -> None:
    """Store the rest of `source`, `piece` bytes at a time."""
    files, path = _path(url, sha256)
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    part = f"{path}.{uuid.uuid4().hex[:8]}.part"
    with files.open(part, "wb") as target:
        while data := source.read(piece):
            target.write(data)
    files.mv(part, path)


def pieces(url: str, sha256: str, *, piece: int) -> Iterator[bytes]:
    """The stored bytes. Raises `FileNotFoundError`."""
    files, path = _path(url, sha256)
    with files.open(path, "rb") as source:
        while data := source.read(piece):
            yield data


def delete(url: str, sha256: str) -> None:
    """Delete what there is of it; nothing is fine."""
    files, path = _path(url, sha256)
    for found in files.glob(f"{path}*"):
        files.rm(found)


def _path(url: str, sha256: str) -> tuple[Any, str]:
    files, root = _file_system(url)
    return files, f"{root.rstrip('/')}/{sha256[:2]}/{sha256}"


def _file_system(url: str) -> tuple[Any, str]:
    try:
        files, root = importlib.import_module("fsspec.core").url_to_fs(url)
    except ImportError as error:
        raise errors.ConfigurationError(
            f"artifacts at {urlsplit(url).scheme or url!r} need a package that is not here ({error}); "
            "install standfast[artifacts], and what fsspec names for that scheme"
        ) from error
    except ValueError as error:
        raise errors.ConfigurationError(f"the place {url!r} for artifacts is not usable: {error}") from error
    return files, root
