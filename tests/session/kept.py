"""Recordings kept as batches, and fed to a pipeline again: the same experiments, without a kernel or a target.

While a recording is kept (``Keeping``), every call of the pipeline is noted with its arguments, above all the batches,
and every answer of its world. The copies of stacks are kept as the frames that they were unwound to: what load objects
say is then not needed, and a recording takes some tens of KB:

    log        calls [name, muted, argument, ...] and answers [question, answer] as they came, as JSON; arrays as
               their lengths
    streams    one for every column of every kind, all arrays of the recording behind each other
    stacks     the different ones; samples have numbers, which lead there

``replay`` feeds them into a pipeline of today and tells what comes out (``Outcome``), as text that is compared with
what came out before.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import lzma
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from collector import events
from collector.events import Array, ClockSamples, Mapped, Reason
from collector.experiment.identity import UNKNOWN, Identity
from collector.experiment.log import Header
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Recorder
from collector.experiment.records import STATES
from collector.linux.accounts import Account
from collector.linux.proc import ProcessLife, ProcessUsage
from collector.linux.tasks import Place as WaitingPlace
from collector.processes.process import Epoch
from collector.session.attach import Found
from collector.session.experiments import Experiments, Recorded
from collector.session.follow import Follow
from collector.session.pipeline import Pipeline
from collector.session.tally import Tally
from collector.session.tap import Take
from collector.session.world import Place, World
from collector.unwind.batch import Stop

FOLDER = Path(__file__).resolve().parent / "kept"
# The registers of a departure that tell its site: ip, sp, bp.
_REGISTERS = (16, 7, 6)
_CALLS = ("feed", "take_over", "flush_waiting", "count", "look", "record_again", "stop_counting", "sync", "sample",
          "finish")
_KINDS = {kind.__name__: kind for kind in (
    *(kind for _, kind in inspect.getmembers(events, inspect.isclass) if kind.__module__ == events.__name__),
    Account, Found, Place, ProcessLife, ProcessUsage)}
_KINDS["WaitingPlace"] = WaitingPlace
_NAMES = {kind: name for name, kind in _KINDS.items()}
_TIMES = "time_ns"


# --- values to text and columns, and back -----------------------------------------------------------


class Streams:
    """Columns of all arrays of a kind behind each other."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Array]] = defaultdict(list)

    def put(self, name: str, column: Array) -> list[Any]:
        """Takes a column; what stands for it. Times are told from one to the next."""
        values = column.astype(np.int64) if column.dtype != np.uint64 else column.view(np.int64)
        self._parts[name].append(np.diff(values, prepend=0) if name.endswith(_TIMES) else values.copy())
        return [len(column), column.dtype.str]

    def to_bytes(self) -> tuple[list[tuple[str, int]], bytes]:
        """Names and lengths, and all values, byte after byte of each stream, as they are packed best."""
        found = {name: np.concatenate(parts) for name, parts in sorted(self._parts.items())}
        packed = b"".join(values.view(np.uint8).reshape(-1, 8).T.tobytes() for values in found.values())
        return [(name, len(values)) for name, values in found.items()], packed

    @classmethod
    def of_bytes(cls, lengths: Sequence[tuple[str, int]], packed: bytes) -> Streams:
        """What ``to_bytes`` told."""
        streams, at = cls(), 0
        for name, n in lengths:
            shuffled = np.frombuffer(packed, np.uint8, 8 * n, at).reshape(8, n)
            streams._parts[name] = [np.ascontiguousarray(shuffled.T).view(np.int64).reshape(n)]
            at += 8 * n
        return streams

    def take(self, name: str, n: int, kind: str) -> Array:
        """The next column of a kind."""
        (values,) = self._parts[name]
        column, self._parts[name] = values[:n], [values[n:]]
        column = np.cumsum(column) if name.endswith(_TIMES) else column
        return column.view(np.uint64).copy() if kind == "<u8" else column.astype(kind)

    def rest(self, name: str) -> Array:
        """All that is left of a stream, as i8."""
        (values,) = self._parts[name]
        return values


