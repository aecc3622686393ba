"""What is said about an experiment besides its profile: header, samples' statistics, overview. Plain lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from collector.clock import NS_PER_S
from collector.export.text import printable, seconds
from collector.report.build import Experiment, Message, Sample
from collector.report.documents import Unit
from collector.report.kinds import CLOCK, COUNTERS, HEAP, IO, LOCKS
from collector.report.kinds import TITLES as KIND_TITLES
from collector.report.metrics import Metric, View

_LABEL_WIDTH = 50

# Messages whose text in the log is only a parameter. Numbers not here are shown with their text, or alone.
_MESSAGES = {
    ("cerror", 9): "Clock profiling could not be started",
    ("cerror", 12): "Data may be incomplete",
    ("cerror", 13): "The experiment could not be begun",
    ("cerror", 14): "The size limit of the experiment has been reached",
    ("cerror", 32): "No space left on the disk",
    ("cerror", 48): "The program could not be executed",
    ("cerror", 51): "No data was recorded",
    ("cwarn", 202): "The profiling interval was changed",
    ("cwarn", 203): "The size limit was changed",
    ("cwarn", 207): "The interval of the profiling timer was changed; profile data may be unreliable",
    ("cwarn", 210): "vfork was replaced by fork",
    ("cwarn", 217): "A descendant was not followed",
    ("cwarn", 218): "A descendant was not followed",
    ("cwarn", 231): "No data was recorded",
}
_SELF_EXPLAINING = {("cerror", 47), ("cwarn", 227), ("comment", 400)}
_LEADS = {"cerror": "*** Collector Error: ", "cwarn": "*** Collect: "}
_QUOTING = {("comment", 401): "Initial execution directory", ("comment", 402): "Argument list"}
_VERBS = {"desc_start": "Starting", "desc_started": "Started ", "exec_start": "Starting", "exec_error": "Failed  "}

# Order and names in which the states of a sample are listed.
STATE_LINES = ((0, "User CPU"), (1, "System CPU"), (2, "Trap CPU"), (6, "User Lock"), (4, "Data Page Fault"),
               (3, "Text Page Fault"), (5, "Kernel Page Fault"), (9, "Stopped"), (8, "Wait CPU"), (7, "Sleep"))
COUNTER_LINES = (
    ("minor_faults", "Minor Page Faults"), ("major_faults", "Major Page Faults"), ("swaps", "Process swaps"),
    ("input_blocks", "Input blocks"), ("output_blocks", "Output blocks"), ("messages_sent", "Messages sent"),
    ("messages_received", "Messages received"), ("signals", "Signals handled"),
    ("voluntary_switches", "Voluntary context switches"), ("involuntary_switches", "Involuntary context switches"),
    ("system_calls", "System calls"), ("characters_io", "Characters of I/O"))


def shown_path(path: Path) -> str:
    """A path as one printable line."""
    return printable(os.fsencode(path))


def header(experiment: Experiment) -> Iterator[str]:
    """Who was recorded, where, when and how, with everything that the recorder had to say."""
    log = experiment.log
    experiment.read_all()
    yield f"Experiment: {shown_path(experiment.path)}"
    if experiment.notes:
        yield from ("Notes:", *(_line(note) for note in experiment.notes), "=" * 60)
    for kind, nothing in (("cerror", "No errors"), ("cwarn", "No warnings"), ("comment", "")):
        lines = [message_line(message) for message in log.messages if message.kind == kind]
        yield from lines or ([nothing] if nothing else [])
    if not log.complete:
        yield "*** Note: experiment was not closed"
    yield from (f"*** Note: {_line(problem)}" for problem in experiment.problems)
    yield from (f"*** Warning: {_line(problem)}" for problem in experiment.object_problems())
    yield ""
    yield f"Target command ({log.wsize}-bit): '{printable(log.arguments)}'"
    yield f"Process pid {log.pid}, ppid {log.ppid}, pgrp {log.pgrp}, sid {log.sid}"
    yield f"Current working directory: {printable(log.cwd) if log.cwd else '(unknown)'}"
    yield (f"Collector version: `{_line(log.collector)}'; experiment version {_line(log.version)} "
           f"({log.wsize}-bit)")
    yield from _machine(experiment)
    yield from (f"Label {_line(name)}: {_line(value)}" for name, value in log.labels.items())
    yield from _parameters(experiment)
    yield ""
    yield f"Experiment started {_date(log.start_unix)}"
    yield ""
    yield from _events(experiment)
    yield f"Experiment Ended: {_relative(experiment, experiment.end_ns)}"
    yield f"Data Collection Duration: {_seconds_ns(experiment.end_ns - log.start_ns - _paused_ns(experiment))}"


def _machine(experiment: Experiment) -> Iterator[str]:
    log = experiment.log
    yield (f"Host `{_line(log.hostname)}', OS `{_line(log.os)}', page size {log.page_size}, "
           f"architecture `{_line(log.arch)}'")
    if log.cpus:
        slow, fast = min(log.cpus), max(log.cpus)
        speed = f"clock speed {fast} MHz." if slow == fast else \
            f"with clocks ranging from {slow} to {fast} MHz.; max of {fast} MHz. assumed"
        yield f"  {len(log.cpus)} CPU{'s' if len(log.cpus) > 1 else ''}, {speed}"
    if log.n_pages:
        yield (f"  Memory: {log.n_pages} pages @  {log.page_size} = "
               f"{log.n_pages * log.page_size // (1 << 20)} MB.")
    if log.counters:
        yield "  Machine model: generic"


def _parameters(experiment: Experiment) -> Iterator[str]:
    log = experiment.log
    yield "Data collection parameters:"
    if log.interval_us:
        yield f"  Clock-profiling, interval = {log.interval_us} microsecs."
    if LOCKS in experiment.kinds:
        said = log.profiles.get(LOCKS, {})
        apis = {"1": "Native-APIs", "2": "Java-APIs"}.get(said.get("scope", ""), "Native- and Java-APIs")
        yield f"  Synchronization tracing, threshold = {_threshold(said.get('threshold', '0'))}; {apis}"
    yield from (f"  {KIND_TITLES[kind].capitalize() if kind == HEAP else 'IO tracing'}" for kind in (HEAP, IO)
                if kind in experiment.kinds)
    if log.counters:
        yield "  HW counter-profiling; counters:"
        yield from (f"    {_line(counter.name)}, tag {tag}, interval {counter.interval}, memop {counter.memop}"
                    for tag, counter in sorted(log.counters.items()))
    if log.sample_period_s:
        yield f"  Periodic sampling, {log.sample_period_s} secs."
    if log.settings.get("limit"):
        yield f"  Experiment size limit, {_line(log.settings['limit'])} MB."
    if log.settings.get("linetrace"):
        yield f"  Follow descendant processes from: {_line(log.settings['linetrace'])}"


def _threshold(text: str) -> str:
    """A negative one was found out by the collector."""
    return f"{_line(text.removeprefix('-'))} microsecs.{' (calibrated)' if text.startswith('-') else ''}"


def _events(experiment: Experiment) -> Iterator[str]:
    for event in experiment.log.events:
        at, attributes = _relative(experiment, event.time_ns), event.attributes
        if event.kind == "pause":
            yield f"Pause ({_line(attributes.get('name', ''))}): {at}"
        elif event.kind == "resume":
            yield f"Resume: {at}"
        elif event.kind in _VERBS:
            lineage = attributes.get("lineage", "")
            where = f"exp {lineage}.er" if attributes.get("follow") == "1" else "no experiment"
            yield (f'{_VERBS[event.kind]} {_line(attributes.get("variant", ""))} {at}, {_line(where)}, '
                   f'"{_line(attributes.get("msg", ""))}"')


def _paused_ns(experiment: Experiment) -> int:
    paused_ns, since_ns = 0, -1
    for event in experiment.log.events:
        if event.kind == "pause" and since_ns < 0:
            since_ns = event.time_ns
        elif event.kind == "resume" and since_ns >= 0:
            paused_ns, since_ns = paused_ns + event.time_ns - since_ns, -1
    return paused_ns + (experiment.end_ns - since_ns if since_ns >= 0 else 0)


def message_line(message: Message) -> str:
    """What a recorder had to say, as one line, with what kind of message it is."""
    return _LEADS.get(message.kind, "") + message_text(message)


def message_text(message: Message) -> str:
    """The same without its kind."""
    key = (message.kind, message.id)
    text = _line(message.text)
    if key in _QUOTING:
        text = f"{_QUOTING[key]} `{text}'"
    elif key in _MESSAGES:
        text = f"{_MESSAGES[key]}: {text}" if text else _MESSAGES[key]
    elif key not in _SELF_EXPLAINING:
        text = f"message {message.id} {text}".rstrip()
    if message.errno:
        text += f" ({os.strerror(message.errno)})"
    return text


def sum_of_statistics(experiments: Sequence[Experiment]) -> Iterator[str]:
    """The sums over several experiments, which have no common time; as wide as the first one's total."""
    samples = [sample for experiment in experiments for sample in experiment.samples]
    widest_ns = sum(sum(sample.states_ns) for sample in experiments[0].samples)
    yield from statistics("<Sum across selected experiments>", samples, None, 0, widest_ns=widest_ns)
    yield ""


