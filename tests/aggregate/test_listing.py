"""Traced data as ``dtrace`` prints them, to the character."""

from __future__ import annotations

import numpy as np
import pytest

from collector.aggregate import dtrace, fold
from collector.aggregate.columns import Coded
from collector.aggregate.dtrace import Action, Memory, RecDesc, Stack, Text, UserAddress, UserStack, Value, Words
from collector.aggregate.keyed import Keyed
from collector.aggregate.listing import KERNEL, Symbol, hex_dump, printed, printed_aggregation
from collector.errors import TracedDataError


def lookup(pid: int, address: int) -> Symbol | None:
    """A kernel, one process with one function, and a library without symbols."""
    if pid == KERNEL and address >= 0xFFFFFFFF81000000:
        return Symbol("vmlinux", "schedule", 0xFFFFFFFF81000010)
    if pid == 77 and 0x401000 <= address < 0x402000:
        return Symbol("redis-server", "main", 0x401100)
    if pid == 77 and address >= 0x7F0000000000:
        return Symbol("libz.so.1")
    return None


RULER = "\n             0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f  0123456789abcdef\n"

PRINTED: dict[str, tuple[RecDesc, Value, str]] = {
    "a byte": (dtrace.integer(1), 0xFE, " 254"),
    "two bytes": (dtrace.integer(2), 0xFFFE, " 65534"),
    "four bytes": (dtrace.integer(4), 0xFFFFFFFE, "       -2"),
    "eight bytes": (dtrace.integer(8), (1 << 64) - 5, "               -5"),
    "eight large bytes": (dtrace.integer(8), (1 << 63) - 1, " 9223372036854775807"),
    "a string": (dtrace.string(16), Text(b"redis-server\0"), "  redis-server                     "),
    "a string that fills its record": (dtrace.string(3), Text(b"abc"), "  abc                              "),
    "a string with a tab": (dtrace.string(5), Text(b"a\tb"), "  a\tb                              "),
    "bytes": (dtrace.string(5), Text(b"ab\0cd"), RULER
              + "         0: 61 62 00 63 64                                   ab.cd\n"),
    "an empty string": (dtrace.string(3), Text(b""), RULER
                        + "         0: 00 00 00                                         ...\n"),
    "stack()": (dtrace.stack(3), Stack((0xFFFFFFFF81000010, 0xFFFFFFFF81000030, 0x10)),
                "\n              vmlinux`schedule\n              vmlinux`schedule+0x20\n              0x10\n"),
    "an empty stack()": (dtrace.stack(3), Stack(()), "\n"),
    "ustack()": (dtrace.ustack(4), UserStack(77, (0x401136, 0x401100, 0x7F0000000123, 0x99)),
                 "\n              redis-server`main+0x36\n              redis-server`main\n"
                 "              libz.so.1`0x7f0000000123\n              0x99\n"),
    "ustack() of another process": (dtrace.ustack(4), UserStack(78, (0x401136,)), "\n              0x401136\n"),
    "jstack()": (
        dtrace.ustack(4, 64, Action.JSTACK),
        UserStack(77, (0x99, 0x401136, 0x98, 0x97), (b"java/lang/Thread.run", b"never", b"", b"@ interpreted")),
        "\n              java/lang/Thread.run\n              redis-server`main+0x36\n              0x98\n"
        "              0x97\n                [  interpreted ]\n"),
    "usym()": (dtrace.user_address(Action.USYM), UserAddress(77, 0x401136), f"  {'redis-server`main':<50}"),
    "usym() of no function": (dtrace.user_address(Action.USYM), UserAddress(77, 0x7F0000000000),
                              f"  {'libz.so.1`0x7f0000000000':<50}"),
    "umod()": (dtrace.user_address(Action.UMOD), UserAddress(77, 0x401136), f"  {'redis-server':<50}"),
    "umod() of nothing": (dtrace.user_address(Action.UMOD), UserAddress(77, 0x99), f"  {'0x99':<50}"),
    "uaddr()": (dtrace.user_address(Action.UADDR), UserAddress(77, 0x401136), f"  {'redis-server`main+0x36':<50}"),
    "sym()": (dtrace.kernel_address(Action.SYM), 0xFFFFFFFF81000030, f"  {'vmlinux`schedule':<50}"),
    "mod()": (dtrace.kernel_address(Action.MOD), 0xFFFFFFFF81000030, f"  {'vmlinux':<50}"),
    "mod() of nothing": (dtrace.kernel_address(Action.MOD), 0x10, f"  {'0x10':<50}"),
    "tracemem()": (dtrace.tracemem(20), Memory(bytes(range(0x5B, 0x6F))), RULER
                   + "         0: 5b 5c 5d 5e 5f 60 61 62 63 64 65 66 67 68 69 6a  [\\]^_`abcdefghij\n"
                   + "        10: 6b 6c 6d 6e                                      klmn\n"),
    "tracemem() of 16 bytes, 1 shown": (dtrace.tracemem(16), Memory(bytes(16), 1), RULER
                                        + "         0: 00                                               .\n"),
    "tracemem(), 0 shown": (dtrace.tracemem(16), Memory(bytes(16), 0), ""),
    "count()": (dtrace.aggregating(fold.COUNT), Words((7,)), "                7"),
    "avg()": (dtrace.aggregating(fold.AVG), Words((2, (1 << 64) - 7)), "               -3"),
    "stddev()": (dtrace.aggregating(fold.STDDEV), Words((2, 8, 0, 34)), "                1"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_value_is_printed_as_dtrace_does(name: str) -> None:
    record, value, text = PRINTED[name]
    assert printed(record, value, lookup) == text


def test_a_value_of_another_kind_cannot_be_printed() -> None:
    with pytest.raises(TracedDataError, match="cannot be printed"):
        printed(dtrace.integer(4), UserAddress, lookup)  # type: ignore[arg-type]


def test_without_symbols_addresses_are_numbers() -> None:
    assert printed(dtrace.stack(1), Stack((0xFFFFFFFF81000010,))) == "\n              0xffffffff81000010\n"


def test_no_bytes_have_no_dump() -> None:
    assert hex_dump(b"") == ""


def listed(description: dtrace.AggDesc, aggregation: Keyed) -> str:
    entries = dtrace.unpack_aggregation(description, dtrace.pack_aggregation(description, aggregation))
    return printed_aggregation(description, entries, lookup)


def test_an_aggregation_is_printed_by_ascending_value() -> None:
    aggregation = Keyed(fold.SUM)
    names = Coded(np.array([0, 1, 2, 0]), ["sh", "redis-server", "cat"])
    aggregation.add([names, np.array([3, -1, 5, 3])], [10, 7, 20, 90])
    description = dtrace.describe("n", 1, [dtrace.string(16), dtrace.integer(4)], fold.SUM)
    assert listed(description, aggregation) == (
        "\n"
        "  redis-server                                             -1                7\n"
        "  cat                                                       5               20\n"
        "  sh                                                        3              100\n")


def test_equal_values_are_printed_by_key() -> None:
    aggregation = Keyed(fold.COUNT)
    aggregation.add([np.array([5, -1, 3])], [0, 0, 0])
    lines = listed(dtrace.describe("n", 1, [dtrace.integer(4)], fold.COUNT), aggregation).splitlines()
    assert [line.split() for line in lines[1:]] == [["-1", "1"], ["3", "1"], ["5", "1"]]


def test_a_keyed_quantization_is_printed() -> None:
    aggregation = Keyed(fold.QUANTIZE)
    aggregation.add([Coded(np.array([0]), ["a"])], [100])
    assert listed(dtrace.describe("n", 1, [dtrace.string(16)], fold.QUANTIZE), aggregation) == (
        "\n" + f"  {'a':<50}\n"
        "           value  ------------- Distribution ------------- count    \n"
        "              32 |                                         0        \n"
        f"              64 |{'@' * 40} 1        \n"
        "             128 |                                         0        \n\n")


@pytest.mark.parametrize("function", [fold.QUANTIZE, fold.lquantize(-5, 5), fold.llquantize(10, 0, 3, 10)],
                         ids=lambda function: function.name)
def test_quantizations_are_ordered_by_what_their_buckets_sum_to(function: fold.Fold) -> None:
    aggregation = Keyed(function)
    aggregation.add([np.array([1, 2, 3])], [500, 3, 0])
    text = listed(dtrace.describe("n", 1, [dtrace.integer(4)], function), aggregation)
    assert [line.strip() for line in text.splitlines() if line.strip() in ("1", "2", "3")] == ["3", "2", "1"]


def test_a_dump_shows_what_is_printable_from_the_space_to_the_tilde() -> None:
    assert hex_dump(b"\x1f ~\x7fa").splitlines()[-1].endswith("  . ~.a")