class Coder:
    """Any of the values that go in and out of a pipeline as JSON and columns, in the same order both ways."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.numbers: dict[tuple[int, ...], int] = {}  # of samples

    def encoded(self, value: Any) -> Any:
        """A value without arrays."""
        match value:
            case bytes():
                return {"b": value.decode("latin-1")}
            case ClockSamples():
                return {"s": self._samples(value)}
            case np.ndarray():
                return {"a": self.streams.put("array", value)}
            case dict():
                return {"d": [[self.encoded(key), self.encoded(each)] for key, each in value.items()]}
            case _ if type(value) in _NAMES and is_dataclass(value):
                name = _NAMES[type(value)]
                return {name: [self._field(f"{name}.{field.name}", getattr(value, field.name))
                               for field in fields(value)]}
            case tuple() if type(value) in _NAMES:
                return {_NAMES[type(value)]: [self.encoded(each) for each in value]}
            case list() | tuple():
                return [self.encoded(each) for each in value]
            case None | str() | bool():
                return value
        return int(value)

    def _field(self, name: str, value: Any) -> Any:
        return {"a": self.streams.put(name, value)} if isinstance(value, np.ndarray) else self.encoded(value)

    def decoded(self, value: Any) -> Any:
        """The value again."""
        if isinstance(value, list):
            return [self.decoded(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((name, content),) = value.items()
        if name == "b":
            return content.encode("latin-1")
        if name == "s":
            return self._decoded_samples(content)
        if name == "a":
            return self.streams.take("array", *content)
        if name == "d":
            return {self.decoded(key): self.decoded(each) for key, each in content}
        kind = _KINDS[name]
        if is_dataclass(kind):
            return kind(*(self._decoded_field(f"{name}.{field.name}", each)
                          for field, each in zip(fields(kind), content, strict=False)))  # younger ones: by default
        if kind is Found:
            tid, cut, reason, *others = map(self.decoded, content)
            return Found(tid, cut, Reason(reason), *others)
        return kind(*map(self.decoded, content))

    def _decoded_field(self, name: str, value: Any) -> Any:
        if isinstance(value, dict) and "a" in value:
            return self.streams.take(name, *value["a"])
        decoded = self.decoded(value)
        return tuple(decoded) if name == "Batch.changes" else decoded

    # Samples: without the memory that they were unwound with, but for how much there was of it (old ones lack that).

    _COLUMNS = ("time_ns", "pid", "tid", "cpu", "mode", "abi")

    def _samples(self, samples: ClockSamples) -> list[Any]:
        numbers = np.array([self.numbers.setdefault(key, len(self.numbers)) for key in keys(samples)], dtype=np.int64)
        put = self.streams.put
        return [*(put(f"samples.{name}", getattr(samples, name)) for name in self._COLUMNS),
                *(put(f"samples.register_{register}", samples.regs[:, register]) for register in _REGISTERS),
                put("samples.number", np.diff(numbers, prepend=0)), put("samples.n_words", samples.n_words)]

    def _decoded_samples(self, content: list[Any]) -> ClockSamples:
        take, n = self.streams.take, content[0][0]
        columns = {name: take(f"samples.{name}", *told) for name, told in zip(self._COLUMNS, content, strict=False)}
        regs, none = np.zeros((n, 17), dtype=np.uint64), np.zeros(n, dtype=np.int64)
        number, *n_words = content[len(columns) + len(_REGISTERS):]
        for register, told in zip(_REGISTERS, content[len(columns):], strict=False):
            regs[:, register] = take(f"samples.register_{register}", *told)
        first = np.cumsum(take("samples.number", *number))
        return ClockSamples(**columns, regs=regs, words=np.zeros(1, dtype=np.uint64), base=none, mask=none, first=first,
                            low=none.astype(np.uint64),
                            n_words=take("samples.n_words", *n_words[0]) if n_words else none)


def keys(samples: ClockSamples) -> Iterator[tuple[int, ...]]:
    """What tells one sample from another."""
    columns = (samples.tid, samples.time_ns, *(samples.regs[:, register] for register in _REGISTERS[:2]))
    return zip(*(column.tolist() for column in columns), strict=True)


# --- keeping --------------------------------------------------------------------------------------


class Kept:
    """A recording while it is kept."""

    def __init__(self) -> None:
        self.coder = Coder(Streams())
        self.log: list[dict[str, Any]] = []
        self.has_begun = False
        self.begin: dict[str, Any] = {}
        self.stacks: dict[tuple[int, ...], tuple[int, ...]] = {}  # of samples: why it ends, and the frames

    def save(self, path: Path) -> None:
        """Writes it, without the samples' numbers: those lead to the different stacks."""
        different: dict[tuple[int, ...], int] = {}
        none = (int(Stop.NO_REGISTER),)
        stack_of = [different.setdefault(self.stacks.get(key, none), len(different)) for key in self.coder.numbers]
        streams = self.coder.streams
        streams.put("stack_of", np.array(stack_of, dtype=np.int64))
        streams.put("stack.length", np.array([len(stack) for stack in different], dtype=np.int64))
        streams.put("stack.word", np.array([word for stack in different for word in stack], dtype=np.uint64))
        lengths, packed = streams.to_bytes()
        head = {"begin": self.begin, "log": self.log, "streams": lengths}
        text = json.dumps(head, separators=(",", ":")).encode()
        path.write_bytes(lzma.compress(text + b"\n" + packed, preset=9 | lzma.PRESET_EXTREME))


