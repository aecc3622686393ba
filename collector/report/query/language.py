"""The language of filters, from text to a tree.

    member    list [("IN" | "SOME IN" | "ORDERED IN") list]
    list      choice ["," choice]...                                        a list is true
    choice    logic ["?" choice ":" choice]
    logic     compared [("||" | "&&" | "|" | "^" | "&") compared]...        from left to right
    compared  sum [("==" | "!=" | "<" | "<=" | ">" | ">=") sum]
    sum       unary [("<<" | ">>" | "+" | "-" | "*" | "/" | "%") unary]...  from left to right
    unary     "!" "~" "-", a number, a name, "(" member ")", HASPROP(NAME), FNAME("regular expression")

Binding is that of gprofng's reader (``compat.LEVELS``): IN binds less than anything else (``A && B IN (1, 2)`` asks
whether ``A && B`` is 1 or 2), AND does not bind more than OR, products not more than sums (``1+2*3`` is 9). Names, IN
and the like may be written in small letters. Numbers are decimal, hexadecimal (0x) or octal (0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from collector.errors import ExpressionError
from collector.report.compat import COMPARING, LEVELS

_TOKEN = re.compile(r"""\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)(?![A-Za-z_0-9])|(?P<name>[A-Za-z_]\w*)
    |"(?P<text>(?:[^"\\]|\\.)*)"|(?P<mark>\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>!~&|^?:(),]))""", re.VERBOSE | re.ASCII)
_DEPTH_MAX = 100
_NUMBER_MAX = 1 << 64
_TEXT_FUNCTIONS = ("FNAME", "DNAME")
_WORDS = {"TRUE": 1, "FALSE": 0}


@dataclass(frozen=True)
class Number:
    """A number below 2**64."""

    value: int


@dataclass(frozen=True)
class Name:
    """A property of packets, in capitals."""

    name: str
    position: int


@dataclass(frozen=True)
class Named:
    """The functions (FNAME) or data objects (DNAME) whose whole names a regular expression matches."""

    what: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Has:
    """Whether packets have a property."""

    name: str


@dataclass(frozen=True)
class Unary:
    """``!`` ``~`` ``-``."""

    sign: str
    operand: Node


@dataclass(frozen=True)
class Binary:
    """An operation on numbers."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Choice:
    """``condition ? then : otherwise``."""

    condition: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True)
class Many:
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Member:
    """``how``: IN (all of them), SOME IN (one of them), ORDERED IN (all of them, one right after the other)."""

    how: str
    left: Node
    right: Node


Node: TypeAlias = Number | Name | Named | Has | Unary | Binary | Choice | Many | Member


def parse(text: str) -> Node:
    """The tree of an expression; an empty one is true. Raises ExpressionError."""
    if not text.strip():
        return Number(1)
    return _Parser(text).whole()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


class _Parser:
    """Recursive descent over the tokens; the last one is the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._member()
        if self._now.kind != "end":
            raise self._error(f"{self._now.text!r} was not expected here")
        return node

    def _split(self) -> list[_Token]:
        tokens, at = [], 0
        end = len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                raise ExpressionError(f"-filters: {self._text[at]!r} cannot be understood", self._text, at)
            tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            at = match.end()
        return [*tokens, _Token("end", "the end", end)]

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _error(self, reason: str) -> ExpressionError:
        return ExpressionError(f"-filters: {reason}", self._text, self._now.position)

    def _take(self, *marks: str) -> str:
        """The mark that comes next, if it is one of these."""
        if self._now.kind == "mark" and self._now.text in marks:
            self._at += 1
            return self._tokens[self._at - 1].text
        return ""

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            raise self._error(f"{mark!r} is missing before {self._now.text!r}")

    def _member(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error("too many parentheses within each other")
        node = self._list()
        if how := self._how():
            node = Member(how, node, self._list())
            if self._how():
                raise self._error("one IN does not follow another; put one in parentheses")
        self._depth -= 1
        return node

    def _how(self) -> str:
        """IN, SOME IN or ORDERED IN, if it comes next."""
        words = [token.text.upper() if token.kind == "name" else "" for token in self._tokens[self._at:self._at + 2]]
        if words[:1] == ["IN"]:
            self._at += 1
            return "IN"
        if words in (["SOME", "IN"], ["ORDERED", "IN"]):
            self._at += 2
            return words[0]
        return ""

    def _list(self) -> Node:
        items = [self._choice()]
        while self._take(","):
            items.append(self._choice())
        return items[0] if len(items) == 1 else Many(tuple(items))

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error("too many choices within each other")
        node = self._binary(0)
        if self._take("?"):
            then = self._choice()
            self._need(":")
            node = Choice(node, then, self._choice())
        self._depth -= 1
        return node

    def _binary(self, level: int) -> Node:
        if level == len(LEVELS):
            return self._unary()
        node = self._binary(level + 1)
        while sign := self._take(*LEVELS[level]):
            node = Binary(sign, node, self._binary(level + 1))
            if level == COMPARING and self._now.text in LEVELS[level]:
                raise self._error("comparisons do not follow each other; put one in parentheses")
        return node

    def _unary(self) -> Node:
        signs = []
        while sign := self._take("!", "~", "-"):
            signs.append(sign)
        node = self._primary()
        for sign in reversed(signs):
            node = Unary(sign, node)
        return node

    def _primary(self) -> Node:
        token = self._now
        if self._take("("):
            node = self._member()
            self._need(")")
            return node
        self._at += 1
        if token.kind == "number":
            return self._number(token)
        if token.kind != "name":
            self._at -= 1
            raise self._error(f"a number or a name is missing before {token.text!r}")
        name = token.text.upper()
        if name in _TEXT_FUNCTIONS:
            return Named(name, self._pattern())
        if name == "HASPROP":
            return self._has()
        return Number(_WORDS[name]) if name in _WORDS else Name(name, token.position)

    def _number(self, token: _Token) -> Number:
        text = token.text
        try:
            value = int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10)
        except ValueError:
            self._at -= 1
            raise self._error(f"{text}: no octal number") from None
        if value >= _NUMBER_MAX:
            self._at -= 1
            raise self._error("the number does not fit into 64 bits")
        return Number(value)

    def _pattern(self) -> re.Pattern[str]:
        self._need("(")
        token = self._now
        if token.kind != "text":
            raise self._error('a regular expression in "double quotes" is missing')
        try:
            pattern = re.compile(token.text)
        except (re.error, RecursionError, OverflowError) as err:
            raise self._error(f"no regular expression: {err}") from err
        self._at += 1
        self._need(")")
        return pattern

    def _has(self) -> Has:
        self._need("(")
        token = self._now
        if token.kind != "name":
            raise self._error("the name of a property is missing")
        self._at += 1
        self._need(")")
        return Has(token.text.upper())