def statistics(name: str, samples: Sequence[Sample], start_ns: int | None, end_ns: int,
               with_counters: bool = True, widest_ns: int | None = None) -> Iterator[str]:
    """The sums over samples; ``start_ns`` None: no common time; ``widest_ns``: what the columns must hold."""
    yield name
    yield "Aggregated statistics for selected samples".rjust(_LABEL_WIDTH)
    yield ""
    totals = [sum(values) for values in zip(*(sample.states_ns for sample in samples), strict=True)] or [0] * 10
    duration_ns = sum(sample.end_ns - sample.start_ns for sample in samples)
    counters = {key: sum(sample.counters.get(key, 0) for sample in samples) for key, _ in COUNTER_LINES}
    total = f"{(sum(totals) if widest_ns is None else widest_ns) / NS_PER_S:.3f}"
    width = max(len(str(value)) for value in (total, *counters.values())) if with_counters else len(total)
    yield from _sample_lines("Total", "Total", start_ns, end_ns, duration_ns, totals, width)
    if with_counters:
        yield ""
        yield from (_labelled(label, str(counters[key]).rjust(width)) for key, label in COUNTER_LINES)
    yield ""


def sample_detail(experiment: Experiment) -> Iterator[str]:
    """The sums, then every sample."""
    start_ns = experiment.log.start_ns
    yield from statistics(f"Experiment: {shown_path(experiment.path)}", experiment.samples, _start_of(experiment),
                          _end_of(experiment), with_counters=False)
    yield from ("", "Individual samples".rjust(_LABEL_WIDTH), "")
    width = len(f"{sum(sum(sample.states_ns) for sample in experiment.samples) / NS_PER_S:.3f}")
    for sample in experiment.samples:
        yield _labelled("Sample Number", str(sample.id))
        yield ""
        yield from _sample_lines(_line(sample.start_label), _line(sample.label), sample.start_ns - start_ns,
                                 sample.end_ns - start_ns, sample.end_ns - sample.start_ns, sample.states_ns,
                                 width)
        yield ""


