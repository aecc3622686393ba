"""A tar file of copies as they stand in an experiment's archives, so that an experiment can be read elsewhere.

Members are ``archives/<name of the copy>``: unpacked in the experiment's folder they are its archives. Where the
experiment is not to be touched, they are unpacked elsewhere and looked into after its own archives.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from contextlib import suppress

from collector.errors import ExperimentError
from collector.experiment.names import ARCHIVES, shown

_WAYS = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}


def pack(path: str, files: Mapping[str, str]) -> int:
    """Write the tar file: ``files`` by the names of their copies. How many bytes it has. Raises ExperimentError."""
    unfinished = f"{path}.{os.getpid()}.new"
    way = _WAYS.get(os.path.splitext(path)[1], "w")
    if os.path.exists(path) and not os.path.isfile(path):  # a device would be replaced
        raise ExperimentError(f"{shown(path)}: cannot be written: it is no regular file")
    try:
        with tarfile.open(unfinished, way, format=tarfile.PAX_FORMAT) as bundle:  # type: ignore[call-overload]
            for name, file in sorted(files.items()):
                bundle.add(file, f"{ARCHIVES}/{name}", recursive=False)
        os.rename(unfinished, path)
        return os.stat(path).st_size
    except (OSError, tarfile.TarError) as error:
        with suppress(OSError):
            os.unlink(unfinished)
        raise ExperimentError(f"{shown(path)}: cannot be written: {_reason(error)}") from error


def unpack(path: str, folder: str) -> int:
    """Copies from the tar file into ``folder``; how many. Only plain files with plain names. Raises ExperimentError."""
    count = 0
    try:
        with tarfile.open(path) as bundle:
            for member in bundle:
                above, _, name = member.name.partition("/")
                content = bundle.extractfile(member) if member.isreg() else None
                if content is None or above != ARCHIVES or not name or "/" in name or name in (".", ".."):
                    continue
                with content, open(os.path.join(folder, name), "xb") as copy:
                    shutil.copyfileobj(content, copy, 1 << 20)
                count += 1
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        raise ExperimentError(f"{shown(path)}: cannot be read: {_reason(error)}") from error
    if not count:
        raise ExperimentError(f"{shown(path)}: there are no symbols in it; er_print -symbols makes such files")
    return count


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
