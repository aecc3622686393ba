"""Where HotSpot keeps things: tables of its own, which libjvm.so exports for debuggers (``vmStructs.cpp``).

``gHotSpotVMStructs`` has an entry for each field, ``gHotSpotVMTypes`` one for each type; other symbols say where in an
entry its parts are and how far entries lie apart. So no version's offsets stand here, only names. Names that have
changed with versions are asked for in turn, the newest first. What the tables do not tell:

    interpreter frames on x86-64    sender's sp at fp-8, Method* at fp-24, bytecode pointer at fp-64 (frame_x86.hpp,
                                    11 to 25)
    compressed numbers              since 20 no byte of one is zero (compressedStream.hpp)
    metadata of compiled code       in 23 and 24 in its data, as far behind as two bytes say; since 25 in its mutable
                                    data, behind the relocations (nmethod.hpp)
    compiled code in the making     its state is -1; a native method's wrapper may keep that (nmethod.hpp)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Read = Callable[[Sequence[int], Sequence[int]], list[bytes]]

_STRUCT, _TYPE = b"gHotSpotVMStructEntry", b"gHotSpotVMTypeEntry"
_STRUCT_PARTS = (b"TypeNameOffset", b"FieldNameOffset", b"IsStaticOffset", b"OffsetOffset", b"AddressOffset",
                 b"ArrayStride")
_TYPE_PARTS = (b"TypeNameOffset", b"SizeOffset", b"ArrayStride")
STRUCTS, TYPES = b"gHotSpotVMStructs", b"gHotSpotVMTypes"
SYMBOLS = (STRUCTS, TYPES, *(_STRUCT + part for part in _STRUCT_PARTS), *(_TYPE + part for part in _TYPE_PARTS))

_ENTRY_MAX = 256  # bytes
_ENTRIES_MAX = 4096
_NAME_SIZE = 64
_OFFSET_MAX = 1 << 16
_NO_ZERO_BYTES = 20  # since this version compressed numbers have none
NONE = -1

# What is read, as Type.field, by the names that versions have had for it.
_FIELDS: dict[str, tuple[str, ...]] = {
    "heap_memory": ("CodeHeap._memory",),
    "heap_segmap": ("CodeHeap._segmap",),
    "heap_log2_segment": ("CodeHeap._log2_segment_size",),
    "space_low": ("VirtualSpace._low",),
    "space_high": ("VirtualSpace._high",),
    "block_used": ("HeapBlock::Header._used",),
    "array_length": ("GrowableArrayBase._len", "GenericGrowableArray._len"),
    "array_data": ("GrowableArray<int>._data",),
    "blob_name": ("CodeBlob._name",),
    "blob_size": ("CodeBlob._size",),
    "blob_frame_size": ("CodeBlob._frame_size",),
    "method": ("nmethod._method", "CompiledMethod._method"),
    "compile_id": ("nmethod._compile_id",),
    "comp_level": ("nmethod._comp_level",),
    "scopes_pcs": ("nmethod._scopes_pcs_offset",),
    "method_const": ("Method._constMethod",),
    "const_constants": ("ConstMethod._constants",),
    "const_flags": ("ConstMethod._flags._flags", "ConstMethod._flags"),
    "const_size": ("ConstMethod._constMethod_size",),
    "const_code_size": ("ConstMethod._code_size",),
    "const_name": ("ConstMethod._name_index",),
    "const_signature": ("ConstMethod._signature_index",),
    "pool_holder": ("ConstantPool._pool_holder",),
    "pool_length": ("ConstantPool._length",),
    "pool_tags": ("ConstantPool._tags",),
    "klass_name": ("Klass._name",),
    "klass_constants": ("InstanceKlass._constants",),
    "symbol_length": ("Symbol._length",),
    "symbol_body": ("Symbol._body", "Symbol._body[0]"),
}
# The same, of which a version has some.
_SOME: dict[str, tuple[str, ...]] = {
    "code_begin": ("CodeBlob._code_begin",),  # an address
    "code_offset": ("CodeBlob._code_offset",),  # in the blob
    "code_end": ("CodeBlob._code_end",),
    "data_offset": ("CodeBlob._data_offset",),
    "scopes_data_begin": ("CompiledMethod._scopes_data_begin", "nmethod._scopes_data_begin"),
    "scopes_data": ("nmethod._scopes_data_offset",),
    "scopes_pcs_end": ("nmethod._dependencies_offset",),
    "immutable_data": ("nmethod._immutable_data",),
    "immutable_size": ("nmethod._immutable_data_size",),
    "metadata": ("nmethod._metadata_offset",),
    "state": ("nmethod._state",),
    "mutable_data": ("CodeBlob._mutable_data",),
    "mutable_size": ("CodeBlob._mutable_data_size",),
    "relocation_size": ("CodeBlob._relocation_size",),
    "const_parameters": ("ConstMethod._size_of_parameters",),
    "pool_source": ("ConstantPool._source_file_name_index",),
    "klass_source": ("InstanceKlass._source_file_name_index",),
}
_STATICS = {
    "heaps": "CodeCache._heaps",
    "low_bound": "CodeCache._low_bound",
    "high_bound": "CodeCache._high_bound",
    "call_stub_return": "StubRoutines._call_stub_return_address",
    "version": "Abstract_VM_Version._vm_major_version",
}
_SIZES = {"blob": "CodeBlob", "nmethod": "nmethod", "block": "HeapBlock", "const": "ConstMethod",
          "pool": "ConstantPool", "type_method": "Method"}


@dataclass(frozen=True)
class Layout:
    """Offsets in bytes by the names above (NONE: this version has no such field), addresses of static fields, sizes of
    types, and the version."""

    at: dict[str, int]
    static: dict[str, int]
    size: dict[str, int]
    version: int

    @property
    def excluded(self) -> int:
        """How many values no byte of a compressed number has."""
        return int(self.version >= _NO_ZERO_BYTES)


def layout_of(symbols: dict[bytes, tuple[int, int]], read: Read) -> Layout | str:
    """The layout by exported tables whose symbols are at run-time addresses (address, size); or what is missing (empty:
    they are not to be read, or not yet)."""
    if any(name not in symbols for name in SYMBOLS):
        return "libjvm.so does not export its tables"
    names = list(SYMBOLS)
    words = dict(zip(names, (_word(content, 0) for content in read([symbols[name][0] for name in names],
                                                                   [8] * len(names))), strict=True))
    fields, statics = _fields(words, read)
    sizes = _sizes(words, read)
    if not fields or not sizes:
        return ""
    at = {name: next((fields[one] for one in ways if one in fields), NONE)
          for name, ways in {**_FIELDS, **_SOME}.items()}
    missing = [name for name in _FIELDS if at[name] == NONE]
    missing += [name for name in _STATICS.values() if name not in statics]
    missing += [name for name in _SIZES.values() if name not in sizes]
    if missing or (at["code_begin"] == NONE and at["code_offset"] == NONE):
        return f"where it keeps its frames is not known ({', '.join(missing[:3]) or 'CodeBlob'})"
    static = {name: statics[field] for name, field in _STATICS.items()}
    (content,) = read([static["version"]], [8])
    return Layout(at, static, {name: sizes[kind] for name, kind in _SIZES.items()},
                  int.from_bytes(content[:4], "little"))


def _fields(words: dict[bytes, int], read: Read) -> tuple[dict[str, int], dict[str, int]]:
    """Offsets of fields and addresses of static ones, by Type.field."""
    kind, field, is_static, offset, address, stride = (words[_STRUCT + part] for part in _STRUCT_PARTS)
    entries = _entries(words[STRUCTS], stride, kind, read)
    texts = _texts({_word(entry, at) for entry in entries for at in (kind, field)}, read)
    fields, statics = {}, {}
    for entry in entries:
        name = f"{texts.get(_word(entry, kind), '')}.{texts.get(_word(entry, field), '')}"
        if _word(entry, is_static) & 0xFFFF_FFFF:
            statics[name] = _word(entry, address)
        elif _word(entry, offset) < _OFFSET_MAX:
            fields[name] = _word(entry, offset)
    return fields, statics


def _sizes(words: dict[bytes, int], read: Read) -> dict[str, int]:
    kind, size, stride = (words[_TYPE + part] for part in _TYPE_PARTS)
    entries = _entries(words[TYPES], stride, kind, read)
    texts = _texts({_word(entry, kind) for entry in entries}, read)
    return {texts.get(_word(entry, kind), ""): _word(entry, size) for entry in entries
            if 0 < _word(entry, size) < _OFFSET_MAX}


def _entries(start: int, stride: int, kind: int, read: Read) -> list[bytes]:
    """The entries of a table, up to the one without a type."""
    if not 0 < stride <= _ENTRY_MAX or not start:
        return []
    found: list[bytes] = []
    step = 64
    while len(found) < _ENTRIES_MAX:
        pieces = read([start + stride * (len(found) + i) for i in range(step)], [stride] * step)
        for piece in pieces:
            if len(piece) < stride or not _word(piece, kind):
                return found
            found.append(piece)
    return found


def _texts(addresses: set[int], read: Read) -> dict[int, str]:
    """Names by address. They lie close together: read as one."""
    there = sorted(address for address in addresses if address)
    pieces = read(there, [_NAME_SIZE] * len(there))
    return {address: piece.split(b"\0")[0].decode("ascii", "replace")
            for address, piece in zip(there, pieces, strict=True) if piece}


def _word(content: bytes, at: int) -> int:
    return int.from_bytes(content[at:at + 8], "little") if len(content) >= at + 8 else 0
