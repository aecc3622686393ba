"""Call frame information as it stands in ``.eh_frame`` and ``.debug_frame``, decoded one function at a time. Pure.

A section is a run of entries: CIEs hold what many functions share, FDEs describe one function each. An entry is its
length, a number that tells CIE from FDE (and an FDE's CIE), then

    CIE    version, augmentation string, code and data alignment, return address register, augmentation data,
           initial instructions
    FDE    first address and size of the function, augmentation data, instructions

The instructions build a table row by row: a state (CFA rule, register rules) and a pc; each advance of the pc ends a
row. ``rows_of`` runs them and gives the rows as ``(pc_object, Rule)``; equal neighbours are one row. Functions do the
same few things in the same states (push rbp, push rbx, make room), so what an instruction does to a state is worked out
once, by ``_Machine``, and looked up from then on (``_States``).

``.eh_frame_hdr`` has the first address and the place of every FDE, sorted; viewed with numpy it is an index for
nothing. Sections without one are walked once (``walk``).

All errors are ElfError. Linux Standard Base 5, "Exception Frames"; DWARF 5, 6.4 and 7.24.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.elf import Extent
from collector.errors import ElfError
from collector.unwind.expression import sleb128, uleb128
from collector.unwind.rules import Architecture, Cfa, CfaKind, How, Kind, Rule

# Most entries fit; one read of the file is enough then.
_WINDOW = 512
_MAX_ENTRY = 1 << 20
_MAX_ENTRIES = 1 << 20  # of a section that is walked, which takes seconds then
_MAX_ROWS = 1 << 16
_MAX_REMEMBERED = 256
_MAX_STATES = 1 << 10  # that a function is the first to be in; compilers' functions have some twenty at most
_ABSENT = 0xFF
# One instruction, but for those with a block or an encoded address; trailing padding is one. Numbers are no longer than
# ``uleb128`` reads them: else each of the bytes of one without an end would be looked at from all those before it.
_ULEB = rb"[\x80-\xff]{0,15}[\x00-\x7f]"
_INSTRUCTION = re.compile(
    rb"(?s:[\x40-\x7f\xc0-\xff\x0a\x0b]|\x00+|[\x80-\xbf\x06-\x08\x0d\x0e\x13\x2e]%s"
    rb"|[\x05\x09\x0c\x11\x12\x14\x15\x2f]%s%s|\x02.|\x03..|\x04.{4}|\x1d.{8})" % (_ULEB, _ULEB, _ULEB))
_REMEMBER, _RESTORE = b"\x0a", b"\x0b"
_SIZES = {0x2: (2, False), 0x3: (4, False), 0x4: (8, False), 0xA: (2, True), 0xB: (4, True), 0xC: (8, True)}


class Cie(NamedTuple):
    """What a CIE says, with its initial state."""

    code_align: int
    data_align: int
    return_register: int
    encoding: int
    has_data: bool
    is_signal: bool
    cfa: Cfa
    registers: dict[int, How]


class State:
    """What holds between two advances: the rules of the CFA and of the registers, and the ``rule`` that they amount to.
    Of the functions of one CIE equal states are one object, and so are equal rules."""

    __slots__ = ("cfa", "moves", "registers", "rule")

    def __init__(self, cfa: Cfa, registers: dict[int, How], rule: Rule) -> None:
        self.cfa, self.registers, self.rule = cfa, registers, rule
        self.moves: dict[bytes, State] = {}  # what instructions make of it, as far as they have been met


Row = tuple[int, Rule]


class Fde(NamedTuple):
    """One function: ``[begin, end)`` in the object's addresses, and its instructions at ``data[at:]``."""

    begin: int
    end: int
    states: _States
    data: bytes
    at: int
    vaddr: int

    @property
    def cie(self) -> Cie:
        """What it shares with other functions."""
        return self.states.cie