def experiment_statistics(experiment: Experiment) -> Iterator[str]:
    """The statistics of one experiment."""
    return statistics(f"Experiment: {shown_path(experiment.path)}", experiment.samples, _start_of(experiment),
                      _end_of(experiment))


def _start_of(experiment: Experiment) -> int:
    """Where the first sample begins: later than the recording where that could not begin at once."""
    return experiment.samples[0].start_ns - experiment.log.start_ns if experiment.samples else 0


def _end_of(experiment: Experiment) -> int:
    return experiment.samples[-1].end_ns - experiment.log.start_ns if experiment.samples else 0


def _sample_lines(start_label: str, end_label: str, start_ns: int | None, end_ns: int, duration_ns: int,
                  states_ns: Sequence[int], width: int) -> Iterator[str]:
    total_ns = sum(states_ns)
    yield _labelled("Start Label", start_label)
    yield _labelled("End Label", end_label)
    for label, value_ns in (("Start Time (sec.)", start_ns), ("End Time (sec.)", None if start_ns is None else end_ns),
                            ("Duration (sec.)", duration_ns), ("Total Thread Time (sec.)", total_ns)):
        yield _labelled(label, "N/A" if value_ns is None else f"{value_ns / NS_PER_S:.3f}".rjust(width))
    average = f"{total_ns / duration_ns:.3f}".rjust(width) if duration_ns else "N/A"
    yield _labelled("Average number of Threads", average)
    yield ""
    yield "Process Times (sec.)".rjust(_LABEL_WIDTH) + ":"
    for state, label in STATE_LINES:
        value_ns = states_ns[state]
        share = f"{100 * value_ns / total_ns:5.1f}%" if value_ns else "  0. %"
        value = f"{value_ns / NS_PER_S:.3f}" if value_ns else seconds(0)
        yield _labelled(label, f"{value.rjust(width)} ({share})")