class KeepingWorld:
    """A world whose answers are kept."""

    def __init__(self, world: World, kept: Kept) -> None:
        self._world = world
        self._kept = kept

    def identity(self, number: int) -> Identity:
        """Which file a load object is: of the machine that records, and not kept."""
        return self._world.identity(number)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ask, kept = getattr(self._world, name), self._kept

        def answer(*arguments: Any) -> Any:
            found = ask(*arguments)
            kept.log.append({"answer": kept.coder.encoded(found), "to": kept.coder.encoded(question(name, arguments))})
            return found

        return answer

    def frames(self, samples: ClockSamples, index: Array, epochs: list[Epoch]) -> tuple[Array, Array, Array]:
        """Call stacks, which are kept with the samples."""
        pcs, length, stop = self._world.frames(samples, index, epochs)
        for key, frames, n, why in zip(keys(samples), pcs.tolist(), length.tolist(), stop.tolist(), strict=True):
            self._kept.stacks[key] = (why, *frames[:n])
        return pcs, length, stop


def question(name: str, arguments: Sequence[Any]) -> list[Any]:
    """What makes two questions the same: of a mapping, not its time; of who is blocked, not for how long it had run."""
    if name == "blocked":
        threads, *others = arguments
        return [name, [(thread.pid, thread.tid) for thread in threads], *others]
    return [each._replace(time_ns=0) if isinstance(each, Mapped) else each for each in (name, *arguments)]


class Keeping(Pipeline):
    """A pipeline whose calls are kept in ``kept``, which is written to ``path`` in the end."""

    kept: Kept
    path: Path

    def __init__(self, interval_ns: int, experiments: Experiments, world: World, tally: Tally, **options: Any) -> None:
        self.kept = Kept()
        self._is_busy = False
        super().__init__(interval_ns, experiments, cast(World, KeepingWorld(world, self.kept)), tally, **options)
        lend_none(self)
        self.kept.begin = {"interval_ns": interval_ns, "options": options, "follow": experiments.follow.text}

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._noting(name, found) if name in _CALLS and not self._is_busy else found

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            if not self.kept.has_begun:
                self.kept.has_begun = True
                (process,) = self.model.processes.values()
                self.kept.begin |= {"pid": process.pid, "start_ns": process.image.start_ns, "bits": process.image.bits,
                                    "founder_before": self.time.founder_before,
                                    "founder_first": self.time.founder_first}
            muted, self._is_busy = self.output.muted, True
            try:
                found = call(*arguments)
            finally:
                self._is_busy = False
            told = [self.kept.coder.encoded(each) for each in arguments]
            self.kept.log.append({"call": name, "with": told, "muted": muted})
            if name == "finish":
                self.kept.save(self.path)
            return found

        return noted


def lend_none(pipeline: Pipeline) -> None:
    """Short waits have stacks of their own, as where a tap listens: so all that a replay can ask for is kept."""
    pipeline._lending_ns = 0


# --- replaying ------------------------------------------------------------------------------------


class ReplayedWorld:
    """A world that answers as it did. Each question is answered as often as it was, and then always as the last time.

    Raises LookupError where something is asked that never was: then the recording has to be kept anew.
    """

    def __init__(self, answers: dict[str, deque[Any]], streams: Streams) -> None:
        self._answers = answers
        self._stack_of, length = streams.rest("stack_of"), streams.rest("stack.length")
        words = streams.rest("stack.word").view(np.uint64)
        end = np.cumsum(length)
        self._stop = words[end - length].astype(np.int8)
        self._frames = np.zeros((len(length), int(length.max(initial=1))), dtype=np.uint64)
        self._length = length - 1
        for row, (first, n) in enumerate(zip((end - length + 1).tolist(), self._length.tolist(), strict=True)):
            self._frames[row, :n] = words[first:first + n]

    def identity(self, _number: int) -> Identity:
        """Nobody knows any more."""
        return UNKNOWN

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*arguments: Any) -> Any:
            asked = json.dumps(Coder(Streams()).encoded(question(name, arguments)))
            found = self._answers.get(asked)
            if found is None:
                raise LookupError(f"the pipeline has never asked {asked}: keep the recording anew")
            return found.popleft() if len(found) > 1 else found[0]

        return answer

    def frames(self, samples: ClockSamples, _index: Array, _epochs: list[Epoch]) -> tuple[Array, Array, Array]:
        """The stacks that the samples were unwound to."""
        stack = self._stack_of[samples.first]
        length = self._length[stack]
        return self._frames[stack, :max(int(length.max(initial=0)), 1)], length, self._stop[stack]


