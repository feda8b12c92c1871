"""How numpy's arrays and scalars are taken apart for storage and put together again.

Invariant: a program that does not use numpy never loads it because of this module; only plain dtypes
(numbers, times, text of one width) are stored, never object arrays or structures.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, Final

from standfast.checkpoint.errors import UnknownStoredType
from standfast.checkpoint.forms import Form, Layout, Unfit, decode_text, encode_text, form, typed

_ARRAY_KINDS = "biufcmMSU"


def _numpy() -> Any:
    """The library itself. Its name is fixed here; a row only says that a value came from it."""
    try:
        return sys.modules.get("numpy") or importlib.import_module("numpy")
    except ImportError as exc:
        raise UnknownStoredType(
            "a stored numpy value needs numpy, which is not installed here; install it and load again",
            type_name="numpy",
        ) from exc


def _dtype_lower(dtype: Any) -> list[str]:
    """The dtype's text, and its letter where the text alone would give a twin (`longlong` beside `int64`)."""
    if dtype.kind not in _ARRAY_KINDS or not dtype.itemsize or dtype.fields is not None or dtype.metadata is not None:
        raise Unfit(f"its dtype {dtype!r} holds more than plain numbers, times or text")
    twin = _numpy().dtype(dtype.str)
    return [dtype.str] if twin.char == dtype.char else [dtype.str, dtype.char]


def _dtype_restore(parts: list[str]) -> Any:
    np = _numpy()
    text = parts[0]
    # Only plain dtypes: numpy's own parser also reads structures and object arrays.
    if not re.fullmatch(r"[<>|][biufcmMSU]\d{1,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?", text):
        raise ValueError(f"{text[:40]!r} is not a plain dtype")
    dtype = np.dtype(text)
    if len(parts) > 1:
        letter = parts[1]
        if len(letter) != 1:
            raise ValueError("not the letter of a dtype")
        twin = np.dtype(letter)
        if twin != dtype:
            raise ValueError("a dtype with a letter that does not belong to it")
        return twin
    return dtype


def _array_lower(value: Any) -> list[Any]:
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return [
        _dtype_lower(value.dtype),
        list(value.shape),
        order,
        bool(value.flags.writeable),
        value.tobytes(order=order),
    ]


def _array_restore(parts: list[Any]) -> Any:
    np = _numpy()
    dtype, shape, order, writeable, data = typed(parts, (list,), (list,), (str,), (bool,), (bytes,))
    typed(shape, *[(int,)] * len(shape))
    dtype = _dtype_restore(dtype)
    view = np.ndarray(shape, dtype, data, order=order)
    if view.nbytes != len(data):
        raise ValueError("more bytes than the array's shape holds")
    # A copy: what comes from a buffer cannot be written to, and would keep the whole row alive.
    array = view.copy(order="K")
    array.flags.writeable = writeable
    return array


def _scalar_lower(value: Any) -> list[Any]:
    return [_dtype_lower(value.dtype), value.tobytes()]


def _scalar_restore(parts: list[Any]) -> Any:
    dtype, data = typed(parts, (list,), (bytes,))
    (scalar,) = _numpy().frombuffer(data, _dtype_restore(dtype))
    return scalar


ARRAY: Final = form(28, "numpy:ndarray", Layout.PARTS, _array_lower, _array_restore)
SCALAR: Final = form(29, "numpy:generic", Layout.PARTS, _scalar_lower, _scalar_restore)
# `str` and `bytes` of a numpy scalar drop NULs at its end; the built-in methods do not.
TEXT: Final = form(
    30,
    "numpy:str_",
    Layout.RAW,
    lambda v: encode_text(str.__str__(v)),
    lambda data: _numpy().str_(decode_text(data)),
)
BYTES: Final = form(
    31,
    "numpy:bytes_",
    Layout.RAW,
    lambda v: bytes.__getitem__(v, slice(None)),
    lambda data: _numpy().bytes_(data),
)

NUMPY_FORMS: Final = (ARRAY, SCALAR, TEXT, BYTES)


def numpy_forms() -> dict[type, Form]:
    """The forms of numpy's arrays and scalars by class; empty while no program here has loaded numpy."""
    np = sys.modules.get("numpy")
    if np is None:
        return {}
    kinds = {kind for kind in np.sctypeDict.values() if kind not in (np.object_, np.void, np.str_, np.bytes_)}
    return {
        np.ndarray: ARRAY,
        np.str_: TEXT,
        np.bytes_: BYTES,
        **dict.fromkeys(kinds, SCALAR),
    }
