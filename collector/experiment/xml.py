"""The XML dialect of log.xml and map.xml: several roots, NUL padding, ``%xx%`` for what XML cannot hold.

Everything from outside is bytes. Writing is plain Python and knows five entities and ``%xx%`` with lower-case
digits; what is written is printable ASCII whatever went in. Reading goes through lxml, the only place that
uses it, and gives the same bytes back. A file cut anywhere, or one that is being written, gives the elements
that are whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_ENTITIES = {b"&": b"&amp;", b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&apos;"}
_UNSAFE = re.compile(rb"[^ !#$(-;=?-~]")
# Readers skip these up to the first ">" without looking inside.
_SKIPPED = re.compile(rb"<[?!][^>]*>")
_ESCAPED = re.compile(rb"%([0-9a-f]{2})%")
# Elements that stand at the top. Found inside others, they lost a parent's end to damage.
_TOP = frozenset({"system", "process", "setting", "profile", "dataptr", "event"})
_DEPTH_MAX = 16
_DIGITS_MAX = 24  # of numbers that fit into 64 bits, with sign, 0x and leading zeros

Value = bytes | str | int


class Plain(bytes):
    """A value that stands in the file as it is: there is nothing in it to be escaped."""

    __slots__ = ()


def encoded(value: Value) -> bytes:
    """A value as it stands in the file: text as UTF-8, undecodable bytes as they were, numbers as decimals.
    """
    if isinstance(value, int):
        return b"%d" % value
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def escape(value: Value) -> bytes:
    """The value for use between double quotes or tags: printable ASCII."""
    if isinstance(value, int):
        return b"%d" % value
    return value if type(value) is Plain else _escaped(value)


@lru_cache(maxsize=4096)  # names come again and again
def _escaped(value: bytes | str) -> bytes:
    return _UNSAFE.sub(_safe, encoded(value))


def _safe(match: re.Match[bytes]) -> bytes:
    return _ENTITIES.get(match[0]) or b"%%%02x%%" % ord(match[0])


def unescape(text: bytes) -> bytes:
    """Undo ``%xx%``; entities are the parser's business."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), text)


def element(name: str, attributes: dict[str, Value], text: Value | None = None, indent: str = "") -> bytes:
    """One element on a line of its own; empty unless there is a text."""
    start = _start(name, indent, tuple(attributes)) % tuple(map(escape, attributes.values()))
    if text is None:
        return start + b"/>\n"
    return b"%s>%s</%s>\n" % (start, escape(text), name.encode())


@lru_cache(maxsize=256)
def _start(name: str, indent: str, keys: tuple[str, ...]) -> bytes:
    """What an element begins with, to be filled with values."""
    return "".join([indent, "<", name, *(f' {key}="%s"' for key in keys)]).encode()


@dataclass
class Element:
    """A parsed element: names as text, values and text as the bytes that were written."""

    name: str
    attributes: dict[str, bytes]
    text: bytes = b""
    children: list[Element] = field(default_factory=list)

    def get(self, name: str, default: bytes = b"") -> bytes:
        """The value of an attribute."""
        return self.attributes.get(name, default)

    def text_of(self, name: str, default: str = "") -> str:
        """The value of an attribute as text; undecodable bytes survive as surrogates."""
        value = self.attributes.get(name)
        return default if value is None else value.decode("utf-8", "surrogateescape")

    def number(self, name: str, default: int = 0, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
        """The value of an attribute as a number from ``low`` to ``high``: decimal, or C syntax, perhaps with a sign."""
        number = parse_number(self.get(name), default)
        return number if low <= number <= high else default


def parse_number(text: bytes, default: int = 0) -> int:
    """``12``, ``0x1000``, ``+0x1000``, ``-5``; anything else is ``default``."""
    if len(text) > _DIGITS_MAX:
        return default
    try:
        return int(text, 16) if b"x" in text[:3].lower() else int(text)
    except ValueError:
        return default


def parse(data: bytes, note: Callable[[str, int], None] | None = None) -> list[Element]:
    """All whole root elements in file order. Damage loses what is damaged and nothing else.

    ``note`` is told of damage: what it is, and in how many places.
    """
    import lxml.etree

    end = data.rfind(b">") + 1
    if note is not None and b"<" in data[end:]:
        note("unfinished tag at the end was skipped", 1)
    body = _SKIPPED.sub(b"", data[:end]).replace(b"\0", b" ")
    # After damage libxml2 goes on but drops entities, so it gets none to see.
    for character, entity in _ENTITIES.items():
        body = body.replace(entity, b"%%%02x%%" % ord(character))
    parser = lxml.etree.XMLParser(recover=True, huge_tree=True, resolve_entities=False, no_network=True,
                                  remove_comments=True, remove_pis=True, encoding="iso-8859-1")
    root = lxml.etree.fromstring(b"<roots>" + body + b"</roots>", parser)
    if note is not None and len(parser.error_log):
        note("places of broken markup; what could not be read there was skipped", len(parser.error_log))
    return [] if root is None else _converted(root)


def _converted(root: Any) -> list[Element]:
    """The elements at the top: those below the root, and those that only damage put below others."""
    tops: list[Element] = []
    waiting: list[tuple[Any, list[Element], int]] = [(node, tops, 1) for node in reversed(root)]
    while waiting:
        node, siblings, depth = waiting.pop()
        if not isinstance(node.tag, str):  # an entity that was never declared
            continue
        attributes = {str(key): _bytes(value) for key, value in node.attrib.items()}
        converted = Element(node.tag, attributes, _bytes(node.text or ""))
        if node.tag in _TOP or depth > _DEPTH_MAX:
            siblings, depth = tops, 1
        siblings.append(converted)
        waiting += [(child, converted.children, depth + 1) for child in reversed(node)]
    return tops


def _bytes(text: str) -> bytes:
    return unescape(text.encode("latin-1", "replace"))
