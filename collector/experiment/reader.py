"""The reading door: an experiment as it is on disk, finished, running or crashed, whoever recorded it.

What a packet holds comes from the descriptions in the experiment's own log. Everything is read when first asked for and
kept; of a running experiment that is how it was then. Damage never stops the reading of what is whole: ``problems``
tells.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.clock import NS_PER_S
from collector.elf import open_object
from collector.errors import ElfError, ExperimentError, FormatError
from collector.experiment import dyntext, log, map, names, overview
from collector.experiment.damage import Bytes, Damage, read_file, read_pieces, read_settled
from collector.experiment.dyntext import Text
from collector.experiment.identity import UNKNOWN, Identity, difference, identity_of, identity_of_path
from collector.experiment.log import Event, Log, Message
from collector.experiment.map import FOREVER_NS, MODES_TEXT, DynamicFunction, Segment
from collector.experiment.overview import Sample
from collector.experiment.packets import Traced, read_traced, sound_clock_packets
from collector.experiment.packets import read as read_packets
from collector.experiment.packets import read_pieces as read_packets_in_pieces
from collector.experiment.places import Places
from collector.experiment.records import BLOCK_SIZE, CLOCK, COUNTER, HEAP, IO, SYNC
from collector.experiment.stacks import Stacks, read_stacks

if TYPE_CHECKING:
    from collector.experiment.aggregations import Stored

__all__ = ["FOREVER_NS", "DynamicFunction", "Event", "Experiment", "Log", "Message", "Sample", "Segment", "Stacks",
           "open_experiment"]

# Kinds of data besides clock profiling: the file, which has the kind's name, and what its packets hold.
TRACED = {"synctrace": SYNC, "heaptrace": HEAP, "iotrace": IO, "hwcounters": COUNTER}
PROFILE = "profile"
_PIECE_BYTES = 256 * BLOCK_SIZE


class ObjectFile(NamedTuple):
    """The file of a load object: ``path``, None if there is none, or only another one than was recorded.

    ``problem`` says what is wrong, or doubtful; empty if all is well, or there is no file at all. ``identity``: the
    file's own.
    """

    path: Path | None
    problem: str = ""
    identity: Identity = UNKNOWN


class Experiment:
    """An experiment. ``name`` is its directory's; ``lineage`` is empty for a founder, ``_f3_x1`` for a descendant."""

    def __init__(self, path: Path, contents: Log, founder: Experiment | None = None) -> None:
        """Internal; use ``open_experiment``."""
        self.path = path
        self.name = path.name
        self.lineage = names.lineage_of(path.name)
        self.log = contents
        self.founder = founder
        self.problems: list[str] = []
        self._archives = path / names.ARCHIVES
        self._places = Places(experiments=(os.fspath(path),))
        self._packets: dict[str, npt.NDArray[Any]] = {}
        self._n_packets: int | None = None  # of clock profiling, as they were first read
        self._traced: dict[str, Traced] = {}
        self._object_files: dict[tuple[bytes, Identity], ObjectFile] = {} if founder is None else founder._object_files

    def packets(self, kind: str = "profile") -> npt.NDArray[Any]:
        """The packets of a data kind (profile, synctrace, ...) as a structured array, in file order."""
        if kind not in self._packets:
            if kind != PROFILE:
                return self.traced(kind).packets
            damage = Damage()
            described = self.log.described.get(kind)
            if described is None:  # a recorder that was killed before it came to describe them
                return np.zeros(0, CLOCK.dtype)
            packets = read_packets(self._bytes(PROFILE, damage), described, damage)
            self._packets[kind] = sound_clock_packets(packets, self.log.interval_us, damage)[:self._n_packets]
            self._note(PROFILE, damage)
        return self._packets[kind]

    def packets_in_pieces(self, kind: str) -> Iterator[npt.NDArray[Any]]:
        """The same, some at a time. Of clock profiling, which may be much, what was not kept before is not kept now."""
        described = self.log.described.get(kind, {})
        if kind != PROFILE or kind in self._packets or len(described) != 1:
            yield self.packets(kind)
            return
        damage, n_packets = Damage(), 0
        for piece in read_packets_in_pieces(self._pieces(PROFILE, damage), described, damage):
            packets = sound_clock_packets(piece, self.log.interval_us, damage)
            if self._n_packets is not None:
                packets = packets[:max(self._n_packets - n_packets, 0)]
            n_packets += len(packets)
            yield packets
        self._n_packets = n_packets  # a running experiment has more later
        self._note(PROFILE, damage)

    @property
    def kinds(self) -> list[str]:
        """The kinds of data that the log describes, in its order."""
        return [kind for kind in self.log.described if kind == PROFILE or kind in TRACED]

    def traced(self, kind: str) -> Traced:
        """The packets of a kind of TRACED, all fields there, in file order; none where the log describes none."""
        if kind not in self._traced:
            damage = Damage()
            described = self.log.described.get(kind)
            self._traced[kind] = read_traced(self._bytes(kind, damage) if described else np.zeros(0, np.uint8),
                                             described or {}, TRACED[kind], damage)
            self._note(kind, damage)
        return self._traced[kind]

    @cached_property
    def stacks(self) -> Stacks:
        """The call stacks that FRINFO of packets refers to."""
        damage = Damage()
        stacks = read_stacks(self._bytes("data.frameinfo", damage), self.log.wsize, damage)
        self._note("data.frameinfo", damage)
        return stacks

    @cached_property
    def mappings(self) -> list[Segment | DynamicFunction]:
        """What was mapped, in order of time; of one time, in that in which it was recorded."""
        damage = Damage()
        space = map.mappings(self._bytes("map.xml", damage).tobytes(), self.log.start_ns, damage)
        self._note("map.xml", damage)
        return space

    @cached_property
    def segments(self) -> list[Segment]:
        """The files that were mapped, in order of time."""
        return [one for one in self.mappings if isinstance(one, Segment)]

    @cached_property
    def functions(self) -> list[DynamicFunction]:
        """Code without a file, in order of time."""
        return [one for one in self.mappings if isinstance(one, DynamicFunction)]

    @cached_property
    def texts(self) -> dict[tuple[int, int], Text]:
        """By address and time what is known of code without a file."""
        if not os.path.lexists(self.path / dyntext.NAME):
            return {}
        damage = Damage()
        found = dyntext.read(self._bytes(dyntext.NAME, damage).tobytes())
        self._note(dyntext.NAME, damage)
        return {(vaddr, since_ns + self.log.start_ns): text for (vaddr, since_ns), text in found.items()}

    @cached_property
    def samples(self) -> list[Sample]:
        """The overview's samples in order of time."""
        damage = Damage()
        samples = overview.read_samples(self._bytes(overview.NAME, damage), self.log.wsize, self.log.events, damage)
        self._note(overview.NAME, damage)
        return samples

    @cached_property
    def aggregations(self) -> list[Stored]:
        """What was aggregated; nothing of a damaged file."""
        if not os.path.lexists(self.path / names.AGGREGATIONS_FILE):
            return []
        from collector.experiment import aggregations

        n_problems = len(self.problems)
        content = self._bytes(names.AGGREGATIONS_FILE, Damage()).tobytes()
        if len(self.problems) > n_problems:  # it cannot be read at all
            return []
        try:
            return aggregations.unpack(content)
        except FormatError as error:
            self.problems.append(f"{names.shown(self.path / names.AGGREGATIONS_FILE)}: {error}; it was skipped")
            return []

    @cached_property
    def threads(self) -> list[int]:
        """Thread ids; the first is shown as 1, the second as 2 and so on."""
        known = list(self.log.threads)
        for kind in self.kinds:
            for packets in self.packets_in_pieces(kind):
                tids, first = np.unique(packets["THRID"], return_index=True)
                known += tids[first.argsort()].tolist()
        return list(dict.fromkeys(known))

    @cached_property
    def cpus(self) -> list[int]:
        """The CPUs that packets were recorded on, sorted."""
        return sorted({cpu for kind in self.kinds for cpu in np.unique(self.packets(kind)["CPUID"]).tolist()})

    @cached_property
    def end_ns(self) -> int:
        """The latest time of anything recorded (absolute)."""
        ends = [self.log.end_ns, *(sample.end_ns for sample in self.samples[-1:])]
        return max(ends + [int(self.packets(kind)["TSTAMP"].max(initial=0)) for kind in self.kinds])

    @cached_property
    def notes(self) -> list[str]:
        """The user's comments."""
        return self._bytes("notes", Damage()).tobytes().decode("utf-8", "surrogateescape").splitlines()

    @cached_property
    def children(self) -> list[Experiment]:
        """The descendants, and the ranks of an MPI job, that lie in this directory; those that open."""
        found = sorted((name for name in os.listdir(self.path)
                        if name.startswith(("_", "M_r")) and name.endswith(names.SUFFIX)), key=names.sort_key)
        children = []
        for name in found:
            try:
                children.append(_opened(self.path / name, self.founder or self))
            except ExperimentError as error:
                self.problems.append(str(error))
        return children

    @property
    def is_rank(self) -> bool:
        """Whether it is of a rank of an MPI job."""
        return self.name.startswith("M_r")

    @property
    def family(self) -> Iterator[Experiment]:
        """It and all that lie in its directory: ranks of an MPI job have descendants of their own."""
        yield self
        for child in self.children:
            yield child
            if child.is_rank:
                yield from child.children

    @property
    def archives(self) -> Path:
        """The directory with copies of load objects and sources: the founder's."""
        return self.founder.archives if self.founder else self._archives

    @property
    def places(self) -> Places:
        """Where files are looked for besides the archives: one setting for a founder and its descendants."""
        return self._places if self.founder is None else self.founder.places

    def look_in(self, places: Places) -> None:
        """Look for files there from now on."""
        founder = self.founder or self
        founder._places = places
        founder._object_files.clear()

    def object_file(self, segment: Segment) -> ObjectFile:
        """The file that was mapped: its copy in the archives, else itself, if it still is the one that was recorded."""
        key = segment.name, segment.identity
        if key not in self._object_files:
            self._object_files[key] = self._found(segment)
        return self._object_files[key]

    def identity(self, segment: Segment) -> Identity:
        """Which file was mapped: by what was recorded, else by the file that is taken for it."""
        return segment.identity if segment.identity.is_known else self.object_file(segment).identity

    def copies_of(self, path: str) -> list[str]:
        """Where copies of a source file are in archives."""
        return [copy for copy in self._copies(os.fsencode(path)) if os.path.isfile(copy)]

    def _copies(self, name: bytes) -> list[str]:
        return self.places.copies(os.fspath(self.archives), os.fsdecode(names.archive_name(name)))

    def object_problems(self) -> list[str]:
        """What is wrong or doubtful with the files of the load objects."""
        texts = {(one.name, one.identity): one for one in self.segments if one.modes == MODES_TEXT}
        found = [self.object_file(one) for one in texts.values()]
        return [one.problem for one in found if one.problem]

    def _found(self, segment: Segment) -> ObjectFile:
        recorded, copies = os.fsdecode(segment.name), self._copies(segment.name)
        elsewhere = self.places.of(recorded) if recorded.startswith("/") else []
        asked = {*copies, *self.places.asked(recorded)}
        problems = []
        for path in (*copies, *elsewhere):
            if not os.path.isfile(path):
                continue
            why, doubt = self._difference(Path(path), segment, path in asked)
            if not why:
                known = segment.identity if segment.identity.is_known else identity_of_path(path)
                return ObjectFile(Path(path), f"{names.shown(path)}: {doubt}" if doubt else "", known)
            if path in asked or path == recorded:  # not of one that has its name by chance
                problems.append(f"{names.shown(path)}: not the file that was recorded ({why}); "
                                "its functions are shown as addresses")
        return ObjectFile(None, "; ".join(problems))

    def _difference(self, path: Path, segment: Segment, is_copy: bool) -> tuple[str, str]:
        """What shows that a file is not the one that was mapped, and what makes that doubtful."""
        if not segment.identity.is_known:
            mapped_unix_ns = self.log.start_unix * NS_PER_S + segment.start_ns - self.log.start_ns
            if is_copy or os.stat(path).st_mtime_ns <= mapped_unix_ns + NS_PER_S:
                return "", ""
            return "", "has changed since it was recorded; names of its functions may be wrong"
        try:
            with open_object(os.fspath(path)) as file:
                return difference(segment.identity, identity_of(file), is_copy), ""
        except (ElfError, OSError):
            return "not a load object any more", ""

    def note_missing_stacks(self, n_packets: int) -> None:
        """So many packets refer to stacks that are not there: a problem, if there are any."""
        damage = Damage()
        damage.note("packets whose stack is not there count for the total alone", n_packets)
        self._note("data.frameinfo", damage)

    def read_all(self) -> None:
        """Read every file now: whatever is wrong with them stands in ``problems`` afterwards."""
        _ = [self.packets(kind) for kind in (PROFILE, *self.kinds)]
        _ = self.stacks, self.mappings, self.samples, self.aggregations, self.notes

    def _bytes(self, name: str, damage: Damage) -> Bytes:
        with self._reading(name):
            return read_file(self.path / name, damage)
        return np.zeros(0, np.uint8)

    def _pieces(self, name: str, damage: Damage) -> Iterator[Bytes]:
        with self._reading(name):
            yield from read_pieces(self.path / name, damage, _PIECE_BYTES)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """What keeps a file from being read is a problem; that there is none is not."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            self.problems.append(f"{names.shown(self.path / name)}: {error.strerror}")
        except MemoryError:
            self.problems.append(f"{names.shown(self.path / name)}: larger than the memory that there is")

    def _note(self, name: str, damage: Damage) -> None:
        lines = [f"{names.shown(self.path / name)}: {line}" for line in damage.lines()]
        self.problems += [line for line in lines if line not in self.problems]  # some files are read twice


def open_experiment(path: str | os.PathLike[str]) -> Experiment:
    """Open an experiment, a founder or a descendant, be the founder damaged or not. Raises ExperimentError."""
    directory = Path(path)
    above = Path(os.path.abspath(directory)).parent
    if not directory.name.startswith(("_", "M_r")) or not above.name.endswith(names.SUFFIX):
        return _opened(directory, None)
    founder: Experiment | None = None
    problems = []
    if (above / "log.xml").is_file():
        try:
            founder = open_experiment(above)
            founder = founder.founder or founder  # that of a rank's descendant is the job's
        except ExperimentError as error:
            problems.append(f"{error}; {names.shown(directory)} was opened without it")
    opened = _opened(directory, founder)
    opened._archives = names.archives_path(above)
    opened.problems += problems
    return opened


def _opened(path: Path, founder: Experiment | None) -> Experiment:
    shown = names.shown(path)
    if not os.path.lexists(path):
        raise ExperimentError(f"{shown}: not an experiment: there is nothing of that name")
    if not path.name.endswith(names.SUFFIX) or not path.is_dir():
        raise ExperimentError(f"{shown}: not an experiment; give a directory whose name ends in {names.SUFFIX}")
    damage = Damage()
    try:
        content = read_settled(path / "log.xml", damage).tobytes()
        warnings, problems = _warnings(path / "warnings.xml")
        contents = log.read(content, warnings, damage)
    except FileNotFoundError as error:
        raise ExperimentError(f"{shown}: not an experiment: it has no log.xml") from error
    except OSError as error:
        raise ExperimentError(f"{shown}: cannot read log.xml: {error.strerror}") from error
    except FormatError as error:
        raise FormatError(f"{shown}/{error}") from error
    check_machine(path, contents)
    opened = Experiment(path, contents, founder)
    opened._note("log.xml", damage)
    opened.problems += problems
    return opened


def _warnings(path: Path) -> tuple[bytes, list[str]]:
    """What a file of warnings says, if there is one, and what keeps it from being read."""
    try:
        return read_file(path, Damage()).tobytes(), []
    except FileNotFoundError:
        return b"", []
    except OSError as error:
        return b"", [f"{names.shown(path)}: {error.strerror}"]


def check_machine(path: Path, contents: Log) -> None:
    """Raises FormatError where the experiment at ``path``, whose log that is, has words that are not read here."""
    if contents.wsize not in (32, 64) or contents.big_endian:
        raise FormatError(f"{names.shown(path)}: recorded on a kind of machine that cannot be read here")
