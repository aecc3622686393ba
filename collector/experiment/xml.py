"""The XML dialect of log.xml and map.xml: several roots, NUL padding, ``%xx%`` for what XML cannot hold.

Everything from outside is bytes. Writing is plain Python and knows five entities and ``%xx%`` with lower-case
digits; what is written is printable ASCII whatever went in. Reading goes through lxml, the only place that
uses it, and gives the same bytes back. A file cut anywhere, or one that is being written, gives the elements
that are whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

_ENTITIES = {b"&": b"&amp;", b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&apos;"}
_UNSAFE = re.compile(rb"[^ !#$(-;=?-~]")
# Readers skip these up to the first ">" without looking inside.
_SKIPPED = re.compile(rb"<[?!][^>]*>")
_ESCAPED = re.compile(rb"%([0-9a-f]{2})%")

Value = bytes | str | int


def encoded(value: Value) -> bytes:
    """A value as it stands in the file: text as UTF-8, undecodable bytes as they were, numbers as decimals.
    """
    if isinstance(value, int):
        return b"%d" % value
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def escape(value: Value) -> bytes:
    """The value for use between double quotes or tags: printable ASCII."""
    return b"%d" % value if isinstance(value, int) else _escaped(value)


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

    def number(self, name: str, default: int = 0) -> int:
        """The value of an attribute as a number: decimal, or C syntax with an optional sign."""
        return parse_number(self.get(name), default)


def parse_number(text: bytes, default: int = 0) -> int:
    """``12``, ``0x1000``, ``+0x1000``, ``-5``; anything else is ``default``."""
    try:
        return int(text, 16) if b"x" in text[:3].lower() else int(text)
    except ValueError:
        return default


def parse(data: bytes) -> list[Element]:
    """All whole root elements in file order. Damage loses what is damaged and nothing before it."""
    import lxml.etree

    body = _SKIPPED.sub(b"", data[:data.rfind(b">") + 1]).replace(b"\0", b" ")
    # After damage libxml2 goes on but drops entities, so it gets none to see.
    for character, entity in _ENTITIES.items():
        body = body.replace(entity, b"%%%02x%%" % ord(character))
    parser = lxml.etree.XMLParser(recover=True, huge_tree=True, resolve_entities=False, no_network=True,
                                  remove_comments=True, remove_pis=True, encoding="iso-8859-1")
    root = lxml.etree.fromstring(b"<roots>" + body + b"</roots>", parser)
    return [] if root is None else list(_converted(root))


def _converted(parent: Iterator[object]) -> Iterator[Element]:
    for node in parent:
        attributes = {str(key): _bytes(value) for key, value in node.attrib.items()}  # type: ignore[attr-defined]
        yield Element(node.tag, attributes, _bytes(node.text or ""), list(_converted(node)))  # type: ignore


def _bytes(text: str) -> bytes:
    return unescape(text.encode("latin-1", "replace"))
