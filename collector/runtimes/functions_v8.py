"""JavaScript functions by their SharedFunctionInfo: names, scripts and lines. Pure, over a ``read`` handed in.

    SharedFunctionInfo -> String (a builtin's name) | ScopeInfo -> name; where the function begins and ends
                       -> Script -> name, line ends or source

Each arrow is one read for all functions that are asked for at once. A function is believed if all are of their types,
its place lies in the script's source and all of it is the same when read twice. What it consists of may be moved by the
collector of garbage: then its words are others, and it is read anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt

from collector.runtimes.heap_v8 import Heap, half4, is_object, small, word
from collector.runtimes.layout_v8 import Layout

ANONYMOUS = b"(anonymous)"
_NAME_MAX, _SOURCE_MAX, _LINES_MAX = 1024, 1 << 25, 1 << 20
_SCOPE_WORDS, _LOCALS_INLINE, _LOCALS_MAX = 12, 75, 1 << 16
_SCOPE_OBJECTS = 6  # of the words, those among which names are looked for
_NO_WORD = 3  # no object and no small integer
_SCRIPT_SIZE = 72  # at most
_SHOWN_MAX = 1 << 17  # lines of a function
_FUNCTIONS_MAX = 1 << 16
_WORD = 8


class Script(NamedTuple):
    """A source: its name, and where its lines end."""

    name: bytes
    ends: tuple[int, ...]
    size: int  # characters


class JsFunction(NamedTuple):
    """A function: its name, file, its first and its last line (0: not known); ``script``: the address of that."""

    name: bytes
    source: bytes
    line: int
    last_line: int
    script: int


class _Scope(NamedTuple):
    name: int  # a string; 0: none
    begin: int
    end: int


_NOWHERE = Script(b"", (), 0)


class Functions:
    """Those of one process, by their SharedFunctionInfo."""

    def __init__(self, layout: Layout, heap: Heap) -> None:
        self.known: dict[int, JsFunction] = {}
        self._layout = layout
        self._heap = heap
        self._size = max(layout.at[name] for name in ("shared_data", "shared_name", "shared_script")) + _WORD
        self._keys: dict[int, bytes] = {}  # what tells each from others
        self._scripts: dict[int, tuple[bytes, Script]] = {}

    def learn(self, shared: Iterable[int]) -> dict[int, int]:
        """Learns those that are not known, and those that have changed; of each that is one the word that leads to
        its code (0: its process is gone)."""
        asked = [one for one in dict.fromkeys(shared) if is_object(one)]
        heads = self._heap.heads(asked, self._size)
        if asked and not any(heads):
            return dict.fromkeys((one for one in asked if one in self.known), 0)
        there = self._sound(asked, heads)
        if len(self.known) > _FUNCTIONS_MAX:
            for known in (self.known, self._keys, self._scripts):
                known.clear()
        self._learn({one: head for one, head in there.items()
                     if one not in self.known or self._keys[one] != self._key(head)})
        at = self._layout.at["shared_data"]
        return {one: word(head, at) for one, head in there.items() if one in self.known}

    def line_at(self, shared: int, position: int) -> int:
        """The line of a place in a function's script, if it lies in the function; else its first one."""
        function = self.known[shared]
        line = _line(self._scripts[function.script][1], position) if function.script in self._scripts else 0
        return line if function.line <= line <= function.last_line else function.line

    def _key(self, head: bytes) -> bytes:
        at = self._layout.at
        return b"".join(head[at[name]:at[name] + _WORD] for name in ("shared_name", "shared_script"))

    def _sound(self, shared: Sequence[int], heads: Sequence[bytes]) -> dict[int, bytes]:
        """The heads of those that are whole SharedFunctionInfos."""
        kinds = self._heap.types(heads)
        return {one: head for one, head, kind in zip(shared, heads, kinds, strict=True)
                if kind == self._layout.at["type_shared"] and len(head) == self._size}

    def _learn(self, heads: dict[int, bytes]) -> None:
        if not heads:
            return
        self._learn_scripts({word(head, self._layout.at["shared_script"]) for head in heads.values()})
        # What is being made, or overwritten, while it is read is not the same when it is read again.
        found, again = self._heap.twice(partial(self._found, list(heads)))
        for one, head in heads.items():
            self.known.pop(one, None)
            if one in found and again.get(one) == found[one] and found[one][1] == self._key(head):
                self.known[one], self._keys[one] = found[one]

    def _found(self, shared: Sequence[int]) -> dict[int, tuple[JsFunction, bytes]]:
        """Functions, and what tells each from others."""
        at = self._layout.at
        heads = self._sound(shared, self._heap.heads(shared, self._size))
        names = {one: word(head, at["shared_name"]) for one, head in heads.items()}
        scopes = self._scopes(set(names.values()))
        scripts = self._scripts_at({word(head, at["shared_script"]) for head in heads.values()})
        texts = self._heap.texts({*names.values(), *(scope.name for scope in scopes.values())}, _NAME_MAX)
        found = {}
        for one, head in heads.items():
            scope, address = scopes.get(names[one]), word(head, at["shared_script"])
            text = texts.get(scope.name if scope is not None else names[one])
            function = _function(text, scope, scripts[address], address) if address in scripts else None
            if function is not None:
                found[one] = function, self._key(head)
        return found

    # -- scopes

    def _scopes(self, objects: Iterable[int]) -> dict[int, _Scope]:
        asked = [one for one in objects if is_object(one)]
        heads = self._heap.heads(asked, _WORD * (self._layout.at["scope_first"] + 1))
        there = [one for one, kind in zip(asked, self._heap.types(heads), strict=True)
                 if kind == self._layout.at["type_scope"]]
        by_scope = dict(zip(asked, heads, strict=True))
        skipped = [self._skipped(by_scope[one]) for one in there]
        rests = self._heap.pieces([one - 1 + skip for one, skip in zip(there, skipped, strict=True)],
                                  [_WORD * _SCOPE_WORDS] * len(there))
        words = [[word(rest, i) if i < len(rest) else _NO_WORD for i in range(0, _WORD * _SCOPE_WORDS, _WORD)]
                 for rest in rests]
        kinds = self._heap.type_of([one for its in words for one in its[:_SCOPE_OBJECTS]])
        found = {}
        for i, (one, rest) in enumerate(zip(there, rests, strict=True)):
            its = slice(i * _SCOPE_OBJECTS, (i + 1) * _SCOPE_OBJECTS)
            scope = self._scope(by_scope[one], words[i], kinds[its])
            if scope is not None and rest:
                found[one] = scope
        return found

    def _skipped(self, head: bytes) -> int:
        """How many bytes stand before what says the name."""
        n = small(word(head, _WORD * (1 + self._layout.at["scope_locals"])))
        n = n if 0 <= n <= _LOCALS_MAX else 0
        n_names = n if n < _LOCALS_INLINE else 1  # more are in a table
        return _WORD * (1 + self._layout.at["scope_first"] + n_names + n)

    def _scope(self, head: bytes, words: Sequence[int], kinds: Sequence[int]) -> _Scope | None:
        """From words behind the local variables, and the types of the first of them, as far as they are objects:
        perhaps one of a class, the name and its variable, a name that was inferred, and the place."""
        if any(kind < 0 and is_object(one) for one, kind in zip(words[:4], kinds, strict=False)):
            return None
        is_string = [0 <= kind < self._layout.at["type_no_string"] for kind in kinds]
        named = next((i for i in range(4) if is_string[i]), -1)
        if named >= 0 and is_string[named + 1]:
            return None  # behind a name is its variable: these are names of local variables
        fixed = self._layout.has_fixed_positions
        name = words[named] if named >= 0 else 0
        if named >= 0 and named + 2 < len(words) and is_string[named + 2] and self._heap.texts([name], 0):
            name = words[named + 2]  # the name is empty, and another one was inferred
        if fixed:
            first = self._layout.at["scope_first"]
            begin, end = (small(word(head, _WORD * (1 + first - i))) for i in (2, 1))
            return _Scope(name, begin, end) if 0 <= begin <= end else None
        for i in range(named + 2 if named >= 0 else 0, len(words) - 1):
            begin, end = small(words[i]), small(words[i + 1])
            if 0 <= begin <= end:
                return _Scope(name, begin, end)
        return None

    # -- scripts

    def _learn_scripts(self, objects: Iterable[int]) -> None:
        """Apart from functions: sources are long, and there is one at a time."""
        for one, head in self._script_heads(objects).items():
            if not self._is_known(one, head):
                script, again = self._heap.twice(partial(self._script, head))
                self._scripts.pop(one, None)
                if again == script:
                    self._scripts[one] = self._script_key(head), script

    def _scripts_at(self, objects: set[int]) -> dict[int, Script]:
        """What is known of scripts; ``_NOWHERE`` for those of which nothing can be, and for what is none."""
        heads = self._script_heads(objects)
        known = {one: self._scripts[one][1] for one, head in heads.items() if self._is_known(one, head)}
        return dict.fromkeys(objects - heads.keys(), _NOWHERE) | known

    def _script_heads(self, objects: Iterable[int]) -> dict[int, bytes]:
        asked = [one for one in objects if is_object(one)]
        heads = self._heap.heads(asked, _SCRIPT_SIZE)
        return {one: head for one, head, kind in zip(asked, heads, self._heap.types(heads), strict=True)
                if kind == self._layout.at["type_script"]}

    def _is_known(self, script: int, head: bytes) -> bool:
        return script in self._scripts and self._scripts[script][0] == self._script_key(head)

    def _script(self, head: bytes) -> Script:
        """What a script is by its head. Where lines end V8 has worked out, if somebody asked; else the source tells."""
        at = self._layout.at
        name, source = word(head, at["script_name"]), word(head, at["script_source"])
        text = self._heap.texts([name], 4 * _NAME_MAX).get(name)
        is_nameless = text is None and self._heap.type_of([name])[0] >= at["type_no_string"]
        told = self._array(word(head, at["script_line_ends"]))
        (string,) = self._heap.heads([source], 16)
        kind = self._heap.types([string])[0]
        size = half4(string, at["string_length"]) if 0 <= kind < at["type_no_string"] else 0
        is_told = bool(told) and all(0 <= one <= size for one in told)
        ends = tuple(told) if is_told else _ends(self._heap.units(source, _SOURCE_MAX))
        return Script(_file(text or ""), ends, size) if text or (ends and is_nameless) else _NOWHERE

    def _script_key(self, head: bytes) -> bytes:
        at = self._layout.at
        return b"".join(head[at[name]:at[name] + _WORD] for name in ("script_name", "script_source"))

    def _array(self, one: int) -> list[int]:
        """The small integers of an array."""
        at = self._layout.at
        (head,) = self._heap.heads([one], at["array_data"])
        n = small(word(head, at["array_length"]))
        if self._heap.types([head]) != [at["type_fixed"]] or not 0 < n <= _LINES_MAX:
            return []
        (data,) = self._heap.pieces([one - 1 + at["array_data"]], [n * _WORD])
        return (np.frombuffer(data, "<u8") >> np.uint64(32)).tolist() if len(data) == n * _WORD else []