class Outcome:
    """What a replay made: experiments below ``directory``, and what was counted on the way."""

    def __init__(self, directory: Path, tally: Tally, pipeline: Pipeline) -> None:
        self.directory = directory
        self.tally = tally
        self.pipeline = pipeline

    def text(self) -> str:
        """All of it in lines, for people who want to see what has changed."""
        lines = [f"{name}: {value}" for name, value in sorted(vars(self.tally).items()) if value]
        lines = [line.replace("Counter", "").replace("Stop.", "") for line in lines]
        for path in sorted([self.directory, *self.directory.glob("*.er")]):
            lines += ["", *self._experiment(path)]
        return "\n".join(lines) + "\n"

    def _experiment(self, path: Path) -> Iterator[str]:
        experiment = open_experiment(path)
        packets = experiment.packets()
        yield f"{path.relative_to(self.directory.parent)}: {len(packets)} packets, {int(packets['NTICK'].sum())} ticks"
        for name in ("profile", "data.frameinfo", "log.xml", "map.xml", "overview"):
            if (path / name).exists():
                digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
                yield f"  {name} {digest[:16]}"
        states = Counter[tuple[int, int]]()
        for tid, state, ticks in zip(packets["THRID"].tolist(), packets["MSTATE"].tolist(), packets["NTICK"].tolist(),
                                     strict=True):
            states[tid, state] += ticks
        for tid in sorted({tid for tid, _ in states}):
            told = ", ".join(f"{STATES[state]} {n}" for (of, state), n in sorted(states.items()) if of == tid and n)
            yield f"  thread {tid}: {told}"


def replay(path: Path, directory: Path, tap: Take | None = None, *, muted: bool = False) -> Outcome:
    """Feeds a kept recording to a pipeline, with a tap, which writes its experiments to ``directory``; ``muted``: from
    beginning to end, as if recording paused."""
    text, packed = lzma.decompress(path.read_bytes()).split(b"\n", 1)
    head = json.loads(text)
    streams = Streams.of_bytes(head["streams"], packed)
    coder, begin, tally = Coder(streams), head["begin"], Tally()
    calls: list[tuple[str, bool, list[Any]]] = []
    answers: dict[str, deque[Any]] = defaultdict(deque)
    for entry in head["log"]:  # in the order in which the streams were filled
        if "call" in entry:
            calls.append((entry["call"], entry["muted"], coder.decoded(entry["with"])))
        else:
            answers[json.dumps(entry["to"])].append(coder.decoded(entry["answer"]))
    world = cast(World, ReplayedWorld(answers, streams))

    def header(pid: int, parent_pid: int, start_ns: int, bits: int, arguments: bytes) -> Header:
        return Header(hostname="host", os="Linux", arch="x86_64", page_size=4096, n_pages=1 << 20, cpus=[2000, 2000],
                      pid=pid, ppid=parent_pid, pgrp=1, sid=1, cwd=b"/tmp", arguments=arguments, wsize=bits,
                      interval_ns=begin["interval_ns"], sample_period_s=1, start_ns=start_ns, start_unix=0,
                      collector="collect")

    def header_of(recorded: Recorded) -> Header:
        image = recorded.image
        return header(image.pid, recorded.parent_pid, recorded.start_ns, image.bits,
                      recorded.arguments or image.program)

    directory.mkdir()
    experiments = Experiments(directory, Follow(begin["follow"]), header_of)
    pipeline = Pipeline(begin["interval_ns"], experiments, world, tally, **begin["options"], tap=tap)
    lend_none(pipeline)
    if begin["founder_before"] is not None:
        pipeline.time.founder_before = Account(*begin["founder_before"])
        pipeline.time.founder_first = [Account(*one) for one in begin.get("founder_first", ())]  # old ones have none
    process = pipeline.model.new_process(begin["pid"], begin["start_ns"])
    recorder = Recorder.create(directory, header(begin["pid"], 1, begin["start_ns"], begin["bits"], b"program"))
    founder = experiments.founder(process.image, recorder)
    for name, was_muted, arguments in calls:
        pipeline.output.muted = muted or was_muted
        getattr(pipeline, name)(*arguments)
    recorder.close(founder.end_ns or process.image.start_ns)
    return Outcome(directory, tally, pipeline)
