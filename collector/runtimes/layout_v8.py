"""Where V8 keeps things: constants that it exports for debuggers (``v8dbg_*``, made by gen-postmortem-metadata.py).

Each symbol is an integer of four bytes. Names follow V8's source and change with it, so they are asked for in turn.
What no symbol tells, by version, as seen in 10.2, 11.3, 12.4 and 13.6 (node 18, 20, 22, 24):

    SharedFunctionInfo      function data behind the map
    BytecodeArray           its table of source positions: at 32, since 12 at 24
    Code                    before 11 the instructions lie behind its own head; since then it says where they begin, and
                            they have a head of their own (InstructionStream) that leads back to it
    ScopeInfo               since 12.8 where the function begins and ends comes before what varies in length

A wrong offset gives no name: types and what points back are checked with every object (``v8``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collector.runtimes.abi import V8_MARK

Read = Callable[[Sequence[int], Sequence[int]], list[bytes]]

_VERSION = b"_ZN2v88internal7Version15version_string_E"
NONE = -1
_FIRST, _LAST = (10, 0), (14, 99)
_CODE_APART = (11, 0)  # since this version instructions do not lie in the Code object
_TRUSTED = (12, 0)  # since this version code and bytecode are trusted objects, which lie in spaces of their own
_FIXED_POSITIONS = (12, 8)  # of ScopeInfo

# What is read: its symbols, the newest name last.
_SYMBOLS: dict[str, tuple[bytes, ...]] = {
    "fp_context": (b"off_fp_context",),
    "fp_function": (b"off_fp_function",),
    "fp_bytecode": (b"off_fp_bytecode_array",),
    "fp_offset": (b"off_fp_bytecode_offset",),
    "map_type": (b"class_Map__instance_type__uint16_t",),
    "function_shared": (b"class_JSFunction__shared__SharedFunctionInfo",),
    "shared_name": (b"class_SharedFunctionInfo__name_or_scope_info__Object",
                    b"class_SharedFunctionInfo__name_or_scope_info__Tagged_Object_",
                    b"class_SharedFunctionInfo__name_or_scope_info__Tagged_NameOrScopeInfoT_"),
    "shared_script": (b"class_SharedFunctionInfo__script_or_debug_info__HeapObject",
                      b"class_SharedFunctionInfo__script__Tagged_HeapObject_"),
    "script_name": (b"class_Script__name__Object",),
    "script_source": (b"class_Script__source__Object",),
    "script_line_ends": (b"class_Script__line_ends__Object",),
    "string_length": (b"class_String__length__int32_t",),
    "string_chars": (b"class_SeqOneByteString__chars__char",),
    "bytecode_data": (b"class_BytecodeArray__data__uintptr_t",),
    "array_length": (b"class_FixedArrayBase__length__SMI",),
    "array_data": (b"class_FixedArray__data__uintptr_t",),
    "scope_locals": (b"scopeinfo_idx_ncontextlocals",),
    "scope_first": (b"scopeinfo_idx_first_vars",),
    "type_function": (b"type_JSFunction__JS_FUNCTION_TYPE",),
    "type_shared": (b"type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE",),
    "type_scope": (b"type_ScopeInfo__SCOPE_INFO_TYPE",),
    "type_script": (b"type_Script__SCRIPT_TYPE",),
    "type_code": (b"type_Code__CODE_TYPE",),
    "type_bytecode": (b"type_BytecodeArray__BYTECODE_ARRAY_TYPE",),
    "type_map": (b"type_Map__MAP_TYPE",),
    "type_fixed": (b"type_FixedArray__FIXED_ARRAY_TYPE",),
    "type_bytes": (b"type_ByteArray__BYTE_ARRAY_TYPE",),
    "type_no_string": (b"FirstNonstringType",),
    "kind_baseline": (b"CodeKindBaseline",),
    "kind_mask": (b"CodeKindFieldMask",),
    "tagged_size": (b"TaggedSize",),
}
# The same, of which a version has some; and what else it is.
_SOME: dict[str, tuple[bytes, int]] = {
    "type_function_first": (b"FirstJSFunctionType", NONE),
    "type_function_last": (b"LastJSFunctionType", NONE),
    "type_instructions": (b"type_InstructionStream__INSTRUCTION_STREAM_TYPE", NONE),
    "type_interpreter_data": (b"type_InterpreterData__INTERPRETER_DATA_TYPE", NONE),
    "type_trusted_bytes": (b"type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE", NONE),
    "type_trusted_fixed": (b"type_TrustedFixedArray__TRUSTED_FIXED_ARRAY_TYPE", NONE),
    "type_protected_fixed": (b"type_ProtectedFixedArray__PROTECTED_FIXED_ARRAY_TYPE", NONE),
    "type_weak_fixed": (b"type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE", NONE),
    "type_trusted_weak_fixed": (b"type_TrustedWeakFixedArray__TRUSTED_WEAK_FIXED_ARRAY_TYPE", NONE),
    "type_wrapper": (b"type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE", NONE),
    "deopt_count": (b"DeoptimizationDataInlinedFunctionCountIndex", 1),
    "deopt_literals": (b"DeoptimizationDataLiteralArrayIndex", 2),
    "deopt_positions": (b"DeoptimizationDataInliningPositionsIndex", 7),
    "deopt_shared": (b"DeoptimizationDataSharedFunctionInfoIndex", NONE),
    "deopt_wrapped": (b"DeoptimizationDataWrappedSharedFunctionInfoIndex", NONE),
    "code_head": (b"class_Code__instruction_start__uintptr_t", NONE),  # before 11
    "instructions_head": (b"class_InstructionStream__instruction_start__uintptr_t", NONE),
    "code_size": (b"class_Code__instruction_size__int", NONE),
    "code_flags": (b"class_Code__flags__uint32_t", NONE),
    "code_start": (b"class_Code__instruction_start__Address", NONE),
    "code_instructions": (b"class_Code__instruction_stream__Tagged_InstructionStream_", NONE),
}
_FUNCTION_TYPES = 17  # how many there are, where no symbol tells
_PREFIX = b"v8dbg_"
MARK = V8_MARK  # who exports it is V8
_EMBEDDED = (b"_ZN2v88internal7Isolate23CurrentEmbeddedBlobCodeEv",
             b"_ZN2v88internal7Isolate27CurrentEmbeddedBlobCodeSizeEv")
_LOADS = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?(?:\x48)?\x8b\x05(.{4})\xc3", re.DOTALL)  # mov rax, [rip + ...]; ret
_EMBEDDED_MAX = 1 << 26
SYMBOLS = (_VERSION, *_EMBEDDED, *(_PREFIX + name for names in _SYMBOLS.values() for name in names),
           *(_PREFIX + name for name, _ in _SOME.values()))


@dataclass(frozen=True)
class Layout:
    """Constants by the names above: offsets in bytes from an object's beginning, words of frames from fp, types."""

    at: dict[str, int]
    version: tuple[int, int]

    @property
    def has_code_apart(self) -> bool:
        """Whether instructions do not lie in the Code object."""
        return self.version >= _CODE_APART

    @property
    def has_fixed_positions(self) -> bool:
        """Whether a ScopeInfo has the function's place before what varies in length."""
        return self.version >= _FIXED_POSITIONS


