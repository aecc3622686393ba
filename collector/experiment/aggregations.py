"""The file ``aggregations``: expressions, and by key the states of what was folded so far.

It is replaced as a whole while recording goes on, so a reader sees one state or the next. What keys and states mean is
not known here; that they are all there is.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.errors import FormatError
from collector.experiment.records import (
    AGGREGATION,
    AGGREGATION_WORD,
    AGGREGATIONS,
    AGGREGATIONS_MAGIC,
    AGGREGATIONS_VERSION,
    KEY_NAME,
    KEY_STACK,
)

U8 = npt.NDArray[np.uint64]
I8 = npt.NDArray[np.int64]
_ALIGNMENT = 8
_DESCENDANT = "_"
_STACK_NAME = re.compile(rb"((?:_[^/]*)?):([0-9]{1,18})")


@dataclass(frozen=True)
class Stored:
    """An aggregation. Of its n keys with their states the first ``n_recorded`` were seen span by span, the others are
    synthetic.

    ``kinds`` (k,) has for each element of a key KEY_NUMBER, KEY_NAME (an index into ``names``) or KEY_STACK (a uid of
    the experiment's stacks, 0 for none). ``n_dropped`` values are of keys for which there was no room.
    """

    expression: str
    kinds: tuple[int, ...]
    keys: I8  # (n, k)
    states: U8  # (n, words)
    n_recorded: int
    names: tuple[bytes, ...] = ()
    n_dropped: int = 0


def pack(stored: Sequence[Stored]) -> bytes:
    """The file's content."""
    body = b"".join(_packed(one) for one in stored)
    head = np.zeros(1, AGGREGATIONS.dtype)
    head["magic"], head["version"], head["length"] = AGGREGATIONS_MAGIC, AGGREGATIONS_VERSION, len(body)
    head["checksum"] = zlib.crc32(body)
    return head.tobytes() + body


def unpack(content: bytes) -> list[Stored]:
    """What ``pack`` was given. Raises FormatError for anything else, whatever it is."""
    if len(content) < AGGREGATIONS.size:
        raise FormatError(f"cut short: {len(content)} bytes are no header")
    head = _head(AGGREGATIONS.dtype, content, 0)
    body = content[AGGREGATIONS.size:]
    if head["magic"] != AGGREGATIONS_MAGIC:
        raise FormatError("not a file of aggregations: another magic number")
    if head["version"] != AGGREGATIONS_VERSION:
        raise FormatError(f"version {head['version']} cannot be read, only {AGGREGATIONS_VERSION}: "
                          "use the tools that recorded it")
    if head["length"] != len(body):
        raise FormatError(f"{head['length']} bytes were written, {len(body)} are there")
    if head["checksum"] != zlib.crc32(body):
        raise FormatError("damaged: another checksum")
    stored, at = [], 0
    while at < len(body):
        one, at = _unpacked(body, at)
        stored.append(one)
    return stored


def stack_name(directory: str, uid: int) -> bytes:
    """What a stack of a family's experiment in ``directory`` is called in a key of any of them."""
    return b"%s:%d" % (os.fsencode(directory) if directory.startswith(_DESCENDANT) else b"", uid)


def stack_of_name(name: bytes, path: Path) -> tuple[Path, int] | None:
    """The experiment, and the uid there, of a stack that is called so in the experiment at ``path``; None for marks."""
    found = _STACK_NAME.fullmatch(name)
    if found is None:
        return None
    founder = path.parent if path.name.startswith(_DESCENDANT) else path
    return founder / os.fsdecode(found[1]), int(found[2])


def _packed(one: Stored) -> bytes:
    expression = one.expression.encode("utf-8", "surrogateescape")
    names = b"".join(b"%s\0" % name for name in one.names)
    parts = [np.array(one.kinds, AGGREGATION_WORD).tobytes(), one.keys.astype(AGGREGATION_WORD).tobytes(),
             one.states.astype(AGGREGATION_WORD).tobytes(), expression, names]
    head = np.zeros(1, AGGREGATION.dtype)
    head["expression"], head["names"] = len(expression), len(names)
    head["n_keys"], head["n_words"] = len(one.kinds), one.states.shape[1]
    head["n_recorded"], head["n_synthetic"] = one.n_recorded, len(one.keys) - one.n_recorded
    head["n_dropped"] = one.n_dropped
    size = AGGREGATION.size + sum(map(len, parts))
    padding = bytes(-size % _ALIGNMENT)
    head["size"] = size + len(padding)
    return b"".join([head.tobytes(), *parts, padding])


def _unpacked(body: bytes, at: int) -> tuple[Stored, int]:
    """The aggregation at an offset, and the offset behind it. FormatError."""
    where = f"the aggregation at byte {AGGREGATIONS.size + at}"
    if at + AGGREGATION.size > len(body):
        raise FormatError(f"{where} is cut short")
    head = _head(AGGREGATION.dtype, body, at)
    n_keys, n_words, n = head["n_keys"], head["n_words"], head["n_recorded"] + head["n_synthetic"]
    words = n_keys + n * n_keys + n * n_words
    size = AGGREGATION.size + words * _ALIGNMENT + head["expression"] + head["names"]
    if not n_words or head["size"] != size + -size % _ALIGNMENT or at + head["size"] > len(body):
        raise FormatError(f"{where} contradicts itself: its parts have {size} bytes")
    begin = at + AGGREGATION.size
    numbers = np.frombuffer(body, AGGREGATION_WORD, words, begin).astype(np.uint64)
    kinds, keys, states = np.split(numbers, [n_keys, n_keys + n * n_keys])
    text = begin + words * _ALIGNMENT
    expression = body[text:text + head["expression"]].decode("utf-8", "surrogateescape")
    raw_names = body[text + head["expression"]:text + head["expression"] + head["names"]]
    stored = Stored(expression, tuple(kinds.tolist()), keys.view(np.int64).reshape(n, n_keys),
                    states.reshape(n, n_words), head["n_recorded"], tuple(raw_names.split(b"\0")[:-1]),
                    head["n_dropped"])
    _check(stored, where)
    return stored, at + head["size"]


def _check(stored: Stored, where: str) -> None:
    for column, kind in zip(stored.keys.T, stored.kinds, strict=True):
        if kind > KEY_STACK:
            raise FormatError(f"{where} has keys of an unknown kind, {kind}")
        limit = len(stored.names) if kind == KEY_NAME else None
        if len(column) and limit is not None and not 0 <= column.min() <= column.max() < limit:
            raise FormatError(f"{where} has names that are not there")


def _head(layout: np.dtype[Any], content: bytes, at: int) -> dict[str, int]:
    """A record's fields as plain numbers, which do not overflow."""
    assert layout.names is not None
    row = np.frombuffer(content, layout, 1, at)[0]
    return {name: int(row[name]) for name in layout.names}
