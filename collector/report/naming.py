"""How functions are called in tables: the words of ``name``.

``long``, ``short`` (without parameters) or ``mangled``. ``:soname`` puts the load object behind it; with ``:offset``
code without a symbol is ``libc.so.6+0x96063``, object and offset in its file; ``:unique`` adds what tells functions of
one name apart: the load object, and the offset in it where that is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collector.errors import UsageError
from collector.report.compat import short_name, without_symbol
from collector.report.functions import Function

_FORMS = ("long", "short", "mangled")
_MORE = ("soname", "nosoname", "offset", "nooffset", "unique", "nounique")


class Naming(NamedTuple):
    """What is wanted of names."""

    form: str = "long"
    with_object: bool = False
    with_offset: bool = False
    is_unique: bool = False

    @classmethod
    def of(cls, text: str) -> Naming:
        """``FORM[:WORD]...``. Raises UsageError."""
        form, *more = text.lower().split(":")
        if form not in _FORMS or not set(more) <= set(_MORE):
            raise UsageError(f"-name {text}: give long, short or mangled, and behind it :soname to see load objects, "
                             ":offset for code without a symbol, :unique to tell functions of one name apart")
        return cls(form, "soname" in more, "offset" in more, "unique" in more)

    def names(self, functions: Sequence[Function]) -> list[bytes]:
        """What each is called."""
        found = [self._name(function) for function in functions]
        if not self.is_unique:
            return found
        found = _told_apart(found, [b" [%s]" % function.object_name for function in functions])
        return _told_apart(found, [b" @0x%x" % function.offset for function in functions])

    def _name(self, function: Function) -> bytes:
        name = {"long": function.name, "short": short_name(function.name),
                "mangled": function.linkage or function.name}[self.form]
        if self.with_offset and (hole := without_symbol(function.name)):
            name = b"%s+0x%s" % (hole[2], hole[1])
        return b"%s [%s]" % (name, function.object_name) if self.with_object else name


def _told_apart(names: Sequence[bytes], marks: Sequence[bytes]) -> list[bytes]:
    """With marks behind those names that occur more than once, if the marks of one name differ."""
    kinds: dict[bytes, set[bytes]] = {}
    for name, mark in zip(names, marks, strict=True):
        kinds.setdefault(name, set()).add(mark)
    return [name + mark if len(kinds[name]) > 1 else name for name, mark in zip(names, marks, strict=True)]
