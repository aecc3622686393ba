"""DWARF expressions: literal cases, damage, and that every expression ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.unwind.expression import Unreadable, Unsupported, evaluate

MEMORY = {0x100: 0x1122334455667788, 0x2008: 0x2010}
REGISTERS = {6: 0x2000, 7: 0x3000, 16: 0x401236}


def word_at(address: int) -> int:
    if address not in MEMORY:
        raise Unreadable(address)
    return MEMORY[address]


def register(number: int) -> int:
    if number not in REGISTERS:
        raise Unsupported(f"register {number}")
    return REGISTERS[number]


def value_of(code: str, *initial: int, word_size: int = 8) -> int:
    return evaluate(bytes.fromhex(code), initial, register, word_at, word_size)


M = 1 << 64
CASES = {
    "30": 0, "4f": 31, "31 4f": 31,
    "03 8877665544332211": 0x1122334455667788, "08 ff": 255, "09 ff": M - 1, "0a 3412": 0x1234, "0b ffff": M - 1,
    "0c 78563412": 0x12345678, "0d ffffffff": M - 1, "0e 0100000000000000": 1, "0f ffffffffffffffff": M - 1,
    "10 e58e26": 624485, "11 807f": M - 128,
    "32 33 12 22": 6, "32 33 13": 2, "32 33 14": 2, "32 33 34 15 02": 2, "32 33 16 1c": 1, "32 33 34 17 1c 22": 3,
    "76 78": 0x1FF8, "76 08 06": 0x2010, "92 07 10": 0x3010, "0a 0001 94 02": 0x7788,
    "09 fb 19": 5, "3f 36 1a": 6, "09 f9 32 1b": M - 3, "37 32 1b": 3, "32 35 1c": M - 3, "37 33 1d": 1,
    "33 35 1e": 15, "32 1f": M - 2, "30 20": M - 1, "31 36 21": 7, "32 33 22": 5, "32 23 8001": 130,
    "31 34 24": 16, "31 08 40 24": 0, "09 ff 08 3c 25": 15, "09 f8 31 26": M - 4, "35 33 27": 6,
    "32 32 29": 1, "09 ff 31 2a": 0, "31 31 2a": 1, "32 31 2b": 1, "31 31 2c": 1, "09 ff 31 2d": 1, "32 31 2e": 1,
    "31 28 0100 32 33": 3, "30 28 0100 32": 2, "35 2f 0100 ff": 5, "35 96": 5,
    "77 08 80 00 3f 1a 3b 2a 33 24 22": 0x3008, "80 00": 0x401236,
}


@pytest.mark.parametrize("code", CASES)
def test_values(code: str) -> None:
    assert value_of(code) == CASES[code]


@pytest.mark.parametrize("code", CASES)
def test_cut_at_every_byte(code: str) -> None:
    """A piece has a value or is unsupported; nothing else is raised."""
    whole = bytes.fromhex(code)
    for end in range(len(whole)):
        try:
            value = evaluate(whole[:end], (), register, word_at, 8)
        except (Unsupported, Unreadable):
            continue
        assert 0 <= value < M


def test_words_of_four_bytes_wrap() -> None:
    assert value_of("30 20", word_size=4) == 0xFFFFFFFF
    assert value_of("32 35 1c", word_size=4) == (1 << 32) - 3


def test_the_frame_address_is_there_first() -> None:
    assert value_of("38 1c", 0x5000) == 0x4FF8


@pytest.mark.parametrize("code", ["", "12", "22", "31 30 1b", "31 30 1d", "70 00", "9c", "e0", "98 0000", "31 15 05",
                                  "31 16", "31 32 17"])
def test_unsupported(code: str) -> None:
    with pytest.raises(Unsupported):
        value_of(code)


@pytest.mark.parametrize("code", ["2f fdff", "31 28 fcff", "31 2f fcff", "2f f0ff"])
def test_endless_is_unsupported(code: str) -> None:
    with pytest.raises(Unsupported):
        value_of(code)


def test_unreadable_says_where() -> None:
    with pytest.raises(Unreadable) as caught:
        value_of("76 00 06")
    assert caught.value.args == (0x2000,)


@given(st.binary(max_size=60), st.sampled_from([4, 8]))
@settings(max_examples=500, deadline=None)
def test_any_bytes_end(code: bytes, word_size: int) -> None:
    try:
        value = evaluate(code, (0x5000,), register, word_at, word_size)
    except (Unsupported, Unreadable):
        return
    assert 0 <= value < 1 << 8 * word_size
