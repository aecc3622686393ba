"""Names of experiments: founders, descendants, groups. Standard library only: runs before the target starts.

A founder is ``STEM.N.er``; a wanted name of that form that exists gets the next free number. Descendants lie
directly in the founder, named by lineage: ``_f3`` is the third fork, ``_f3_x1`` the program that it turned
into::

    test.1.er/            founder
        _f3.er/           its third fork            letters: f fork and vfork, x exec, C clone,
        _f3_x1.er/        which then called exec             c other (posix_spawn, system, popen)
        M_r2.er/          rank 2 of an MPI job

A lineage too long for a file's name (some 80 generations) is cut: its first generations, how many it has, a code of its
parent's lineage, its own step. Readers take whatever begins with ``_``; sorted, it comes behind those that fit, by
generation. The whole lineage stands in its log as a comment::

        _x1_x1_ ... _x1_z120_kfhmbdajegjclonp_x1.er

A group is a text file that lists experiments.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from collector.errors import ExperimentError
from collector.errors import shown as shown  # whoever has a name shows it

SUFFIX = ".er"
ARCHIVES = "archives"
GROUP_SUFFIX = ".erg"
GROUP_HEADER = "#analyzer experiment group\n"
JOB_FILE = "mpi.job"
_JOB_MAX = 4096  # bytes of what stands in it
LOG_FILE = "log.xml"
AGGREGATIONS_FILE = "aggregations"
DEFAULT_STEM = "test"
LETTERS = "fxcC"
_OPEN_GROUP = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_NUMBERED = r"(?P<stem>.+)\.(?P<number>[0-9]+)\.er\Z"  # compiled when needed: the target waits for this module
# What a directory may hold to be taken for an experiment that was begun and never got its log.
_EARLY_FILES = {"archives", "overview", "notes", "data.frameinfo", "map.xml", "log.xml.new"}
_ATTEMPTS = 1000
_IS_TAKEN = errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR  # by a directory, or something else
_NAME_MAX = 255 - len(SUFFIX)  # of Linux' file systems
_HEAD_MAX = 200  # leaves room for two numbers of ten digits
_LINEAGE_MAX = 4096
# Copies in archives are named by their base name and a CRC-64 of their directory.
_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
_CRC_POLYNOMIAL = 0x807
_CRC_MASK = (1 << 64) - 1
_BASE_MAX = 243
_BASE_CUT = 231


def choose(output: str | None = None, overwrite: bool = False, directory: str | None = None,
           group: str | None = None) -> Path:
    """The path that ``create_directory`` would make now; nothing is made or removed. Raises ExperimentError.
    """
    wanted = _wanted(output, directory, group)
    _check_parent(wanted.parent)
    if group is not None:
        _check_group(_group_path(group, directory))
        _group_member(wanted)
    if overwrite and output is not None:
        if os.path.lexists(wanted):
            _check_removable(wanted)
        return wanted
    if not os.path.lexists(wanted):
        return wanted
    if _numbered(wanted.name) is None:
        raise ExperimentError(f"{shown(wanted)} exists; choose another name with -o, or -O to overwrite it")
    return _free(wanted)


def create_directory(output: str | None = None, overwrite: bool = False, directory: str | None = None,
                     group: str | None = None) -> NewDirectory:
    """Make the founder's directory, for the user alone, at once; an older experiment stays aside until
    ``forget_replaced``. Raises ExperimentError; then nothing is left."""
    made = prepare_directory(output, overwrite, directory, group)
    try:
        made.take_place()
    except ExperimentError:
        made.remove()
        raise
    return made


def prepare_directory(output: str | None = None, overwrite: bool = False, directory: str | None = None,
                      group: str | None = None) -> NewDirectory:
    """The same; an older experiment stays until ``take_place``.

    ``output`` is what -o or (with ``overwrite``) -O named, ``directory`` -d, ``group`` -g, which is only looked at:
    ``add_to_group`` enters the experiment once it is worth listing.
    """
    for _ in range(_ATTEMPTS):
        path = choose(output, overwrite, directory, group)
        try:
            if overwrite and output is not None and os.path.lexists(path):
                return NewDirectory(path, _make_draft(path))
            _make_at_once(path)
        except OSError as error:
            if error.errno in _IS_TAKEN:
                continue  # somebody else took the number between the look and the making
            raise _refusal(path, error) from error
        return NewDirectory(path)
    raise ExperimentError(f"cannot create {shown(path)}: other programs keep taking its name")


class NewDirectory:
    """A directory that was made for an experiment.

    Where it replaces an older experiment it lies beside that one until it is known that there is something to record,
    so that whatever fails, or kills us, before then leaves that one as it was.
    """

    def __init__(self, path: Path, draft: Path | None = None) -> None:
        """``path``: where it lies in the end; ``draft``: where it lies until then, if not there."""
        self.path = path
        self._draft = draft
        self._replaced: Path | None = None

    @property
    def replaces(self) -> bool:
        """Whether an older one lies aside."""
        return self._replaced is not None

    def take_place(self) -> None:
        """It lies at ``path``, and an older one aside. Raises ExperimentError."""
        if self._draft is None:
            return
        aside = _name_beside(self.path, SUFFIX)
        try:
            if os.path.lexists(self.path):
                _check_removable(self.path)
                self._put(aside)
            os.rename(self._draft, self.path)
        except OSError as error:
            raise _refusal(self.path, error) from error
        self._draft = None

    def _put(self, aside: Path) -> None:
        """The older one lies aside; one that cannot (of a layer below, in a container) is removed."""
        self._replaced = aside
        try:
            os.rename(self.path, aside)
        except OSError as error:
            self._replaced = None
            if error.errno not in (errno.EXDEV, errno.EBUSY):
                raise
            _remove(self.path)

    def forget_replaced(self) -> None:
        """Removes the older one. Raises ExperimentError."""
        if self._replaced is not None:
            _remove(self._replaced)
            self._replaced = None

    def remove(self) -> None:
        """Removes it, for it came to nothing; the older one lies where it lay."""
        remove_directory(self._draft or self.path)
        if self._replaced is not None:
            with suppress(OSError):
                os.rename(self._replaced, self.path)


def _make_at_once(path: Path) -> None:
    """A directory with its early log, or nothing: who is killed in between leaves none that does not open."""
    draft = _make_draft(path)
    try:
        os.rename(draft, path)  # over nothing, or a directory in which there is nothing
    except OSError:
        remove_directory(draft)
        raise
    except BaseException:  # an interrupt, perhaps behind the rename
        remove_directory(draft if os.path.lexists(draft) else path)
        raise


def _make_draft(path: Path) -> Path:
    """A directory with its early log, beside ``path``."""
    draft = _name_beside(path)
    os.mkdir(draft, 0o700)
    try:
        _write_early_log(draft)
    except BaseException:
        remove_directory(draft)
        raise
    return draft


def _name_beside(path: Path, suffix: str = "") -> Path:
    """One that nobody has."""
    return path.with_name(f".collect-{os.urandom(6).hex()}{suffix}")


def begin_again(path: Path) -> None:
    """Make a founder's directory as it was when ``create_directory`` had made it. Raises ExperimentError.

    Somebody else has begun to write there and was killed; meanwhile it opens.
    """
    try:
        with suppress(FileNotFoundError):  # of who was killed while it wrote its log
            os.unlink(path / (LOG_FILE + ".new"))
        _write_early_log(path, LOG_FILE + ".new")
        os.replace(path / (LOG_FILE + ".new"), path / LOG_FILE)
        for name in os.listdir(path):
            if os.path.isdir(path / name) and not os.path.islink(path / name):
                _remove_tree(path / name)
            elif name != LOG_FILE:
                os.unlink(path / name)
    except OSError as error:
        raise _refusal(path, error) from error


def join_founder(job: str, output: str | None = None, overwrite: bool = False, directory: str | None = None) -> tuple[
        NewDirectory, bool]:
    """The founder that all ranks of ``job`` on this machine share, and whether we made it. Raises ExperimentError.

    The first rank chooses and makes it as ``create_directory`` does; the others find it by the job's name in it.
    """
    wanted = _wanted(output, directory, None)
    _check_parent(wanted.parent)
    lock = os.open(wanted.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in _same_stem(wanted):
            if _job_of(path) == job.encode("utf-8"):
                return NewDirectory(path), False
        founder = create_directory(output, overwrite, directory)
        (founder.path / JOB_FILE).write_text(job, encoding="utf-8")
        return founder, True
    finally:
        os.close(lock)


def _job_of(path: Path) -> bytes:
    """What the founder at a path says of its job; empty for others' folders, in which anything may stand."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError), open(os.open(path / JOB_FILE, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() == os.stat(path).st_uid:
            return file.read(_JOB_MAX)
    return b""