class Index(NamedTuple):
    """Where the FDEs of a section are: first addresses (n,) u8 ascending, and their offsets in the section (n,) i8."""

    begin: npt.NDArray[np.uint64]
    offset: npt.NDArray[np.int64]


class CfiSection:
    """One section of call frame information. ``is_debug``: ``.debug_frame``, which differs in small ways."""

    def __init__(self, extent: Extent, arch: Architecture, is_debug: bool = False) -> None:
        self.extent, self.arch, self.is_debug = extent, arch, is_debug
        self._tables: dict[int, _States] = {}  # by the offset of their CIE

    def fde_at(self, offset: int) -> Fde:
        """The FDE at an offset of the section."""
        data, at, identity, _, is_64 = self._entry(offset)
        if self._is_cie(identity, is_64):
            raise ElfError(f"call frame information: no FDE at {offset:#x}")
        cie_offset = identity if self.is_debug else offset + at - (8 if is_64 and self.is_debug else 4) - identity
        try:
            return self._fde(data, at, offset, self._states_of(cie_offset))
        except IndexError as err:
            raise ElfError(f"call frame information: damaged FDE at {offset:#x}") from err

    def rows_of(self, fde: Fde) -> list[Row]:
        """The table of one function: rows that hold from their address to the next one's, the last to ``fde.end``.
        Rows that go back or out of it are damage and dropped; equal neighbours are one."""
        return [(pc, state.rule) for pc, state in self.states_of(fde)]

    def states_of(self, fde: Fde) -> list[tuple[int, State]]:
        """The same table, with a state for each rule."""
        return fde.states.of(fde)

    def parts_of(self, offset: int) -> list[tuple[int, int]]:
        """All stretches ``[begin, end)`` of the function whose FDE is at an offset. What a compiler expects to be
        seldom carried out it puts elsewhere; the FDE of that part comes next, and does not begin as functions do."""
        fde = self.fde_at(offset)
        found = [(fde.begin, fde.end)]
        while True:
            try:
                offset += self._entry(offset)[3]
                fde = self.fde_at(offset)
                rows = self.rows_of(fde)
            except ElfError:  # a CIE, or no entry any more
                return found
            if not rows or rows[0][1].cfa == fde.cie.cfa:
                return found
            found.append((fde.begin, fde.end))

    def walk(self) -> Iterator[tuple[int, int, int]]:
        """All FDEs as (begin, end, offset), in the section's order. Damaged entries are passed over."""
        offset = 0
        for _ in range(_MAX_ENTRIES):
            if offset + 4 > self.extent.size:
                return
            try:
                _, _, identity, size, is_64 = self._entry(offset)
            except ElfError:
                return
            if size == 4:
                if not self.is_debug:
                    return
            elif not self._is_cie(identity, is_64):
                try:
                    fde = self.fde_at(offset)
                    if fde.end > fde.begin:
                        yield fde.begin, fde.end, offset
                except ElfError:
                    pass
            offset += size

    def index(self) -> Index:
        """An index made by walking the whole section: some microseconds per FDE, once."""
        found = sorted((begin, offset) for begin, _, offset in self.walk())
        return Index(np.array([begin for begin, _ in found], np.uint64),
                     np.array([offset for _, offset in found], np.int64))

    def _is_cie(self, identity: int, is_64: bool) -> bool:
        if self.is_debug:
            return identity == (0xFFFFFFFFFFFFFFFF if is_64 else 0xFFFFFFFF)
        return identity == 0

    def _entry(self, offset: int) -> tuple[bytes, int, int, int, bool]:
        """(bytes from ``offset`` on, position behind the number, the number, whole size, 64-bit DWARF)."""
        if not 0 <= offset < self.extent.size:
            raise ElfError(f"call frame information: no entry at {offset:#x}")
        data = self.extent.read(offset, _WINDOW)
        is_64 = data[:4] == b"\xff\xff\xff\xff"
        at = 12 if is_64 else 4
        length = int.from_bytes(data[4:12] if is_64 else data[:4], "little")
        size = at + length
        if size > _MAX_ENTRY or offset + size > self.extent.size:
            raise ElfError(f"call frame information: damaged entry at {offset:#x}")
        if size > len(data):
            data = self.extent.read(offset, size)
        width = 8 if is_64 and self.is_debug else 4
        identity = int.from_bytes(data[at:at + width], "little")
        return data[:size], at + width, identity, size, is_64

    def _fde(self, data: bytes, at: int, offset: int, states: _States) -> Fde:
        cie, vaddr = states.cie, self.extent.vaddr + offset
        begin, at = decode_pointer(data, at, cie.encoding, vaddr, self.arch.word_size)
        size, at = decode_pointer(data, at, cie.encoding & 0x0F, 0, self.arch.word_size)
        if cie.has_data:
            length, at = uleb128(data, at)
            at += length
        mask = (1 << 8 * self.arch.word_size) - 1
        return Fde(begin, min(begin + (size & mask), mask), states, data, at, vaddr)

    def _states_of(self, offset: int) -> _States:
        """Those of the CIE at an offset."""
        states = self._tables.get(offset)
        if states is None:
            data, at, identity, size, is_64 = self._entry(offset)
            if size == 4 or not self._is_cie(identity, is_64):
                raise ElfError(f"call frame information: no CIE at {offset:#x}")
            try:
                cie = self._cie(data, at, self.extent.vaddr + offset)
            except IndexError as err:
                raise ElfError(f"call frame information: damaged CIE at {offset:#x}") from err
            states = self._tables[offset] = _States(cie, self.arch)
        return states

    def _cie(self, data: bytes, at: int, vaddr: int) -> Cie:
        version = data[at]
        end = data.find(b"\0", at + 1)
        if version not in (1, 3, 4) or end < 0:
            raise ElfError(f"call frame information: CIE of unknown version {version}")
        augmentation, at = data[at + 1:end], end + 1
        if augmentation.startswith(b"eh"):
            augmentation, at = augmentation[2:], at + self.arch.word_size
        if version == 4:
            if data[at] != self.arch.word_size or data[at + 1]:
                raise ElfError("call frame information: segmented or foreign addresses")
            at += 2
        code_align, at = uleb128(data, at)
        data_align, at = sleb128(data, at)
        return_register, at = (data[at], at + 1) if version == 1 else uleb128(data, at)
        encoding, is_signal, at = self._augmentation(augmentation, data, at)
        cie = Cie(code_align, data_align, return_register, encoding, augmentation[:1] == b"z", is_signal,
                  Cfa(CfaKind.EXPRESSION), {})
        machine = _Machine(cie, self.arch, data, at, 0, vaddr)
        machine.run()
        return cie._replace(cfa=machine.cfa, registers=machine.registers)

    def _augmentation(self, text: bytes, data: bytes, at: int) -> tuple[int, bool, int]:
        """(pointer encoding, whether a signal frame, position of the instructions)."""
        encoding, end = 0, at
        if text[:1] == b"z":
            length, at = uleb128(data, at)
            end = at + length
        for letter in text.removeprefix(b"z"):
            if letter == ord("R"):
                encoding, at = data[at], at + 1
            elif letter == ord("P"):
                _, at = decode_pointer(data, at + 1, data[at] & 0x7F, 0, self.arch.word_size)
            elif letter == ord("L"):
                at += 1
            elif letter not in b"SBG":
                if not end:
                    raise ElfError(f"call frame information: unknown augmentation {text!r}")
                break
        return encoding, b"S" in text, end if text[:1] == b"z" else at


