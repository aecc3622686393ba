"""Traced data of every kind against bytes written by hand, both ways, and cut at every byte."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.aggregate import dtrace, fold
from collector.aggregate.columns import Coded
from collector.aggregate.dtrace import (
    Action,
    Memory,
    RecDesc,
    Stack,
    Text,
    Tracemem,
    UserAddress,
    UserStack,
    Value,
    Words,
)
from collector.aggregate.keyed import Keyed
from collector.errors import TracedDataError

WORD_1 = b"\x01" + b"\0" * 7
WORD_2 = b"\x02" + b"\0" * 7
WORD_3 = b"\x03" + b"\0" * 7
WORD_0 = b"\0" * 8
WORD_MINUS_1 = b"\xff" * 8


def words(*numbers: int) -> Words:
    return Words(numbers)


# name: records, values, bytes.
TRACED: dict[str, tuple[Sequence[RecDesc], Sequence[Value], bytes]] = {
    "a byte": ([RecDesc(1, 1)], [0xFE], b"\xfe"),
    "two bytes": ([RecDesc(1, 2)], [0x1234], b"\x34\x12"),
    "four bytes": ([RecDesc(1, 4)], [0x12345678], b"\x78\x56\x34\x12"),
    "eight bytes": ([RecDesc(1, 8)], [0x0123456789ABCDEF], b"\xef\xcd\xab\x89\x67\x45\x23\x01"),
    "exit()": ([RecDesc(2, 4)], [3], b"\x03\0\0\0"),
    "integers in turn, aligned": (
        [RecDesc(1, 4, 0), RecDesc(1, 1, 4), RecDesc(1, 8, 8)], [1, 2, 3],
        b"\x01\0\0\0" b"\x02" b"\0\0\0" b"\x03\0\0\0\0\0\0\0"),
    "a string with its NUL": ([RecDesc(1, 6)], [Text(b"redis\0")], b"redis\0"),
    "a string that fills its record": ([RecDesc(1, 5)], [Text(b"redis")], b"redis"),
    "a string with something behind its NUL": ([RecDesc(1, 7)], [Text(b"ab\0cd\0\0")], b"ab\0cd\0\0"),
    "stack() of a 64-bit kernel": (
        [RecDesc(0x401, 24, arg=3)], [Stack((0xFFFFFFFF81000010, 0xFFFFFFFF81000020))],
        b"\x10\0\0\x81\xff\xff\xff\xff" b"\x20\0\0\x81\xff\xff\xff\xff" + WORD_0),
    "stack() of a 32-bit kernel": (
        [RecDesc(0x401, 12, arg=3)], [Stack((0xC1000010, 0xC1000020, 0xC1000030))],
        b"\x10\0\0\xc1" b"\x20\0\0\xc1" b"\x30\0\0\xc1"),
    "ustack()": (
        [RecDesc(0x101, 24, arg=2)], [UserStack(77, (0x401136, 0x401020))],
        b"\x4d\0\0\0\0\0\0\0" b"\x36\x11\x40\0\0\0\0\0" b"\x20\x10\x40\0\0\0\0\0"),
    "ustack() that ends early": (
        [RecDesc(0x101, 32, arg=3)], [UserStack(77, (0x401136,))],
        b"\x4d\0\0\0\0\0\0\0" b"\x36\x11\x40\0\0\0\0\0" + WORD_0 * 2),
    "jstack() with strings": (
        [RecDesc(0x102, 32, arg=(8 << 32) | 2)], [UserStack(5, (0x10, 0x20), (b"ab", b"c"))],
        b"\x05\0\0\0\0\0\0\0" b"\x10\0\0\0\0\0\0\0" b"\x20\0\0\0\0\0\0\0" b"ab\0c\0\0\0\0"),
    "jstack() with a frame that has no string": (
        [RecDesc(0x102, 32, arg=(5 << 32) | 2)], [UserStack(5, (0x10, 0x20), (b"", b"c"))],
        b"\x05\0\0\0\0\0\0\0" b"\x10\0\0\0\0\0\0\0" b"\x20\0\0\0\0\0\0\0" b"\0c\0\0\0\0\0\0"),
    "jstack() whose last string has no room for its NUL": (
        [RecDesc(0x102, 24, arg=(8 << 32) | 1)], [UserStack(5, (0x10,), (b"a", b"bcdefg"))],
        b"\x05\0\0\0\0\0\0\0" b"\x10\0\0\0\0\0\0\0" b"a\0bcdefg"),
    "tracemem(), static": ([RecDesc(6, 3, arg=1)], [Memory(b"\x01\0\xff")], b"\x01\0\xff"),
    "tracemem(), dynamic": (
        [RecDesc(6, 4, arg=2), RecDesc(6, 4, 4, arg=3)], [Memory(b"abcd", 2)], b"abcd" b"\x02\0\0\0"),
    "tracemem(), dynamic, unsigned and large": (
        [RecDesc(6, 4, arg=2), RecDesc(6, 1, 4, arg=3)], [Memory(b"abcd", 0xFF)], b"abcd" b"\xff"),
    "tracemem(), dynamic, signed": (
        [RecDesc(6, 4, arg=2), RecDesc(6, 2, 4, arg=4)], [Memory(b"abcd", -1)], b"abcd" b"\xff\xff"),
    "usym()": ([RecDesc(0x103, 16)], [UserAddress(9, 0x401136)], b"\x09\0\0\0\0\0\0\0" b"\x36\x11\x40\0\0\0\0\0"),
    "umod()": ([RecDesc(0x104, 16)], [UserAddress(9, 0x401000)], b"\x09\0\0\0\0\0\0\0" b"\0\x10\x40\0\0\0\0\0"),
    "uaddr()": ([RecDesc(0x105, 16)], [UserAddress(9, 1)], b"\x09\0\0\0\0\0\0\0" + WORD_1),
    "sym()": ([RecDesc(0x402, 8)], [0xFFFFFFFF81000010], b"\x10\0\0\x81\xff\xff\xff\xff"),
    "mod()": ([RecDesc(0x403, 8)], [0xFFFFFFFFC0000000], b"\0\0\0\xc0\xff\xff\xff\xff"),
    "count()": ([RecDesc(0x701, 8)], [words(3)], WORD_3),
    "min()": ([RecDesc(0x702, 8)], [words((1 << 64) - 1)], WORD_MINUS_1),
    "max()": ([RecDesc(0x703, 8)], [words(1)], WORD_1),
    "avg(): count, sum": ([RecDesc(0x704, 16)], [words(3, (1 << 64) - 1)], WORD_3 + WORD_MINUS_1),
    "sum()": ([RecDesc(0x705, 8)], [words(2)], WORD_2),
    "stddev(): count, sum, high and low half": (
        [RecDesc(0x706, 32)], [words(2, 3, 1, (1 << 64) - 1)], WORD_2 + WORD_3 + WORD_1 + WORD_MINUS_1),
    "quantize()": (
        [RecDesc(0x707, 1016)], [words(*[0] * 62, 1, 2, 3, *[0] * 62)],
        WORD_0 * 62 + WORD_1 + WORD_2 + WORD_3 + WORD_0 * 62),
    "lquantize(v, -1, 5, 2)": (
        [RecDesc(0x708, 48, arg=0x0002_0003_FFFF_FFFF)], [words(0x0002_0003_FFFF_FFFF, 1, 0, 2, 0, 3)],
        b"\xff\xff\xff\xff\x03\0\x02\0" + WORD_1 + WORD_0 + WORD_2 + WORD_0 + WORD_3),
    "llquantize(v, 2, 1, 2, 2)": (
        [RecDesc(0x709, 40, arg=0x0002_0001_0002_0002)], [words(0x0002_0001_0002_0002, 1, 2, 2, 1)],
        b"\x02\0\x02\0\x01\0\x02\0" + WORD_1 + WORD_2 + WORD_2 + WORD_1),
}


@pytest.mark.parametrize("name", TRACED)
def test_bytes_become_values_and_values_bytes(name: str) -> None:
    records, values, data = TRACED[name]
    assert dtrace.decode(records, data) == list(values)
    assert dtrace.encode(records, values) == data


@pytest.mark.parametrize("name", TRACED)
def test_data_cut_at_any_byte_are_refused(name: str) -> None:
    records, _, data = TRACED[name]
    for length in range(len(data)):
        with pytest.raises(TracedDataError, match="cut short"):
            dtrace.decode(records, data[:length])


@pytest.mark.parametrize("name", TRACED)
def test_what_lies_around_a_record_does_not_matter(name: str) -> None:
    records, values, data = TRACED[name]
    moved = [record._replace(offset=record.offset + 16) for record in records]
    assert dtrace.decode(moved, b"\xee" * 16 + data + b"\xee" * 9) == list(values)


def test_a_string_ends_at_its_first_nul_or_fills_its_record() -> None:
    assert [Text(data).string for data in (b"ab\0cd", b"abc", b"\0\0\0")] == [b"ab", b"abc", b""]


@pytest.mark.parametrize(("shown", "displayed"), [(None, b"abcd"), (2, b"ab"), (0, b""), (9, b"abcd"), (-1, b"abcd")])
def test_a_display_size_cuts_and_a_negative_one_does_not(shown: int | None, displayed: bytes) -> None:
    assert Memory(b"abcd", shown).displayed == displayed


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_display_size_is_signed_or_not_as_its_record_says(size: int) -> None:
    data = b"abcd" + bytes(4) + b"\xff" * size
    largest = (1 << 8 * size) - 1
    for kind, shown, displayed in ((Tracemem.SIZE, largest, b"abcd"), (Tracemem.SSIZE, -1, b"abcd")):
        (memory,) = dtrace.decode([RecDesc(6, 4, arg=2), RecDesc(6, size, 8, size, arg=kind)], data)
        assert isinstance(memory, Memory)
        assert memory == Memory(b"abcd", shown)
        assert memory.displayed == displayed
    for kind in (Tracemem.SIZE, Tracemem.SSIZE):
        for shown, displayed in ((0, b""), (1, b"a"), (3, b"abc"), (5, b"abcd")):
            records = [RecDesc(6, 4, arg=2), RecDesc(6, size, 8, size, arg=kind)]
            (memory,) = dtrace.decode(records, b"abcd" + bytes(4) + shown.to_bytes(size, "little"))
            assert isinstance(memory, Memory)
            assert memory.displayed == displayed


CONTRADICTIONS: dict[str, tuple[Sequence[RecDesc], str]] = {
    "no bytes": ([RecDesc(1, 0)], "has no bytes"),
    "PCs of 3 bytes": ([RecDesc(0x401, 9, arg=3)], "9 bytes are not 3 addresses"),
    "a stack of no depth": ([RecDesc(0x401, 8)], "8 bytes are not 0 addresses"),
    "a ustack of another depth": ([RecDesc(0x101, 24, arg=3)], "3 frames and 0 bytes of strings are not 24 bytes"),
    "a ustack of another area": ([RecDesc(0x101, 24, arg=(9 << 32) | 2)], "2 frames and 9 bytes"),
    "usym of 8 bytes": ([RecDesc(0x103, 8)], "has 16 bytes, not 8"),
    "sym of 4 bytes": ([RecDesc(0x402, 4)], "has 8 bytes, not 4"),
    "a dynamic tracemem alone": ([RecDesc(6, 4, arg=2)], "not followed"),
    "a dynamic tracemem and an integer": ([RecDesc(6, 4, arg=2), RecDesc(1, 4, 4)], "not followed"),
    "a tracemem's size alone": ([RecDesc(6, 4, arg=3)], "cannot begin with argument 3"),
    "a tracemem of no kind": ([RecDesc(6, 4)], "cannot begin with argument 0"),
    "a tracemem's size of 3 bytes": ([RecDesc(6, 4, arg=2), RecDesc(6, 3, 4, arg=3)], "not 3"),
    "avg of one word": ([RecDesc(0x704, 8)], "has 16 bytes, not 8"),
    "quantize of 126 words": ([RecDesc(0x707, 1008)], "has 1016 bytes"),
    "lquantize without arguments": ([RecDesc(0x708, 24)], "encodes no lquantize"),
    "lquantize with other arguments": ([RecDesc(0x708, 32, arg=0x0001_0001_0000_0000)], "begins with 0x0"),
    "llquantize of an impossible factor": ([RecDesc(0x709, 32, arg=1)], "factor"),
    "a word at an odd place": ([RecDesc(1, 8, 4, alignment=8)], "record at byte 4 is not aligned to 8"),
    "an unknown aggregating action": ([RecDesc(0x7FF, 8)], "no aggregating action"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_descriptions_that_contradict_themselves_are_refused(name: str) -> None:
    records, reason = CONTRADICTIONS[name]
    with pytest.raises(TracedDataError, match=reason):
        dtrace.decode(records, bytes(2048))


UNFIT: tuple[tuple[Sequence[RecDesc], Sequence[Value], str], ...] = (
    ([dtrace.integer(2)], [0x10000], "does not fit"),
    ([dtrace.integer(1)], [-129], "does not fit"),
    ([dtrace.string(5)], [Text(b"redis!")], "has 5 bytes, its value 6"),
    ([dtrace.stack(1)], [Stack((1, 2))], "room for 1 addresses, not 2"),
    ([dtrace.stack(1, 4)], [Stack((1 << 32,))], "addresses of 4 bytes"),
    ([dtrace.ustack(2)], [UserStack(1, (1, 2, 3))], "room for 2 addresses, not 3"),
    ([dtrace.ustack(2, 3)], [UserStack(1, (1, 2), (b"abcd",))], "4 bytes of strings do not fit into 3"),
    ([dtrace.ustack(2, 9)], [UserStack(1, (1, 2), (b"a\0b",))], "NUL inside"),
    ([dtrace.user_address(Action.USYM)], [UserAddress(-1, 2)], "addresses of 8 bytes"),
    ([dtrace.aggregating(fold.AVG)], [Words((1,))], "has 2 words, not 1"),
    ([dtrace.aggregating(fold.lquantize(0, 1))], [Words((5, 0, 0, 0))], "begins with 0x5"),
    ([dtrace.integer(4)], [Text(b"abcd")], "cannot hold"),
    ([dtrace.stack(1)], [5], "cannot hold"),
    ([dtrace.integer(4)], [1, 2], "1 records cannot hold 2 values"),
    ([dtrace.tracemem(4)], [Memory(b"ab")], "has 4 bytes, its value 2"),
    ([RecDesc(1, 8), RecDesc(1, 4, 4)], [1, 2], "at byte 4 begins inside of the difexpr record at byte 0"),
)


@pytest.mark.parametrize(("records", "values", "reason"), UNFIT)
def test_values_that_do_not_fit_are_refused(records: Sequence[RecDesc], values: Sequence[Value], reason: str) -> None:
    with pytest.raises(TracedDataError, match=reason):
        dtrace.encode(records, values)


def test_negative_integers_are_stored_in_twos_complement() -> None:
    assert dtrace.encode([dtrace.integer(2)], [-2]) == b"\xfe\xff"


@pytest.mark.parametrize("size", [1, 2, 4, 8, 0])
def test_a_string_that_would_be_read_as_an_integer_is_no_record(size: int) -> None:
    with pytest.raises(TracedDataError, match="any other size"):
        dtrace.string(size)


def test_records_are_laid_out_by_their_alignment() -> None:
    records = dtrace.laid_out([dtrace.integer(1), dtrace.integer(4), dtrace.string(16), dtrace.ustack(1),
                               dtrace.aggregating(fold.COUNT)])
    assert [record.offset for record in records] == [0, 4, 8, 24, 40]


@settings(max_examples=60, deadline=None)
@given(depth=st.integers(1, 6), pcs=st.lists(st.integers(1, (1 << 64) - 1), max_size=6), pid=st.integers(0, 1 << 22),
       strings=st.lists(st.binary(min_size=1, max_size=4).filter(lambda name: b"\0" not in name), max_size=6))
def test_any_user_stack_comes_back(depth: int, pcs: list[int], pid: int, strings: list[bytes]) -> None:
    stack = UserStack(pid, tuple(pcs[:depth]), tuple(strings[:min(depth, len(pcs))]))
    record = dtrace.ustack(depth, 5 * depth)
    assert dtrace.decode([record], dtrace.encode([record], [stack])) == [stack]


ACTIONS = [int(action) for action in Action] + [0x1FF, 0x7FF]


@settings(max_examples=300, deadline=None)
@given(records=st.lists(st.builds(
    RecDesc, st.sampled_from(ACTIONS), st.sampled_from([0, 1, 3, 4, 8, 16, 24, 32, 1016]), st.integers(0, 64),
    arg=st.one_of(st.integers(0, 5), st.sampled_from([(8 << 32) | 2, 0x0001_0002_0000_0000, 0x000A_0000_0002_0014]))),
    max_size=3), data=st.binary(max_size=80))
def test_no_data_raise_anything_else_and_what_is_read_is_written(records: list[RecDesc], data: bytes) -> None:
    try:
        values = dtrace.decode(records, data)
    except TracedDataError:
        return
    for (record, size), value in zip(dtrace._with_sizes(records), values, strict=True):
        if size is None and not isinstance(value, Stack | UserStack):
            written = dtrace.encode([record], [value])
            assert written[record.offset:] == data[record.offset:record.end]


# --- aggregations ---------------------------------------------------------------------------------

# @calls[execname, ustack(2)] = avg(...), variable 7, written out by hand.
AGGREGATION_BYTES = (
    bytes(8) + b"\x07\0\0\0\0\0\0\0" + b"\0\0\0\0" + b"\x03\0\0\0" + b"\x02\0\0\0" + b"\x48\0\0\0" + b"\x04\0\0\0"
    + bytes(4)
    + b"\x01\0" b"\0\0" b"\x08\0\0\0" b"\0\0\0\0" b"\x08\0" b"\0\0" + WORD_0 + WORD_0
    + b"\x01\0" b"\0\0" b"\x10\0\0\0" b"\x08\0\0\0" b"\x01\0" b"\0\0" + WORD_0 + WORD_0
    + b"\x01\x01" b"\0\0" b"\x20\0\0\0" b"\x18\0\0\0" b"\x08\0" b"\0\0" + b"\x03\0\0\0\0\0\0\0" + WORD_0
    + b"\x04\x07" b"\0\0" b"\x10\0\0\0" b"\x38\0\0\0" b"\x08\0" b"\0\0" + WORD_0 + WORD_0)


def calls() -> dtrace.AggDesc:
    described = dtrace.describe("calls", 7, [dtrace.string(16), dtrace.ustack(3)], fold.AVG)
    return dtrace.AggDesc(described.name, described.varid, described.records, id=3, epid=2)


def test_an_aggregation_is_described_by_its_variable_its_keys_and_last_its_value() -> None:
    description = calls()
    assert dtrace.pack_aggdesc(description) == AGGREGATION_BYTES
    assert dtrace.unpack_aggdesc(AGGREGATION_BYTES, "calls") == description
    assert [record.size for record in description.keys] == [16, 32]
    assert description.value.action == Action.AVG


def test_a_description_cut_or_longer_by_any_byte_is_refused() -> None:
    for length in range(len(AGGREGATION_BYTES)):
        with pytest.raises(TracedDataError):
            dtrace.unpack_aggdesc(AGGREGATION_BYTES[:length])
    with pytest.raises(TracedDataError, match="4 records does not have 169 bytes"):
        dtrace.unpack_aggdesc(AGGREGATION_BYTES + b"\0")


def test_every_field_of_a_description_is_stored() -> None:
    records = (RecDesc(1, 8, 0, 8), RecDesc(0x102, 24, 8, 8, 0x1234, (8 << 32) | 1, 0xFEDCBA9876543210),
               RecDesc(0x701, 8, 32, 8))
    description = dtrace.AggDesc("", -2, records, flags=-3, id=0xFFFFFFFF, epid=0x80000001)
    data = dtrace.pack_aggdesc(description)
    assert data[8:24] == b"\xfe" + b"\xff" * 7 + b"\xfd\xff\xff\xff" + b"\xff" * 4
    assert data[40 + 32:40 + 64] == (b"\x02\x01" b"\0\0" b"\x18\0\0\0" b"\x08\0\0\0" b"\x08\0" b"\x34\x12"
                                     b"\x01\0\0\0\x08\0\0\0" b"\x10\x32\x54\x76\x98\xba\xdc\xfe")
    assert dtrace.unpack_aggdesc(data) == description


def test_an_aggregation_without_any_entry_has_no_bytes() -> None:
    assert dtrace.pack_aggregation(calls(), Keyed(fold.AVG)) == b""
    assert list(dtrace.unpack_aggregation(calls(), b"")) == []


def test_a_description_of_no_bytes_is_refused() -> None:
    empty = dtrace.unpack_aggdesc(dtrace.pack_aggdesc(dtrace.AggDesc("", 1, (RecDesc(1, 0), RecDesc(0x701, 0)))))
    with pytest.raises(TracedDataError, match="no whole number of entries of 0"):
        list(dtrace.unpack_aggregation(empty, bytes(16)))


def test_an_entry_ends_behind_the_last_of_its_records() -> None:
    """Whatever their order in the description is."""
    records = (RecDesc(1, 8, 0, 8), RecDesc(1, 16, 16), RecDesc(0x701, 8, 8, 8))
    description = dtrace.AggDesc("", 1, records)
    aggregation = Keyed(fold.COUNT)
    aggregation.add([Coded(np.array([0, 1]), ["sh", "cat"])], [0, 0])
    data = dtrace.pack_aggregation(description, aggregation)
    assert len(data) == 2 * description.size == 64
    assert [key[0].string for key, _ in dtrace.unpack_aggregation(description, data)] == [  # type: ignore[union-attr]
        b"sh", b"cat"]


def test_a_description_of_another_size_is_refused() -> None:
    with pytest.raises(TracedDataError, match="72 bytes are described as 73"):
        dtrace.unpack_aggdesc(AGGREGATION_BYTES[:28] + b"\x49" + AGGREGATION_BYTES[29:])


def test_an_aggregation_is_packed_key_by_key() -> None:
    aggregation = Keyed(fold.AVG)
    stacks = [UserStack(77, (0x401136,)), UserStack(77, ())]
    aggregation.add([Coded(np.array([0, 1, 0]), ["redis", "sh"]), Coded(np.array([0, 1, 0]), stacks)], [5, 6, 8])
    data = dtrace.pack_aggregation(calls(), aggregation)
    assert data == (
        b"\x07\0\0\0\0\0\0\0" b"redis" + bytes(11) + b"\x4d" + bytes(7) + b"\x36\x11\x40\0\0\0\0\0" + bytes(16)
        + WORD_2 + b"\x0d\0\0\0\0\0\0\0"
        + b"\x07\0\0\0\0\0\0\0" b"sh" + bytes(14) + b"\x4d" + bytes(7) + bytes(24)
        + WORD_1 + b"\x06\0\0\0\0\0\0\0")
    assert list(dtrace.unpack_aggregation(calls(), data)) == [
        ((Text(b"redis" + bytes(11)), stacks[0]), Words((2, 13))),
        ((Text(b"sh" + bytes(14)), stacks[1]), Words((1, 6)))]
    for length in set(range(1, len(data))) - {72}:
        with pytest.raises(TracedDataError):
            list(dtrace.unpack_aggregation(calls(), data[:length]))


def test_data_of_another_aggregation_are_refused() -> None:
    other = dtrace.AggDesc("other", 8, calls().records)
    aggregation = Keyed(fold.AVG)
    aggregation.add([Coded(np.array([0]), ["a"]), Coded(np.array([0]), [UserStack(1, ())])], [1])
    with pytest.raises(TracedDataError, match="not of aggregation 8"):
        list(dtrace.unpack_aggregation(other, dtrace.pack_aggregation(calls(), aggregation)))


def test_keys_of_kernel_stacks_and_integers_are_packed() -> None:
    description = dtrace.describe("n", 1, [dtrace.integer(4), dtrace.stack(3)], fold.COUNT)
    aggregation = Keyed(fold.COUNT)
    aggregation.add([np.array([-1]), np.array([[1, 2, 0]])], [0])
    [(key, count)] = dtrace.unpack_aggregation(description, dtrace.pack_aggregation(description, aggregation))
    assert key == (0xFFFFFFFF, Stack((1, 2))) and count == Words((1,))


def test_a_name_with_a_nul_inside_is_refused() -> None:
    description = dtrace.describe("n", 1, [dtrace.string(16)], fold.COUNT)
    aggregation = Keyed(fold.COUNT)
    aggregation.add([Coded(np.array([0]), ["a\0b"])], [0])
    with pytest.raises(TracedDataError, match="NUL"):
        dtrace.pack_aggregation(description, aggregation)


@pytest.mark.parametrize("function", [
    fold.COUNT, fold.SUM, fold.MIN, fold.MAX, fold.AVG, fold.STDDEV, fold.QUANTIZE, fold.lquantize(-10, 10, 3),
    fold.llquantize(10, 0, 6, 20)], ids=lambda function: function.name)
def test_the_value_of_every_function_comes_back(function: fold.Fold) -> None:
    description = dtrace.describe("n", -3, [], function)
    aggregation = Keyed(function)
    aggregation.add([], [-(1 << 63), -5, 0, 12345, (1 << 63) - 1])
    data = dtrace.pack_aggregation(description, aggregation)
    assert len(data) == description.size == 8 + 8 * function.n_words
    [(key, value)] = dtrace.unpack_aggregation(dtrace.unpack_aggdesc(dtrace.pack_aggdesc(description)), data)
    assert key == () and list(value.words) == aggregation.state(()).tolist()
    assert dtrace.fold_of(description.value).name == function.name


def test_dtrace_has_no_variance() -> None:
    with pytest.raises(TracedDataError, match=r"no variance\(\)"):
        dtrace.aggregating(fold.VARIANCE)


def test_the_layouts_are_those_of_the_header() -> None:
    assert (dtrace.RECDESC.size, dtrace.RECDESC.offsets) == (32, [0, 4, 8, 12, 14, 16, 24])
    assert (dtrace.AGGDESC.size, dtrace.AGGDESC.offsets) == (40, [0, 8, 16, 20, 24, 28, 32, 36])
    assert [member.value for member in Tracemem] == [1, 2, 3, 4]


def test_what_a_rounded_record_has_behind_its_strings_is_none_of_them() -> None:
    record = dtrace.ustack(1, 3)
    raw = (7).to_bytes(8, "little") + (0x10).to_bytes(8, "little") + b"ab\0" + b"junk!"
    assert dtrace.decode([record], raw) == [UserStack(7, (0x10,), (b"ab",))]


def test_a_stack_of_no_whole_number_of_addresses_is_refused() -> None:
    record = dtrace.stack(2)._replace(size=17)
    with pytest.raises(TracedDataError, match="17 bytes are not 2 addresses"):
        dtrace.decode([record], bytes(17))
