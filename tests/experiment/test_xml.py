"""The XML dialect: hostile bytes come out as they went in, and damage loses nothing but what is damaged."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.experiment import xml

HOSTILE = [
    b"", b" ", b"plain", b"two\nlines", b"<tag attr=\"x\">&amp;</tag>", b"\x00\x01\x1f\x7f", b"\xff\xfe\xc3\x28",
    "größe ☃".encode(), b"100% %41% %25%", b"%", b"%%", b"%4", b"'\"", b"]]>", b"<!--", b"&#65;", b"\t\r\n",
    bytes(range(256)) * 16, b"<" * 4000]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes_round_trip(value: bytes) -> None:
    line = xml.element("event", {"kind": "x", "name": value}, value)
    assert re.fullmatch(rb"[ -~]*\n", line)
    (element,) = xml.parse(line)
    assert element.attributes == {"kind": b"x", "name": value}
    assert element.text == value


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_round_trip(value: bytes, text: bytes) -> None:
    (element,) = xml.parse(xml.element("e", {"a": value}, text))
    assert (element.get("a"), element.text) == (value, text)


@given(st.binary(max_size=100))
def test_an_independent_parser_reads_what_is_written(value: bytes) -> None:
    read = ElementTree.fromstring(xml.element("e", {"a": value}))
    codes = re.findall(r"%([0-9a-f]{2})%|(.)", read.attrib["a"])
    assert bytes(int(code, 16) if code else ord(plain) for code, plain in codes) == value


@pytest.mark.parametrize(("text", "number"), [
    (b"12", 12), (b"0x1000", 4096), (b"+0x00001000", 4096), (b"-0x10", -16), (b"0X1f", 31), (b"-7", -7), (b"", 99),
    (b"x", 99), (b"1.5", 99), (b"007", 7), (b"0xzz", 99)])
def test_numbers(text: bytes, number: int) -> None:
    assert xml.parse_number(text, 99) == number


def test_values_as_text_and_numbers() -> None:
    (element,) = xml.parse(xml.element("e", {"text": b"\xff", "number": 5}))
    assert element.text_of("text") == "\udcff"
    assert element.text_of("none", "default") == "default"
    assert (element.number("number"), element.number("none", 3)) == (5, 3)
    assert xml.element("e", {"text": element.text_of("text")}) == b'<e text="%ff%"/>\n'


ROOTS = (b'<experiment version="12.4">\n<collector>c</collector>\n</experiment>\n'
         b'<system hostname="h">\n  <cpu id="0" clk="2500"/>\n</system>\n'
         b'<event kind="run" tstamp="1.000000000"/>\n' + xml.element("event", {"kind": "cwarn"}, b"<a\0b>")
         + xml.element("event", {"kind": "exit"}))


def test_several_roots_with_padding_are_read() -> None:
    for padded in (ROOTS, ROOTS + b"\0" * 5000 + b"\n", ROOTS.replace(b"\n<", b"\n\0\0\0<"),
                   b"<?xml version='1.0'?><!-- x -->" + ROOTS):
        read = xml.parse(padded)
        assert [element.name for element in read] == ["experiment", "system", "event", "event", "event"]
        assert read[0].children[0].text == b"c"
        assert read[1].children[0].number("clk") == 2500
        assert read[3].text == b"<a\0b>"


def test_a_file_cut_at_any_byte_gives_what_is_whole() -> None:
    whole = xml.parse(ROOTS)
    for cut in range(len(ROOTS) + 1):
        read = xml.parse(ROOTS[:cut])
        assert [e.name for e in read] == [e.name for e in whole][:len(read)]
        assert read[:-1] == whole[:max(len(read) - 1, 0)]
        assert len(read) >= ROOTS[:cut].count(b"\n<event") - 1


@pytest.mark.parametrize("garbage", [b"\xff\xfe", b"<", b"<event", b"</event>", b"&", b"text", b"<a b='c", b"%zz%"])
def test_trailing_garbage_harms_nothing_before_it(garbage: bytes) -> None:
    assert xml.parse(ROOTS + garbage)[:5] == xml.parse(ROOTS)


def test_entities_are_not_expanded() -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    read = xml.parse(bomb + b"<e>&b;&f;</e>")
    assert not any(b"aaa" in e.text or b"root" in e.text for e in read)