def create_rank_directory(founder: Path, rank: int) -> Path:
    """Make the directory of an MPI rank's experiment. Raises ExperimentError."""
    path = founder / mpi_name(rank)
    try:
        os.mkdir(path, 0o700)
        _write_early_log(path)
    except OSError as error:
        raise _refusal(path, error) from error
    return path


def _write_early_log(path: Path, name: str = LOG_FILE) -> None:
    """A log that readers open, until the recorder replaces it by its own: whoever kills us leaves an experiment."""
    now_ns = time.monotonic_ns()
    seconds, rest_ns = divmod(now_ns, 1_000_000_000)
    text = (f'<experiment version="12.4">\n<collector>collect</collector>\n</experiment>\n'
            f'<event kind="run" tstamp="{seconds}.{rest_ns:09d}" time="{int(time.time())}" tm_zone="0"/>\n')
    fd = os.open(path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _same_stem(wanted: Path) -> list[Path]:
    """Experiments that may have got their name for ``wanted``, the newest first."""
    match = _numbered(wanted.name)
    found = [wanted.with_name(name) for name in os.listdir(wanted.parent)
             if name == wanted.name or (match and (other := _numbered(name)) and other["stem"] == match["stem"])]
    return sorted(found, key=lambda path: sort_key(path.name), reverse=True)


def remove_directory(path: Path) -> None:
    """Remove an experiment that came to nothing; silently leaves what is not one."""
    with suppress(ExperimentError, OSError):
        _remove(path)


def add_to_group(group: str, path: Path, directory: str | None = None) -> None:
    """Enter the experiment in ``group``; a relative one lies in ``directory`` (-d). Raises ExperimentError."""
    group_path = _group_path(group, directory)
    try:
        fd = os.open(group_path, _OPEN_GROUP | os.O_CREAT, 0o600)
        try:
            _append_member(fd, _group_member(path))
        finally:
            os.close(fd)
    except OSError as error:
        raise ExperimentError(f"cannot write {shown(group_path)}: {error.strerror}") from error


class Lineage(NamedTuple):
    """How a descendant came to be, from the founder on; the founder's own is empty.

    ``text`` has all generations. That of very many (beyond 4 KiB) begins with the ``name`` of an ancestor, whose own
    log has those before: what a generation takes does not grow with their number. ``name`` is what the experiment is
    called, without its ending.
    """

    text: str = ""
    name: str = ""
    depth: int = 0
    head: str = ""  # what the names of all have in common that come of the last one whose name was whole

    @classmethod
    def named(cls, name: str) -> Lineage:
        """Of a process that was not born to us but found."""
        return cls(name, name, 1)

    @property
    def is_cut(self) -> bool:
        """Whether the name does not have all generations."""
        return self.name != self.text

    def child(self, letter: str, number: int) -> Lineage:
        """``_f3``, ``x``, 1 -> ``_f3_x1``."""
        if letter not in LETTERS:
            raise ValueError(f"no such kind of descendant: {letter!r}")
        step, depth = f"_{letter}{number}", self.depth + 1
        text = (self.text if len(self.text) <= _LINEAGE_MAX else self.name) + step
        if not self.is_cut and len(text) <= _NAME_MAX:
            return Lineage(text, text, depth)
        head = self.head or text[:_HEAD_MAX + 1].rpartition("_")[0]
        return Lineage(text, f"{head}_z{depth}_{_letters(self.text)}{step}", depth, head)


def _letters(text: str) -> str:
    """Sixteen letters for a text. No digits: readers would compare them as numbers."""
    from hashlib import blake2b

    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return "".join(chr(ord("a") + (byte >> shift & 15)) for byte in digest for shift in (4, 0))


def descendant_path(founder: Path, lineage: Lineage) -> Path:
    """Where the descendant with ``lineage`` is recorded."""
    return founder / (lineage.name + SUFFIX)


def archives_path(directory: Path) -> Path:
    """Where the load objects of a founder, or of a rank of an MPI job, are copied to: the outermost experiment."""
    is_rank = directory.name.startswith("M_r") and directory.parent.name.endswith(SUFFIX)
    return (directory.parent if is_rank else directory) / ARCHIVES


def mpi_name(rank: int) -> str:
    """The name of rank ``rank`` of an MPI job, inside its founder."""
    return f"M_r{rank}{SUFFIX}"


def lineage_of(name: str) -> str:
    """``_f3_x1.er`` -> ``_f3_x1``, the name of a lineage; empty for a founder."""
    return name.removesuffix(SUFFIX) if name.startswith("_") else ""


def archive_name(path: bytes) -> bytes:
    """The name of a copy of ``path`` in a founder's archives."""
    directory, slash, base = path.rpartition(b"/")
    code = _code(directory + slash if slash else b"./")
    if len(base) > _BASE_MAX:
        return base[:_BASE_CUT] + b"_" + code + b"_" + _code(base)
    return base + b"_" + code


def _code(data: bytes) -> bytes:
    """Eleven characters for the CRC-64 of ``data``, least significant first."""
    crc = 0
    for byte in data:
        crc = (crc << 8 & _CRC_MASK) ^ _crc_table()[crc >> 56 ^ byte]
    return bytes(_ALPHABET[crc >> 6 * i & 63] for i in range(11))


@cache
def _crc_table() -> list[int]:
    """For each byte the remainder of x**64 times it, most significant bit first."""
    table = []
    for byte in range(256):
        crc = byte << 56
        for _ in range(8):
            crc = (crc << 1 & _CRC_MASK) ^ (_CRC_POLYNOMIAL if crc >> 63 else 0)
        table.append(crc)
    return table


def sort_key(name: str) -> tuple[tuple[str, int], ...]:
    """Orders names with their numbers compared as numbers: ``_f2`` before ``_f10``."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((text, int(number or 0)) for text, number in zip(parts[::2], [*parts[1::2], "0"], strict=True))


def _numbered(name: str) -> re.Match[str] | None:
    return re.match(_NUMBERED, name, re.DOTALL)


def _wanted(output: str | None, directory: str | None, group: str | None) -> Path:
    if output is None:
        stem = DEFAULT_STEM if group is None else Path(group).name.removesuffix(GROUP_SUFFIX)
        output = f"{stem}.1{SUFFIX}"
    name = output.rstrip("/")
    if not name.endswith(SUFFIX) or os.path.basename(name) == SUFFIX:
        raise ExperimentError(f"{shown(output)}: an experiment's name must end in {SUFFIX}, such as test.1.er")
    if "\0" in name:
        raise ExperimentError(f"{shown(output)}: not a file name")
    return Path(directory or "", name)


def _check_parent(parent: Path) -> None:
    if not parent.is_dir():
        problem = "is not a directory" if os.path.lexists(parent) else "does not exist"
        raise ExperimentError(f"{shown(parent)} {problem}; create it, or name another directory with -d")


def _free(wanted: Path) -> Path:
    """The name with the largest number of its stem plus one."""
    matches = [_numbered(name) for name in (wanted.name, *os.listdir(wanted.parent))]
    stem = matches[0]["stem"] if matches[0] else ""
    numbers = [int(match["number"]) for match in matches if match and match["stem"] == stem]
    return wanted.with_name(f"{stem}.{max(numbers) + 1}{SUFFIX}")


def _check_removable(path: Path) -> None:
    """Raise unless ``path`` is a directory of this user that looks like an experiment."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise ExperimentError(f"{shown(path)} is a symbolic link; remove it yourself, or choose another name")
    looks = stat.S_ISDIR(status.st_mode)
    if looks:
        try:
            names = os.listdir(path)
        except OSError as error:
            raise _refusal(path, error) from error
        looks = "log.xml" in names or _EARLY_FILES.issuperset(names)
    if not looks:
        raise ExperimentError(f"{shown(path)} is not an experiment, so it is not removed; choose another name")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ExperimentError(f"cannot remove {shown(path)}: {os.strerror(errno.EACCES)}")


def _remove(path: Path) -> None:
    _check_removable(path)
    try:
        _remove_tree(path)
    except OSError as error:
        raise ExperimentError(f"cannot remove {shown(path)}: {error.strerror}") from error


def _remove_tree(path: Path) -> None:
    import shutil

    shutil.rmtree(path)


def _refusal(path: Path, error: OSError) -> ExperimentError:
    why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
    return ExperimentError(f"cannot create {shown(path)}: {why}; choose another name with -o, "
                           "or another directory with -d")


def _group_path(group: str, directory: str | None) -> Path:
    if not group.endswith(GROUP_SUFFIX) or os.path.basename(group) == GROUP_SUFFIX:
        raise ExperimentError(f"{shown(group)}: the name of a group must end in {GROUP_SUFFIX}")
    return Path(directory or "", group)


def _check_group(path: Path) -> None:
    """Raise unless it can be written, as far as that is known before it is made."""
    _check_parent(path.parent)
    try:
        os.close(os.open(path, _OPEN_GROUP))
    except FileNotFoundError:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ExperimentError(f"cannot write {shown(path)}: this user may make no file there") from None
    except OSError as error:
        raise ExperimentError(f"cannot write {shown(path)}: {error.strerror}") from error


def _group_member(path: Path) -> str:
    """The experiment as the group lists it: absolute, because readers resolve it against their own directory.
    """
    for candidate in (os.path.abspath(path), os.fspath(path)):
        if not re.search(r"\s", candidate) and not candidate.startswith("#"):
            return candidate
    raise ExperimentError(f"{shown(path)}: a group cannot list an experiment whose path holds blanks")


def _append_member(fd: int, member: str) -> None:
    """Append a line under a lock, whole or not at all; whoever finds the file empty writes its header."""
    fcntl.lockf(fd, fcntl.LOCK_EX)
    size = os.fstat(fd).st_size
    before = "" if size and os.pread(fd, 1, size - 1) == b"\n" else "\n"
    content = os.fsencode((before if size else GROUP_HEADER) + member + "\n")
    if os.write(fd, content) != len(content):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
