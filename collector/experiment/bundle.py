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
from functools import partial
from typing import NamedTuple

from collector.errors import ExperimentError
from collector.experiment.names import ARCHIVES, shown
from collector.leftovers import removed_if_ended

_WAYS = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}


class Packed(NamedTuple):
    """How many files and bytes there are in a tar file, and what was left out since it cannot be read, in lines."""

    n_files: int
    size: int
    left_out: list[str]


def pack(path: str, files: Mapping[str, str]) -> Packed:
    """Write the tar file: ``files`` by the names of their copies. Raises ExperimentError."""
    unfinished = f"{path}.{os.getpid()}.new"
    way = _WAYS.get(os.path.splitext(path)[1], "w")
    if os.path.exists(path) and not os.path.isfile(path):  # a device would be replaced
        raise ExperimentError(f"{shown(path)}: cannot be written: it is no regular file")
    try:
        with removed_if_ended(partial(os.unlink, unfinished)):
            left_out = _write(unfinished, way, files)
            os.rename(unfinished, path)
        return Packed(len(files) - len(left_out), os.stat(path).st_size, left_out)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(unfinished)
        if isinstance(error, (OSError, tarfile.TarError)):
            raise ExperimentError(f"{shown(path)}: cannot be written: {_reason(error)}") from error
        raise


def _write(path: str, way: str, files: Mapping[str, str]) -> list[str]:
    """What was left out, in lines."""
    left_out = []
    # With ``dereference`` each file is there itself, also where it is a link, or one file has several names.
    with tarfile.open(path, way, format=tarfile.PAX_FORMAT,  # type: ignore[call-overload]
                      dereference=True) as bundle:
        for name, file in sorted(files.items()):
            try:
                content = open(file, "rb")  # noqa: SIM115 - closed below
            except OSError as error:
                left_out.append(f"{shown(file)}: left out: {_reason(error)}")
                continue
            with content:
                bundle.addfile(bundle.gettarinfo(arcname=f"{ARCHIVES}/{name}", fileobj=content), content)
    return left_out


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