def _function(text: str | None, scope: _Scope | None, script: Script, address: int) -> JsFunction | None:
    """What is known of a function; None where it makes no sense."""
    if scope is None:  # of a builtin, which has no source, and perhaps no name
        return None if text is None or not _is_name(text) else JsFunction(text.encode("utf-8", "replace"), b"", 0, 0, 0)
    if (text is None and scope.name) or (text and not _is_name(text)) or (script.size and scope.end > script.size):
        return None
    line, last = (_line(script, place) for place in (scope.begin, max(scope.end - 1, scope.begin)))
    last = min(max(line, last), line + _SHOWN_MAX)
    file = script.name.rsplit(b"/", 1)[-1]
    if text:
        name = text.encode("utf-8", "replace")
    elif scope.begin == 0 and scope.end == script.size and file:
        name = b"<module> (%s)" % file
    elif line:
        name = b"%s %s:%d" % (ANONYMOUS, file, line) if file else ANONYMOUS
    else:
        return None
    return JsFunction(name, script.name, line, last, address)


def _is_name(text: str) -> bool:
    return "\0" not in text and not any(0xD800 <= ord(one) < 0xE000 for one in text)


def _line(script: Script, position: int) -> int:
    return bisect_left(script.ends, position) + 1 if script.ends and 0 <= position <= script.size else 0


def _ends(units: npt.NDArray[np.unsignedinteger]) -> tuple[int, ...]:
    """Where lines of a text end, as V8 has it: at each end of a line, and at the end of the text."""
    is_end = units == 10
    is_end |= units == 13
    if units.itemsize > 1:
        is_end |= (units | 1) == 0x2029  # or 0x2028
    ends = np.flatnonzero(is_end)
    if not len(units):
        return ()
    is_pair = (units[ends] == 13) & (units[np.minimum(ends + 1, len(units) - 1)] == 10)
    return (*ends[~is_pair].tolist(), len(units))


def _file(name: str) -> bytes:
    """A script's name; of a URL of a file its path."""
    content = name.encode("utf-8", "replace")  # a name may have half a character
    path = unquote_to_bytes(content[len("file://"):]) if content.startswith(b"file:///") else content
    return path if b"\0" not in path else b""
