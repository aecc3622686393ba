"""Messages by the table, and many by one stamp."""

from __future__ import annotations

import numpy as np
import pytest

from collector.export.protobuf import Stamp, framed, marks, messages, varint

SCHEMA = {"Inner": "number=1 int64, text=2 string", "Outer": "inner=1 Inner*, packed=2 uint64+, loose=3 uint64*, "
          "share=4 double, big=2047 uint64"}


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_schemas(syntax: str) -> None:
    pb = messages("test.schemas", SCHEMA, syntax)
    made = pb.Outer(inner=[pb.Inner(number=-1, text="ä")], packed=[1, 300], loose=[1, 300], share=0.5, big=2**64 - 1)
    assert made.SerializeToString() == (
        b"\x0a\x0f\x08" + b"\xff" * 9 + b"\x01\x12\x02\xc3\xa4" + b"\x12\x03\x01\xac\x02" + b"\x18\x01\x18\xac\x02"
        + b"\x21" + np.float64(0.5).tobytes() + b"\xf8\x7f" + b"\xff" * 9 + b"\x01")
    assert pb.Outer.FromString(made.SerializeToString()) == made


def test_parts_of_messages() -> None:
    pb = messages("test.parts", SCHEMA)
    inner = [pb.Inner(number=7), pb.Inner(text="x" * 200)]
    whole = pb.Outer.FromString(framed(1, *(one.SerializeToString() for one in inner)))
    assert whole == pb.Outer(inner=[pb.Inner(number=7, text="x" * 200)])
    assert varint(300) == b"\xac\x02"


def test_a_stamp_makes_what_the_library_reads() -> None:
    pb = messages("test.stamp", SCHEMA)
    number, big = marks(63, 64)
    stamp = Stamp(pb.Outer(inner=[pb.Inner(number=number, text="same")], big=big, share=0.123), [number, big, 0.123])
    numbers, bigs = np.array([0, 1, 127, 128, 2**62]), np.array([0, 5, 2**32, 2**63, 2**64 - 1], np.uint64)
    printed = stamp.printed((numbers, bigs, np.arange(5) / 4))
    size = len(printed) // 5
    for place in range(5):
        found = pb.Outer.FromString(printed[place * size:(place + 1) * size])
        assert (found.inner[0].number, found.inner[0].text) == (int(numbers[place]), "same")
        assert (found.big, found.share) == (int(bigs[place]), place / 4)