def overview(experiments: Sequence[Experiment], kinds: Mapping[str, Sequence[Metric]], totals: Mapping[str, int],
             view: View) -> Iterator[str]:
    """The experiments as one: what was run, and the total of every metric, by kind of data."""
    first = experiments[0]
    more = f" (plus {len(experiments) - 1} more)" if len(experiments) > 1 else ""
    start_ns = min(e.log.start_ns for e in experiments)
    duration = f"{(max(e.end_ns for e in experiments) - start_ns) / NS_PER_S:.3f}"
    yield from ("Experiment(s):", "", f"Experiment      :{shown_path(first.path)}{more}",
                f"  Target        : '{printable(first.log.arguments)}'",
                f"  Host          : {_line(first.log.hostname)} ({_line(first.log.arch)}, {_line(first.log.os)})",
                f"  Start Time    : {_date(first.log.start_unix)}", f"  Duration      : {duration} Seconds", "",
                "Metrics:", "", f"  Experiment Duration (Seconds): [{duration}]")
    enabled = {column.metric.command for column in view.columns}
    for kind in (kind for kind in _KINDS if kinds.get(kind)):
        yield from (f"  {KIND_TITLES[kind]}", *["    General Hardware Counters"] * (kind == COUNTERS))
        for metric in kinds[kind]:
            mark, value = "X" if metric.command in enabled else " ", totals[metric.command]
            hot = "*" if _is_hot(metric, value, totals.get("totalcpu", 0)) else ""
            is_time = metric.unit is Unit.TIME
            yield (f"    {'  ' * (metric.level + metric.is_counter)}[{mark}]{metric.title} - {metric.command}"
                   f"{' (Seconds)' * is_time}: [{hot}{f'{value / 1e6:.3f}' if is_time else value}]")
    yield from ("", "Notes: '*' indicates hot metrics, '[X]' indicates currently enabled metrics.",
                "       The metrics command can be used to change selections. The metric_list command lists all "
                "available metrics.")


_KINDS = (HEAP, CLOCK, COUNTERS, LOCKS, IO)
_NEVER_HOT = {"total", "user", "system", "trap", "lock", "sleep"}
_ALWAYS_HOT = {"totalcpu", "heapallocbytes", "heapleakbytes"}


def _is_hot(metric: Metric, value_us: int, cpu_us: int) -> bool:
    """Total CPU time and what the heap takes always, a wait when it is more than a tenth of CPU time.

    Some metrics say nothing by themselves.
    """
    return metric.command in _ALWAYS_HOT or (metric.unit is Unit.TIME and metric.command not in _NEVER_HOT
                                             and 10 * value_us > cpu_us)


def _labelled(label: str, value: str) -> str:
    return f"{label.rjust(_LABEL_WIDTH)}: {value}"


def _line(text: str) -> str:
    return printable(text.encode("utf-8", "surrogateescape"))


def _date(unix: int) -> str:
    return time.ctime(unix)


def _relative(experiment: Experiment, time_ns: int) -> str:
    return _seconds_ns(time_ns - experiment.log.start_ns)


def _seconds_ns(value_ns: int) -> str:
    whole, rest_ns = divmod(max(value_ns, 0), NS_PER_S)
    return f"{whole}.{rest_ns:09d}"


__all__ = ["experiment_statistics", "header", "overview", "sample_detail", "shown_path", "statistics",
           "sum_of_statistics"]