def decode_pointer(data: bytes, at: int, encoding: int, vaddr: int, word_size: int) -> tuple[int, int]:
    """A pointer in one of the DW_EH_PE encodings and the position behind it; ``data`` begins at ``vaddr``.

    Absolute and pc-relative values are known here; what is relative to something else raises ElfError, as does an
    indirect pointer.
    """
    field_vaddr = vaddr + at
    form = encoding & 0x0F
    if encoding == 0x50:  # DW_EH_PE_aligned
        at += -field_vaddr % word_size
        form = 0
    if form == 0:
        size, signed = word_size, False
    elif form in _SIZES:
        size, signed = _SIZES[form]
    elif form in (1, 9):
        value, at = (uleb128 if form == 1 else sleb128)(data, at)
        size = 0
    else:
        raise ElfError(f"call frame information: unknown pointer encoding {encoding:#x}")
    if size:
        if at + size > len(data):
            raise IndexError
        value = int.from_bytes(data[at:at + size], "little", signed=signed)
        at += size
    if encoding & 0xF0 == 0x10:
        value += field_vaddr
    elif encoding & 0xF0 not in (0, 0x50):
        raise ElfError(f"call frame information: pointer encoding {encoding:#x} is relative to what is not known")
    return value & ((1 << 8 * word_size) - 1), at