def layout_of(symbols: dict[bytes, tuple[int, int]], read: Read) -> Layout | str:
    """The layout by symbols at run-time addresses (address, size); or why it is not known (empty: it is not to be
    read, or not yet)."""
    version = _version(symbols, read)
    if isinstance(version, str):
        return version
    found = _values(symbols, read)
    if not found:
        return ""
    at = {name: next((found[_PREFIX + one] for one in ways if _PREFIX + one in found), NONE)
          for name, ways in _SYMBOLS.items()}
    missing = [name for name, ways in _SYMBOLS.items() if not any(_PREFIX + one in found for one in ways)]
    number = ".".join(map(str, version))
    if not _FIRST <= version <= _LAST or missing:
        return f"where V8 {number} keeps its frames is not known ({', '.join(missing[:3]) or 'version'})"
    if at["tagged_size"] != 8:
        return f"V8 {number} with compressed pointers is not known"
    at |= {name: found.get(_PREFIX + symbol, other) for name, (symbol, other) in _SOME.items()}
    return Layout(at | _untold(at, version), version)


def embedded_code(symbols: dict[bytes, tuple[int, int]], read: Read) -> tuple[int, int]:
    """Where V8's builtins are (begin, end), as two functions tell that load their variables and return; (0, 0): they
    do not. For files without symbols of the builtins themselves."""
    values = []
    for name, size in zip(_EMBEDDED, (8, 4), strict=True):
        at = symbols.get(name, (0, 0))[0]
        (code,) = read([at], [16]) if at else (b"",)
        found = _LOADS.match(code)
        if found is None:
            return 0, 0
        (value,) = read([at + found.end(1) + int.from_bytes(found[1], "little", signed=True)], [size])
        values.append(int.from_bytes(value, "little"))
    begin, length = values
    return (begin, begin + length) if begin and 0 < length <= _EMBEDDED_MAX else (0, 0)


def _untold(at: dict[str, int], version: tuple[int, int]) -> dict[str, int]:
    """What no symbol tells."""
    is_trusted = version >= _TRUSTED
    found = {"shared_data": 8, "bytecode_positions": 24 if is_trusted else 32, "interpreter_bytecode": 8,
             "code_data": 8 if is_trusted else 16, "code_positions": 16 if is_trusted else 24}
    if at["deopt_shared"] == NONE and at["deopt_wrapped"] == NONE:
        found["deopt_shared"] = 6
    if at["type_function_first"] == NONE:
        found["type_function_first"] = at["type_function"]
        found["type_function_last"] = at["type_function"] + _FUNCTION_TYPES - 1
    if version >= _CODE_APART and at["code_start"] == NONE:
        found |= {"code_instructions": 32, "code_start": 40, "code_flags": 48, "code_size": 56}
    return found


def _values(symbols: dict[bytes, tuple[int, int]], read: Read) -> dict[bytes, int]:
    names = [name for name in symbols if name.startswith(_PREFIX)]
    pieces = read([symbols[name][0] for name in names], [4] * len(names))
    return {name: int.from_bytes(piece, "little", signed=True) for name, piece in zip(names, pieces, strict=True)
            if len(piece) == 4} if all(pieces) else {}


def _version(symbols: dict[bytes, tuple[int, int]], read: Read) -> tuple[int, int] | str:
    if _VERSION not in symbols:
        return "its version is not exported"
    (pointer,) = read([symbols[_VERSION][0]], [8])
    (text,) = read([int.from_bytes(pointer, "little")], [16]) if len(pointer) == 8 else (b"",)
    if not text:
        return ""
    major, _, rest = text.partition(b".")
    minor = rest.partition(b".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else "its version is not known"
