"""The envelope of a sealed value."""

from __future__ import annotations

from decimal import Decimal

import pytest

from standfast.checkpoint.codec import Codec
from standfast.checkpoint.errors import CorruptValue, UnknownKey, UnstorableValue
from standfast.checkpoint.seal import Sealer

AT = ("runs", "t1", "input")


def test_a_sealed_value_comes_back() -> None:
    sealer = Sealer(Codec())
    assert {"a": (1, Decimal("2.0"))} == sealer.unseal(sealer.seal({"a": (1, Decimal("2.0"))}, at=AT), at=AT)


def test_an_error_names_the_row() -> None:
    sealer = Sealer(Codec())
    with pytest.raises(UnstorableValue) as refused:
        sealer.seal({"a": object()}, at=AT)
    assert "runs/t1/input['a']" == refused.value.path
    with pytest.raises(CorruptValue) as damaged:
        sealer.unseal(sealer.seal(1, at=AT)[:-1], at=AT)
    assert "runs/t1/input" == damaged.value.path


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02\x00", b"{}"])
def test_bytes_of_another_envelope_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptValue):
        Sealer(Codec()).unseal(data, at=AT)


def test_a_value_sealed_with_a_key_is_not_read_as_clear() -> None:
    clear = Sealer(Codec()).seal(1, at=AT)
    with pytest.raises(UnknownKey) as caught:
        Sealer(Codec()).unseal(clear[:1] + b"\x02k1" + clear[2:], at=AT)
    assert "k1" == caught.value.key_id