def search_table(hdr: Extent, word_size: int) -> tuple[int, Index | None]:
    """``.eh_frame_hdr``: (address of .eh_frame, its sorted index or None where the table is absent or not usable).

    The index has addresses of FDEs in place of offsets; subtract the section's.
    """
    data = hdr.read(0, hdr.size)
    try:
        if data[0] != 1:
            raise ElfError(f".eh_frame_hdr of unknown version {data[0]}")
        eh_frame_vaddr, at = decode_pointer(data, 4, data[1], hdr.vaddr, word_size)
        if data[2] == _ABSENT or data[3] == _ABSENT:
            return eh_frame_vaddr, None
        count, at = decode_pointer(data, at, data[2], hdr.vaddr, word_size)
    except IndexError as err:
        raise ElfError(".eh_frame_hdr ends early") from err
    size, signed = _SIZES.get(data[3] & 0x0F, (0, False))
    if not size or data[3] & 0xF0 not in (0, 0x30) or not count or at + 2 * size * count > len(data):
        return eh_frame_vaddr, None
    table = np.frombuffer(data, f"<{'i' if signed else 'u'}{size}", 2 * count, at).reshape(count, 2)
    table = table.astype(np.int64).view(np.uint64) + np.uint64(hdr.vaddr if data[3] & 0xF0 else 0)
    table &= np.uint64((1 << 8 * word_size) - 1)
    begin = np.ascontiguousarray(table[:, 0])
    if (begin[1:] < begin[:-1]).any():
        return eh_frame_vaddr, None
    return eh_frame_vaddr, Index(begin, table[:, 1].astype(np.int64))


