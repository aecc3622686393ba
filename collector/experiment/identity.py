"""Which file it was that was mapped, so that another one of its name is not taken for it.

A build id tells builds apart wherever the file lies. A file without one is known by its size and the time of its last
change; a copy in the archives, which was looked at when it was made, by its size alone. They stand in map.xml with
every executable segment, as attributes that other readers pass over::

    buildid="9f3c...0a"    or    fsize="16024" mtime="1700000003.000000000"

Experiments of other collectors say nothing: there a file that has changed since it was mapped is only doubtful, and
load objects of several experiments are one if the files are that are found for them.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from collector.clock import NS_PER_S
from collector.elf import LoadObject, open_object
from collector.errors import ElfError
from collector.experiment.damage import TIME_MAX_NS
from collector.experiment.xml import Element, Value

_SHOWN_DIGITS = 12


class Identity(NamedTuple):
    """A file's build id; without one, its size in bytes and the time of its last change (Unix ns). -1: not known."""

    build_id: bytes = b""
    size: int = -1
    mtime_ns: int = -1

    @property
    def is_known(self) -> bool:
        """Whether there is anything to compare."""
        return bool(self.build_id) or self.size >= 0


UNKNOWN = Identity()


def identity_of(file: LoadObject) -> Identity:
    """The identity of an open file; that of memory is unknown."""
    try:
        build_id = file.build_id
    except ElfError:
        build_id = None
    if build_id:
        return Identity(build_id)
    return identity_of_fd(file.fd) if file.fd >= 0 else UNKNOWN


def identity_of_path(path: str) -> Identity:
    """The same of the load object at a path: times are whole seconds, as the archives of other collectors keep them.
    That of anything else is unknown.
    """
    try:
        with open_object(path) as file:
            found = identity_of(file)
    except (ElfError, OSError):
        return UNKNOWN
    return found._replace(mtime_ns=found.mtime_ns // NS_PER_S * NS_PER_S) if found.size >= 0 else found


def identity_of_fd(fd: int) -> Identity:
    """The same of a file that has no build id, or is no load object."""
    status = os.fstat(fd)
    return Identity(b"", status.st_size, status.st_mtime_ns)


def attributes(identity: Identity) -> dict[str, Value]:
    """As it stands in map.xml; nothing for one that is not known."""
    if identity.build_id:
        return {"buildid": identity.build_id.hex()}
    if identity.size < 0:
        return {}
    seconds, rest_ns = divmod(max(identity.mtime_ns, 0), NS_PER_S)
    return {"fsize": identity.size, "mtime": f"{seconds}.{rest_ns:09d}"}


def of_element(node: Element) -> Identity:
    """The identity that a segment's event tells; unknown where it tells none that can be."""
    try:
        build_id = bytes.fromhex(node.text_of("buildid"))
    except ValueError:
        build_id = b""
    if build_id:
        return Identity(build_id)
    size, (seconds, _, rest) = node.number("fsize", -1, 0), node.text_of("mtime").partition(".")
    if size < 0 or not (seconds + rest).isascii() or not seconds.isdigit() or len(rest) != 9 or not rest.isdigit():
        return UNKNOWN
    return Identity(b"", size, min(int(seconds[:_SHOWN_DIGITS]) * NS_PER_S + int(rest), TIME_MAX_NS))


def difference(recorded: Identity, found: Identity, is_copy: bool = False) -> str:
    """What shows that ``found`` is not the file that was recorded; empty if nothing does."""
    if not recorded.is_known:
        return ""
    if recorded.build_id:
        if recorded.build_id == found.build_id:
            return ""
        return f"build id {_shown(found)}, recorded {_shown(recorded)}"
    if found.build_id:
        return f"build id {_shown(found)}, recorded none"
    if recorded.size != found.size:
        return f"{found.size} bytes, recorded {recorded.size}"
    if not is_copy and recorded.mtime_ns != found.mtime_ns:
        return "changed at another time than recorded"
    return ""


def _shown(identity: Identity) -> str:
    text = identity.build_id.hex()
    return (text[:_SHOWN_DIGITS] + "..." * (len(text) > _SHOWN_DIGITS)) if text else "none"
