"""Java methods by their Method*: names, files and lines. Pure, over a ``read`` handed in.

    Method -> ConstMethod (bytecode, indices of name and signature, lines) -> ConstantPool -> Symbol
                                                                              |-> InstanceKlass -> Symbol

Each arrow is one read for all methods that are asked for at once. What may be believed of it: see ``hotspot``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from collector.runtimes.compressed_hotspot import Lines, lines_of
from collector.runtimes.layout_hotspot import NONE, Layout

Read = Callable[[Sequence[int], Sequence[int]], list[bytes]]

_USER_END = 1 << 47
_NAMED_SIZE = 72  # bytes of a symbol that are read at first
_SYMBOL_MAX = 4096
_CONST_MAX = 1 << 17  # bytes of a ConstMethod: bytecode, lines and tables
_TAG_UTF8 = 1
_HAS_LINES = 1
_METHODS_MAX = 1 << 17
_PRIMITIVES = {b"B": b"byte", b"C": b"char", b"D": b"double", b"F": b"float", b"I": b"int", b"J": b"long",
               b"S": b"short", b"Z": b"boolean"}
_TYPE = re.compile(rb"(\[*)(?:([BCDFIJSZ])|L([^;\[()]+);)")
_SIGNATURE = re.compile(rb"\(((?:\[*(?:[BCDFIJSZ]|L[^;\[()]+;))*)\)(?:V|\[*(?:[BCDFIJSZ]|L[^;\[()]+;))")
_METHOD_NAME = re.compile(rb"<init>|<clinit>|[^.;\[/<>\0]+")
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
_CLASS_NAME = re.compile(rb"[^.;\[/\0]+(?:/[^.;\[/\0]+)*")


class JavaMethod(NamedTuple):
    """A method: where its bytecode is, its name (``package.Class.method(types)``), file and lines."""

    bytecode: int
    size: int
    name: bytes
    source: bytes
    lines: Lines


class _Const(NamedTuple):
    """What a ConstMethod says."""

    address: int
    pool: int
    bytecode: int
    code_size: int
    end: int
    name: int
    signature: int
    parameters: int  # words; -1: not known
    has_lines: bool


class _Class(NamedTuple):
    """Whose a pool is: its InstanceKlass, the Symbol of its name, that name and its file."""

    klass: int
    symbol: int
    name: bytes
    source: bytes


class Methods:
    """Those of one machine."""

    def __init__(self, layout: Layout, read: Read) -> None:
        self.known: dict[int, JavaMethod] = {}  # by Method*
        self.n_forgotten = 0
        # What each is told apart by from one that has come to be where it was: of an unloaded class, say.
        self._identity: dict[int, tuple[_Const, _Class]] = {}
        self._certain: set[int] = set()  # known ones that are there, as was seen since the last look
        self._failed: set[int] = set()  # since the last look
        self._class_of: dict[int, _Class] = {}  # those of pools, since then
        self._layout = layout
        self._read = read

    def look(self) -> None:
        """Whether methods are still there will be seen as they are asked for, from now on."""
        self._failed.clear()
        self._certain.clear()
        self._class_of.clear()
        if len(self.known) > _METHODS_MAX:
            self.known.clear()
            self._identity.clear()

    def learn(self, addresses: Iterable[int]) -> None:
        """Learns those that are not known yet, or are others by now."""
        asked = set(addresses) - self._certain
        if not asked:
            return
        self._check([address for address in asked if address in self.known])
        # Not a difference of sets: that looks at all that are known, and often one is asked for.
        new = {address for address in asked if address not in self.known and address not in self._failed}
        found = self._found([address for address in sorted(new) if _is_address(address)]) if new else {}
        self.known.update(found)
        self._failed |= new - found.keys()
        self._certain.update(address for address in asked if address in self.known)

    def _check(self, addresses: Sequence[int]) -> None:
        """Forgets methods that are there no more."""
        at, size = self._layout.at, self._layout.size["const"]
        there = self._words(addresses, at["method_const"])
        if not any(there):
            return
        known = [self._identity[address] for address in addresses]
        heads = self._read([const.address for const, _ in known], [size] * len(known))
        klasses = self._words([const.pool for const, _ in known], at["pool_holder"])
        symbols = self._words([its.klass for _, its in known], at["klass_name"])
        for address, (const, its), pointer, head, *whose in zip(
                addresses, known, there, heads, klasses, symbols, strict=True):
            if whose != [its.klass, its.symbol] or self._const(pointer, head) != const:
                del self.known[address], self._identity[address]
                self.n_forgotten += 1

    def _found(self, addresses: Sequence[int]) -> dict[int, JavaMethod]:
        pointers = self._words_twice(addresses, self._layout.at["method_const"])
        consts = self._consts([pointer for pointer in pointers if _is_address(pointer)])
        by_method = {address: consts[pointer] for address, pointer in zip(addresses, pointers, strict=True)
                     if pointer in consts}
        pools = self._classes({const.pool for const in by_method.values()})
        by_method = {address: const for address, const in by_method.items() if const.pool in pools}
        symbols = self._symbols_of(by_method.values(), pools)
        tables = self._tables(by_method.values())
        found = {}
        for address, const in by_method.items():
            its = pools[const.pool]
            name = _method_name(const, symbols.get((const.pool, const.name), b""),
                                symbols.get((const.pool, const.signature), b""))
            if name:
                self._identity[address] = const, its
                found[address] = JavaMethod(const.bytecode, const.code_size, its.name.replace(b"/", b".") + b"." + name,
                                            its.source, tables.get(const.address, ()))
        return found

    def _consts(self, addresses: Sequence[int]) -> dict[int, _Const]:
        heads = self._twice(addresses, self._layout.size["const"])
        found = {address: self._const(address, head) for address, head in zip(addresses, heads, strict=True)}
        return {address: const for address, const in found.items() if const is not None}

    def _const(self, address: int, head: bytes) -> _Const | None:
        """What a ConstMethod with this head says; None: it cannot be one."""
        at, size = self._layout.at, self._layout.size["const"]
        if len(head) < size:
            return None
        bytecode, code_size = address + size, _half(head, at["const_code_size"])
        end = address + (int.from_bytes(head[at["const_size"]:][:4], "little") << 3)
        parameters = _half(head, at["const_parameters"]) if at["const_parameters"] != NONE else -1
        pool = _word(head, at["const_constants"])
        if not (bytecode + code_size <= end <= address + _CONST_MAX and _is_address(pool)):
            return None
        return _Const(address, pool, bytecode, code_size, end, _half(head, at["const_name"]),
                      _half(head, at["const_signature"]), parameters, bool(head[at["const_flags"]] & _HAS_LINES))

    def _classes(self, addresses: set[int]) -> dict[int, _Class]:
        """The same as ``_pools``; what was read since the last look need not be read again, if the pool still belongs
        to that class, and that to the pool."""
        at = self._layout.at
        known = [pool for pool in addresses if pool in self._class_of]
        holders = self._words(known, at["pool_holder"])
        back = self._words(holders, at["klass_constants"])
        same = {pool for pool, holder, own in zip(known, holders, back, strict=True)
                if own == pool and holder == self._class_of[pool].klass}
        found = self._pools(addresses - same)
        return found | {pool: self._class_of[pool] for pool in same}

    def _pools(self, addresses: set[int]) -> dict[int, _Class]:
        """Names of the classes that pools belong to, and of the files of these."""
        at, size = self._layout.at, self._layout.size["pool"]
        asked = list(addresses)
        heads = {pool: head for pool, head in zip(asked, self._twice(asked, size), strict=True) if len(head) == size}
        holders = {pool: _word(head, at["pool_holder"]) for pool, head in heads.items()}
        holders = {pool: holder for pool, holder in holders.items() if _is_address(holder)}
        there = list(holders.values())
        back = self._words(there, at["klass_constants"])
        names = self._words_twice(there, at["klass_name"])
        named = {pool: name for (pool, _), own, name in zip(holders.items(), back, names, strict=True) if own == pool}
        indices = {pool: _half(heads[pool], at["pool_source"]) if at["pool_source"] != NONE else 0 for pool in named}
        files = self._entries([(pool, index) for pool, index in indices.items() if index])
        texts = self._texts([*named.values(), *files.values()])
        found = {}
        for pool, name in named.items():
            text = texts.get(name, b"")
            if _CLASS_NAME.fullmatch(text):
                file = texts.get(files.get((pool, indices[pool]), 0), b"")
                folder = text.rpartition(b"/")[0]
                is_file = bool(file) and b"/" not in file and b"\0" not in file
                source = (folder + b"/" if folder else b"") + file if is_file else b""
                found[pool] = self._class_of[pool] = _Class(holders[pool], name, text, source)
        return found

    def _symbols_of(self, consts: Iterable[_Const], pools: dict[int, _Class]) -> dict[tuple[int, int], bytes]:
        """The names and signatures that constants have, by pool and index."""
        asked = {(const.pool, index) for const in consts if const.pool in pools
                 for index in (const.name, const.signature)}
        entries = self._entries(sorted(asked))
        texts = self._texts(entries.values())
        return {place: texts[address] for place, address in entries.items() if address in texts}

    def _entries(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """The symbols (Symbol*) at places (pool, index) whose tags say that they are symbols."""
        at, size = self._layout.at, self._layout.size["pool"]
        pools = list(dict.fromkeys(pool for pool, _ in places))
        lengths = dict(zip(pools, self._read([pool + at["pool_length"] for pool in pools], [4] * len(pools)),
                           strict=True))
        tags = dict(zip(pools, self._words(pools, at["pool_tags"]), strict=True))
        sound = [(place, tags[place[0]]) for place in places
                 if 0 < place[1] < int.from_bytes(lengths[place[0]], "little") and _is_address(tags[place[0]])]
        kinds = self._read([tag + 4 + index for (_, index), tag in sound], [1] * len(sound))
        there = [place for (place, _), kind in zip(sound, kinds, strict=True) if kind == bytes((_TAG_UTF8,))]
        words = self._words_twice([pool + 8 * index for pool, index in there], size)
        return {place: word & ~1 for place, word in zip(there, words, strict=True)}

    def _tables(self, consts: Iterable[_Const]) -> dict[int, Lines]:
        lined = [const for const in consts if const.has_lines]
        pieces = self._read([const.bytecode + const.code_size for const in lined],
                            [const.end - const.bytecode - const.code_size for const in lined])
        return {const.address: lines_of(piece, self._layout.excluded, const.code_size)
                for const, piece in zip(lined, pieces, strict=True)}

    def _texts(self, addresses: Iterable[int]) -> dict[int, bytes]:
        """What symbols say, by address, if it is text and the same when read again."""
        at, body = self._layout.at["symbol_length"], self._layout.at["symbol_body"]
        asked = [address for address in dict.fromkeys(addresses) if _is_address(address)]
        heads = zip(asked, self._read(asked, [body] * len(asked)), strict=True)
        lengths = {address: _half(head, at) for address, head in heads if len(head) == body}
        lengths = {address: length for address, length in lengths.items() if 0 < length <= _SYMBOL_MAX}
        twice = [self._read([address + body for address in lengths], list(lengths.values())) for _ in range(2)]
        return {address: text for address, first, second in zip(lengths, *twice, strict=True)
                if first == second and (text := _text(first))}

    def _words(self, addresses: Sequence[int], at: int) -> list[int]:
        return [_word(piece, 0) for piece in self._read([address + at for address in addresses], [8] * len(addresses))]

    def _words_twice(self, addresses: Sequence[int], at: int) -> list[int]:
        return [_word(piece, 0) for piece in self._twice([address + at for address in addresses], 8)]

    def _twice(self, addresses: Sequence[int], size: int) -> list[bytes]:
        """What is the same when read again; empty where it is not."""
        first, second = (self._read(addresses, [size] * len(addresses)) for _ in range(2))
        return [one if one == other else b"" for one, other in zip(first, second, strict=True)]


def _method_name(const: _Const, name: bytes, signature: bytes) -> bytes:
    """A method's name with the types of its parameters; empty if it cannot be one."""
    parameters = _parameters(signature)
    if not _METHOD_NAME.fullmatch(name) or parameters is None:
        return b""
    types, n_words = parameters
    is_sound = const.parameters < 0 or const.parameters in (n_words, n_words + 1)
    return name + types if is_sound else b""


def _parameters(signature: bytes) -> tuple[bytes, int] | None:
    """The types in a descriptor, in brackets, and how many words they take; None where it is none."""
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        return None
    types = _TYPE.findall(match[1])
    names = [(_PRIMITIVES[kind] if kind else klass.rpartition(b"/")[2]) + b"[]" * len(depth)
             for depth, kind, klass in types]
    return b"(" + b", ".join(names) + b")", sum(2 if kind in (b"J", b"D") and not depth else 1
                                                for depth, kind, _ in types)


def _text(content: bytes) -> bytes:
    """What a symbol says, as UTF-8; empty where that is no text. In the modified UTF-8 of a symbol a character beyond
    the first 65,536 is two surrogates, each encoded by itself."""
    try:
        units = content.decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
        text = units.decode("utf-16-le")
    except UnicodeDecodeError:
        return b""
    return b"" if _CONTROL.search(text) else text.encode()


def _is_address(word: int) -> bool:
    return 0xFFFF < word < _USER_END and not word & 1


def _word(content: bytes, at: int) -> int:
    return int.from_bytes(content[at:at + 8], "little") if len(content) >= at + 8 else 0


def _half(content: bytes, at: int) -> int:
    return int.from_bytes(content[at:at + 2], "little")