class _States:
    """All states that functions of one CIE have been in, each once, and what instructions make of them."""

    def __init__(self, cie: Cie, arch: Architecture) -> None:
        self.cie, self._arch = cie, arch
        self._states: dict[tuple[Cfa, tuple[tuple[int, How], ...]], State] = {}
        self._rules: dict[Rule, Rule] = {}
        self._advances: dict[bytes, int] = {}
        self._room = _MAX_STATES
        self._initial = self._state(cie.cfa, cie.registers)

    def of(self, fde: Fde) -> list[tuple[int, State]]:
        """See CfiSection.states_of."""
        self._room = len(self._states) + _MAX_STATES
        body = fde.data[fde.at:]
        instructions = _INSTRUCTION.findall(body)
        if sum(map(len, instructions)) == len(body):
            return self._looked_up(instructions, fde)
        return self._worked_out(fde)  # a block, an encoded address, or damage

    def _looked_up(self, instructions: list[bytes], fde: Fde) -> list[tuple[int, State]]:
        pc, state, advances = fde.begin, self._initial, self._advances
        rows: list[tuple[int, State]] = []
        remembered: list[State] = []
        last = None  # the rule of the last row
        n = 0
        for instruction in instructions:
            delta = advances.get(instruction, 0)
            if not delta:
                if instruction in state.moves:
                    state = state.moves[instruction]
                    continue
                if instruction == _REMEMBER:
                    remembered.append(state)
                    continue
                if instruction == _RESTORE and remembered:
                    state = remembered.pop()
                    continue
                state, delta = self._met(instruction, state)
                if not delta:
                    continue
            if state.rule is not last:
                last = state.rule
                rows.append((pc, state))
            pc += delta
            n += 1
        if n >= _MAX_ROWS or len(remembered) > _MAX_REMEMBERED:
            raise ElfError("call frame information: too much of it in one function")
        if state.rule is not last:
            rows.append((pc, state))
        while rows and rows[-1][0] >= fde.end:
            rows.pop()
        return rows

    def _worked_out(self, fde: Fde) -> list[tuple[int, State]]:
        machine = _Machine(self.cie, self._arch, fde.data, fde.at, fde.begin, fde.vaddr)
        machine.cfa, machine.registers = self.cie.cfa, self.cie.registers
        machine.run()
        machine.end_row()
        found: list[tuple[int, State]] = []
        last_pc, last_rule = fde.begin - 1, None
        for pc, cfa, registers in machine.rows:
            state = self._state(cfa, registers)
            # Rows that go back or out of the function are damage.
            if last_pc < pc < fde.end and state.rule is not last_rule:
                found.append((pc, state))
                last_pc, last_rule = pc, state.rule
        return found

    def _met(self, instruction: bytes, state: State) -> tuple[State, int]:
        """The state behind an instruction that has not been met in this one, and by how much it advances the pc."""
        machine = _Machine(self.cie, self._arch, instruction, 0, 0, 0)
        machine.cfa, machine.registers = state.cfa, state.registers
        machine.run()
        if machine.pc:
            self._advances[instruction] = machine.pc
            return state, machine.pc
        after = state.moves[instruction] = self._state(machine.cfa, machine.registers)
        return after, 0

    def _state(self, cfa: Cfa, registers: dict[int, How]) -> State:
        key = cfa, tuple(sorted(registers.items()))
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= self._room:
                raise ElfError("call frame information: too many states in one function")
            rule = Rule(cfa, self._mentioned(registers), self.cie.is_signal)
            state = self._states[key] = State(cfa, registers, self._rules.setdefault(rule, rule))
        return state

    def _mentioned(self, registers: dict[int, How]) -> tuple[tuple[int, How], ...]:
        if self.cie.return_register != self._arch.ip:
            registers = dict(registers)
            registers[self._arch.ip] = registers.pop(self.cie.return_register, How(Kind.UNDEFINED))
        n = self._arch.n_registers
        return tuple(sorted(item for item in registers.items() if item[0] < n))


