"""DWARF expressions, one at a time: for the rare rules that no equation of ``rules.py`` covers. Pure.

A stack machine on words of the target. Only what call frame information may use is known (DWARF 5, 6.4.2); operations
that need a compilation unit, an object address or a call are ``Unsupported``. Every expression ends: a step limit
guards ``DW_OP_bra`` and ``DW_OP_skip``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MAX_STEPS = 1000
_MAX_STACK = 256
# Padded numbers are legal, endless ones are damage.
_MAX_LEB_BITS = 16 * 7


class Unsupported(Exception):
    """The expression is damaged, uses an operation that frames cannot have, or a register that is not known."""


class Unreadable(Exception):
    """The expression needs memory that was not copied. ``args[0]`` is the address."""


def evaluate(code: bytes, initial: Sequence[int], register: Callable[[int], int], word_at: Callable[[int], int],
             word_size: int) -> int:
    """The value of an expression. ``initial`` is pushed first (the CFA for register rules).

    ``register(number)`` and ``word_at(address)`` may raise Unsupported and Unreadable, which pass through.
    """
    machine = _Machine(code, list(initial), register, word_at, word_size)
    try:
        return machine.run()
    except (IndexError, ZeroDivisionError, KeyError) as err:
        raise Unsupported(f"damaged expression {code.hex()}") from err


def sleb128(data: bytes, at: int) -> tuple[int, int]:
    """A signed LEB128 number and the offset behind it. IndexError if the data ends first."""
    value, end = uleb128(data, at)
    return (value - (1 << 7 * (end - at)) if data[end - 1] & 64 else value), end


def uleb128(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number and the offset behind it. IndexError if the data ends first."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if shift > _MAX_LEB_BITS:
            raise IndexError
        if byte < 128:
            return value, at


class _Machine:
    def __init__(self, code: bytes, stack: list[int], register: Callable[[int], int],
                 word_at: Callable[[int], int], word_size: int) -> None:
        self.code, self.stack, self.at = code, stack, 0
        self.register, self.word_at, self.word_size = register, word_at, word_size
        self.bits = 8 * word_size
        self.mask = (1 << self.bits) - 1

    def run(self) -> int:
        for _ in range(_MAX_STEPS):
            if self.at >= len(self.code):
                return self.stack[-1]
            if self.at < 0 or len(self.stack) > _MAX_STACK:
                break
            self.step()
        raise Unsupported(f"endless expression {self.code.hex()}")

    def step(self) -> None:
        op = self.code[self.at]
        self.at += 1
        if 0x30 <= op <= 0x4F:
            self.push(op - 0x30)
        elif 0x70 <= op <= 0x8F:
            self.push(self.register(op - 0x70) + self.sleb())
        elif op in _CONSTANTS:
            self.push(self.fixed(*_CONSTANTS[op]))
        elif op in _BINARY:
            b, a = self.stack.pop(), self.stack.pop()
            self.push(int(_BINARY[op](a, b, self.bits)))
        elif op in _OTHER:
            _OTHER[op](self)
        else:
            raise Unsupported(f"operation {op:#x} in expression {self.code.hex()}")

    def push(self, value: int) -> None:
        self.stack.append(value & self.mask)

    def sleb(self) -> int:
        value, self.at = sleb128(self.code, self.at)
        return value

    def uleb(self) -> int:
        value, self.at = uleb128(self.code, self.at)
        return value

    def fixed(self, size: int, signed: bool) -> int:
        size = size or self.word_size
        if self.at + size > len(self.code):
            raise IndexError
        self.at += size
        return int.from_bytes(self.code[self.at - size:self.at], "little", signed=signed)

    def address(self, size: int = 0) -> None:
        """Replace an address by what it points to; words only, and their lower bytes."""
        value = self.word_at(self.stack.pop())
        self.push(value & ((1 << 8 * size) - 1) if size else value)

    def branch(self, conditional: bool) -> None:
        distance = self.fixed(2, True)
        if not conditional or self.stack.pop():
            self.at += distance

    def pick(self, depth: int) -> None:
        if depth >= len(self.stack):
            raise IndexError
        self.push(self.stack[-1 - depth])

    def deref_size(self) -> None:
        self.address(self.fixed(1, False))

    def bregx(self) -> None:
        number = self.uleb()
        self.push(self.register(number) + self.sleb())

    def swap(self) -> None:
        self.stack[-1], self.stack[-2] = self.stack[-2], self.stack[-1]

    def rotate(self) -> None:
        a, b, c = self.stack[-3:] if len(self.stack) >= 3 else (None, None, None)
        if a is None or b is None or c is None:
            raise IndexError
        self.stack[-3:] = [c, a, b]


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _divide(a: int, b: int, bits: int) -> int:
    a, b = _signed(a, bits), _signed(b, bits)
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_CONSTANTS = {0x03: (0, False), 0x08: (1, False), 0x09: (1, True), 0x0A: (2, False), 0x0B: (2, True),
              0x0C: (4, False), 0x0D: (4, True), 0x0E: (8, False), 0x0F: (8, True)}

_BINARY: dict[int, Callable[[int, int, int], int]] = {
    0x1A: lambda a, b, _: a & b,
    0x1B: _divide,
    0x1C: lambda a, b, _: a - b,
    0x1D: lambda a, b, _: a % b,
    0x1E: lambda a, b, _: a * b,
    0x21: lambda a, b, _: a | b,
    0x22: lambda a, b, _: a + b,
    0x24: lambda a, b, bits: a << b if b < bits else 0,
    0x25: lambda a, b, bits: a >> b if b < bits else 0,
    0x26: lambda a, b, bits: _signed(a, bits) >> min(b, bits),
    0x27: lambda a, b, _: a ^ b,
    0x29: lambda a, b, _: a == b,
    0x2A: lambda a, b, bits: _signed(a, bits) >= _signed(b, bits),
    0x2B: lambda a, b, bits: _signed(a, bits) > _signed(b, bits),
    0x2C: lambda a, b, bits: _signed(a, bits) <= _signed(b, bits),
    0x2D: lambda a, b, bits: _signed(a, bits) < _signed(b, bits),
    0x2E: lambda a, b, _: a != b,
}

_OTHER: dict[int, Callable[[_Machine], None]] = {
    0x06: lambda m: m.address(),
    0x10: lambda m: m.push(m.uleb()),
    0x11: lambda m: m.push(m.sleb()),
    0x12: lambda m: m.pick(0),
    0x13: lambda m: m.stack.__delitem__(-1),
    0x14: lambda m: m.pick(1),
    0x15: lambda m: m.pick(m.fixed(1, False)),
    0x16: _Machine.swap,
    0x17: _Machine.rotate,
    0x19: lambda m: m.push(abs(_signed(m.stack.pop(), m.bits))),
    0x1F: lambda m: m.push(-m.stack.pop()),
    0x20: lambda m: m.push(~m.stack.pop()),
    0x23: lambda m: m.push(m.stack.pop() + m.uleb()),
    0x28: lambda m: m.branch(True),
    0x2F: lambda m: m.branch(False),
    0x92: _Machine.bregx,
    0x94: _Machine.deref_size,
    0x96: lambda m: None,
}
