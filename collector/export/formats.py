"""The formats in which recorded samples can be had: what each is called, what its files are called, who writes it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import F_GETFL, fcntl
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, BinaryIO

from collector.errors import CollectorError, UsageError
from collector.leftovers import removed_if_ended

if TYPE_CHECKING:
    from collector.export.choices import Choices
    from collector.report.samples import Samples

    Write = Callable[[Samples, BinaryIO, Choices], None]

_SUFFIX_OF_EXPERIMENTS = ".er"


class ExportError(CollectorError):
    """A file cannot be written, or a library that it takes is not installed."""


@dataclass(frozen=True)
class Format:
    """``help``: what opens it. ``module`` of this room writes it; ``extra``: what is to be installed for it."""

    name: str
    suffix: str
    help: str
    module: str
    is_text: bool = True
    extra: str = ""

    def writer(self) -> Write:
        """What writes it. Raises ExportError where a library is missing."""
        try:
            found: Write = import_module(f"{__package__}.{self.module}").write
        except ModuleNotFoundError as err:
            if not self.extra:
                raise
            library = (err.name or "").partition(".")[0]
            raise ExportError(f"{self.name} needs {library}: pip install {library}") from err
        return found

    def beside(self, experiment: Path) -> Path:
        """What the export of an experiment is called if nobody says otherwise: it lies beside it."""
        return experiment.with_name(experiment.name.removesuffix(_SUFFIX_OF_EXPERIMENTS) + self.suffix)


FORMATS = {one.name: one for one in (
    Format("pprof", ".pprof.pb.gz", "go tool pprof, Grafana, speedscope", "pprof", is_text=False),
    Format("speedscope", ".speedscope.json", "speedscope", "speedscope"),
    Format("firefox", ".firefox.json", "profiler.firefox.com, profiler-cli", "firefox"),
    Format("collapsed", ".collapsed.txt", "flamegraph.pl, inferno, speedscope", "collapsed"),
    Format("perfetto", ".perfetto-trace", "ui.perfetto.dev, trace_processor", "perfetto", is_text=False),
    Format("callgrind", ".callgrind.out", "KCachegrind, callgrind_annotate", "callgrind"),
    Format("json", ".profile.json", "programs of your own", "profile_json"),
    Format("parquet", ".parquet", "DuckDB, polars, pandas", "parquet", is_text=False, extra="parquet"),
    Format("otlp", ".otlp.pb", "OpenTelemetry collectors with profiles (experimental)", "otlp", is_text=False),
)}


def format_called(name: str) -> Format:
    """Raises UsageError."""
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}: give one of {', '.join(FORMATS)}")
    return FORMATS[name]


@contextmanager
def destination(path: str | None) -> Iterator[BinaryIO]:
    """Where an export goes: a file, which is there as a whole or not at all; None: standard output. Into what we were
    given open goes what comes next there. OSError."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.isdir(path):
        raise ExportError(f"{path}: Is a directory; give the name of a file")
    if (fd := given(path)) is not None:
        with open(os.dup(fd), "wb") as file:
            yield file
        return
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):  # a pipe, a device
        with open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    try:
        fd, name = mkstemp(prefix=".export-", dir=os.path.dirname(target))
    except OSError as err:
        raise ExportError(f"{path}: {err.strerror}") from err
    try:
        with removed_if_ended(partial(os.unlink, name)):
            with open(fd, "wb") as file:
                yield file
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, target)
    except BaseException as err:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(err, OSError):
            raise ExportError(f"{path}: {err.strerror or err}") from err
        raise


def given(path: str) -> int | None:
    """The descriptor that our caller opened for writing into what ``path`` leads to, such as /dev/stdout; None: none.

    Others write there as well, before us and after us: another file in its place would not have that, and one that is
    opened anew would be written from its beginning.
    """
    with suppress(OSError):
        wanted = os.stat(path)
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # that of the listing is closed
                if fd and os.get_inheritable(fd) and os.path.samestat(os.fstat(fd), wanted) \
                        and fcntl(fd, F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                    return fd
    return None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