class _Machine:
    """Runs the instructions of one CIE or FDE. State: CFA rule, register rules, pc; rows (pc, CFA rule, register rules)
    as they end."""

    def __init__(self, cie: Cie, arch: Architecture, data: bytes, at: int, pc: int, vaddr: int) -> None:
        self.cie, self.arch, self.data, self.at, self.vaddr = cie, arch, data, at, vaddr
        self.pc = self.row_pc = pc
        self.cfa = cie.cfa
        self.registers: dict[int, How] = {}  # none of these is ever changed: rows in which they are the same share them
        self.remembered: list[tuple[Cfa, dict[int, How]]] = []
        self.rows: list[tuple[int, Cfa, dict[int, How]]] = []

    def run(self) -> None:
        data, end = self.data, len(self.data)
        try:
            while self.at < end:
                op = data[self.at]
                self.at += 1
                high = op & 0xC0
                if high == 0x40:
                    self.advance(op & 0x3F)
                elif high == 0x80:
                    self.offset(op & 0x3F, self.uleb())
                elif high == 0xC0:
                    self.restore(op & 0x3F)
                else:
                    _OPERATIONS[op](self)
        except IndexError as err:
            raise ElfError("call frame information: instructions end early") from err
        except KeyError as err:
            raise ElfError(f"call frame information: unknown instruction {op:#x}") from err

    def uleb(self) -> int:
        value = self.data[self.at]
        if value < 128:
            self.at += 1
            return value
        value, self.at = uleb128(self.data, self.at)
        return value

    def sleb(self) -> int:
        value, self.at = sleb128(self.data, self.at)
        return value

    def block(self) -> bytes:
        size = self.uleb()
        if self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return self.data[self.at - size:self.at]

    def fixed(self, size: int) -> int:
        if self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return int.from_bytes(self.data[self.at - size:self.at], "little")

    def end_row(self) -> None:
        if len(self.rows) >= _MAX_ROWS:
            raise ElfError("call frame information: too many rows in one function")
        self.rows.append((self.row_pc, self.cfa, self.registers))

    def advance(self, delta: int) -> None:
        if delta:
            self.end_row()
            self.pc += delta * self.cie.code_align
            self.row_pc = self.pc

    def set_loc(self) -> None:
        pc, self.at = decode_pointer(self.data, self.at, self.cie.encoding, self.vaddr, self.arch.word_size)
        self.end_row()
        self.pc = self.row_pc = pc

    def put(self, register: int, how: How) -> None:
        if register >= self.arch.n_registers and register != self.cie.return_register:
            return  # nobody asks for it
        self.registers = {**self.registers, register: how}

    def offset(self, register: int, factored: int) -> None:
        self.put(register, How(Kind.SAVED, factored * self.cie.data_align))

    def value_offset(self, register: int, factored: int) -> None:
        self.put(register, How(Kind.VALUE, factored * self.cie.data_align))

    def restore(self, register: int) -> None:
        initial = self.cie.registers.get(register)
        if initial is not None:
            self.put(register, initial)
        elif register in self.registers:
            self.registers = {number: how for number, how in self.registers.items() if number != register}

    def set(self, register: int, kind: Kind) -> None:
        self.put(register, How(kind))

    def register(self, register: int, other: int) -> None:
        self.put(register, How(Kind.REGISTER_VALUE, 0, other))

    def remember(self) -> None:
        if len(self.remembered) >= _MAX_REMEMBERED:
            raise ElfError("call frame information: too many remembered states")
        self.remembered.append((self.cfa, self.registers))

    def restore_state(self) -> None:
        # Since GCC 4.4 the CFA comes back as well (DWARF 3, issue 070103).
        self.cfa, self.registers = self.remembered.pop()

    def def_cfa(self, register: int, offset: int) -> None:
        self.cfa = Cfa(CfaKind.REGISTER, register, offset)

    def def_cfa_offset(self, offset: int) -> None:
        if self.cfa.kind != CfaKind.REGISTER:
            raise ElfError("call frame information: an offset for a CFA that has no register")
        self.cfa = Cfa(CfaKind.REGISTER, self.cfa.register, offset)

    def def_cfa_expression(self) -> None:
        self.cfa = cfa_of_expression(self.block(), self.arch)

    def expression(self) -> None:
        register, code = self.uleb(), self.block()
        base = _register_plus(code)
        self.put(register, How(Kind.SAVED_AT, base[1], base[0]) if base else How(Kind.EXPRESSION, expression=code))

    def value_expression(self) -> None:
        register, code = self.uleb(), self.block()
        base = _register_plus(code)
        self.put(register, How(Kind.REGISTER_VALUE, base[1], base[0]) if base
                 else How(Kind.VALUE_EXPRESSION, expression=code))


def cfa_of_expression(code: bytes, arch: Architecture) -> Cfa:
    """The CFA rule that an expression amounts to, a simple one where it is one of the known forms."""
    if base := _register_plus(code):
        return Cfa(CfaKind.REGISTER, *base)
    return _deref_cfa(code) or _plt_cfa(code, arch) or Cfa(CfaKind.EXPRESSION, expression=code)


def _register_plus(code: bytes) -> tuple[int, int] | None:
    """(register, offset) if the expression is one ``DW_OP_breg``."""
    if len(code) < 2 or not 0x70 <= code[0] <= 0x8F:
        return None
    try:
        offset, at = sleb128(code, 1)
    except IndexError:
        return None
    return (code[0] - 0x70, offset) if at == len(code) else None


def _deref_cfa(code: bytes) -> Cfa | None:
    """``breg off; deref``, by itself or followed by ``plus_uconst n``: the caller's sp was saved in the stack."""
    if len(code) < 3 or not 0x70 <= code[0] <= 0x8F:
        return None
    try:
        offset, at = sleb128(code, 1)
        if code[at] != 0x06:
            return None
        if at + 1 == len(code):
            return Cfa(CfaKind.DEREF, code[0] - 0x70, offset)
        addend, end = uleb128(code, at + 2)
    except IndexError:
        return None
    is_whole = code[at + 1] == 0x23 and end == len(code)
    return Cfa(CfaKind.DEREF, code[0] - 0x70, offset, addend=addend) if is_whole else None


def _plt_cfa(code: bytes, arch: Architecture) -> Cfa | None:
    """The expression that GNU ld writes for a lazy PLT: sixteen-byte entries push one word on their way.

    ``breg(sp) w; breg(ip) 0; lit15; and; lit N; ge; lit log2(w); shl; plus``
    """
    word = arch.word_size
    start = bytes((0x70 + arch.sp, word, 0x70 + arch.ip, 0, 0x3F, 0x1A))
    end = bytes((0x2A, 0x30 + word.bit_length() - 1, 0x24, 0x22))
    if len(code) == 11 and code.startswith(start) and code.endswith(end) and 0x30 <= code[6] <= 0x3F:
        return Cfa(CfaKind.PLT, arch.sp, word, threshold=code[6] - 0x30)
    return None


# DW_CFA_*: DWARF 5, table 7.29, and the vendors' that occur on these architectures.
_OPERATIONS: dict[int, Callable[[_Machine], Any]] = {
    0x00: lambda m: None,
    0x01: _Machine.set_loc,
    0x02: lambda m: m.advance(m.fixed(1)),
    0x03: lambda m: m.advance(m.fixed(2)),
    0x04: lambda m: m.advance(m.fixed(4)),
    0x05: lambda m: m.offset(m.uleb(), m.uleb()),
    0x06: lambda m: m.restore(m.uleb()),
    0x07: lambda m: m.set(m.uleb(), Kind.UNDEFINED),
    0x08: lambda m: m.set(m.uleb(), Kind.SAME),
    0x09: lambda m: m.register(m.uleb(), m.uleb()),
    0x0A: _Machine.remember,
    0x0B: _Machine.restore_state,
    0x0C: lambda m: m.def_cfa(m.uleb(), m.uleb()),
    0x0D: lambda m: m.def_cfa(m.uleb(), m.cfa.offset),
    0x0E: lambda m: m.def_cfa_offset(m.uleb()),
    0x0F: _Machine.def_cfa_expression,
    0x10: _Machine.expression,
    0x11: lambda m: m.offset(m.uleb(), m.sleb()),
    0x12: lambda m: m.def_cfa(m.uleb(), m.sleb() * m.cie.data_align),
    0x13: lambda m: m.def_cfa_offset(m.sleb() * m.cie.data_align),
    0x14: lambda m: m.value_offset(m.uleb(), m.uleb()),
    0x15: lambda m: m.value_offset(m.uleb(), m.sleb()),
    0x16: _Machine.value_expression,
    0x1D: lambda m: m.advance(m.fixed(8)),
    0x2E: lambda m: m.uleb(),  # GNU_args_size: nothing to a call stack
    0x2F: lambda m: m.offset(m.uleb(), -m.uleb()),
}
