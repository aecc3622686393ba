"""The command ``collect``: options in the style of the Performance Analyzer, then a program and its arguments.

Options end at the program's name, as getopt(3) under POSIX does it. Nothing heavy is imported here: the target waits.
"""

from __future__ import annotations

import getopt
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from collector import __version__
from collector.cli import streams
from collector.clock import (
    INTERVAL_HIGH_NS,
    INTERVAL_LOW_NS,
    INTERVAL_MAX_NS,
    INTERVAL_MIN_NS,
    INTERVAL_ON_NS,
    format_ms,
    parse_interval,
)
from collector.errors import EngineRefused, UsageError
from collector.session.control import is_number, parse_signal, parse_window
from collector.session.options import ARCHIVE_CHOICES, ENGINES, KERNEL, MAX_COMMENTS, Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collector.session.session import Beside

_SHORT = "p:o:O:d:g:C:A:a:S:F:j:M:P:t:l:y:L:k:nvVh"
_LONG = ["help", "version", "engine=", "wait-descendants", "check", "tree", "aggregate=", "print=", "export=", "label=",
         "html", "html-file=", "python=", "js="]
_PAGE_FILE = "--html="  # getopt knows no arguments that may be left out

USAGE = f"""\
usage: collect [options] program [arguments]
       collect [options] -P PID
       collect [options] -k kernel [program [arguments]]

Records where a program spends its time, by thread, call stack and microstate, into an experiment (test.1.er) that
er_print and `gprofng display text` read.

  -p on|off|lo|hi|VALUE[m|u]  clock interval: on {format_ms(INTERVAL_ON_NS)} ms (default), hi {
    format_ms(INTERVAL_HIGH_NS)} ms, lo {format_ms(INTERVAL_LOW_NS)} ms, or a
                              value in milliseconds (m) or microseconds (u); this machine allows
                              {format_ms(INTERVAL_MIN_NS)} to {format_ms(INTERVAL_MAX_NS)} ms
  -o NAME.er                  name of the experiment; it must not exist, but of NAME.N.er the next free number is taken
  -O NAME.er                  the same, but overwrites an existing experiment
  -d DIR                      directory for an experiment whose name is not absolute
  -g GROUP.erg                add the experiment to a group file
  -C COMMENT                  a comment for the experiment's notes (up to {MAX_COMMENTS} times)
  -A, -a on|off|ldobjects|usedldobjects|src|usedsrc|all
                              what to copy into the experiment's archives at the end (default on: load objects)
  -S on|off|SECONDS           period of the overview samples (default on: 1 s)
  -P PID                      attach to a running process instead of starting one; ends with it, by -t or by Ctrl-C;
                              more than once for several processes
  --tree                      with -P: its existing descendants as well
  -t [START-]END[s|m]         record only from START to END after the start; the program runs on
  -l SIGNAL                   this signal to collect takes an overview sample
  -y SIGNAL[,r]               this signal to collect pauses and resumes recording, which begins paused (with ,r: on)
  -L SIZE                     at most SIZE MB of data; then recording ends, the program runs on
  -F on|off|=REGEX            record descendants (default on), the founder alone, or those whose lineage or program
                              REGEX matches
  -M on|off                   a rank of an MPI job: all ranks record into M_rN.er of one experiment
                              (mpirun -np 4 collect -M on -o job.1.er program)
  --wait-descendants          end when the last descendant has ended, not with the founder
  --aggregate EXPRESSION|NAME aggregate times of threads, such as 'rq[execname] = quantize(waitcpu)', or by a ready
                              name, such as runqlat; more than once; `help` prints the keys, such as pid, ustack,
                              waker, wakerstack, the values, the functions and the ready ones
  --label NAME=VALUE          a label of the experiment, for its log (more than once)
  --print SECONDS             with --aggregate: prints what is aggregated on stderr, every SECONDS and at the end
  --export FORMAT[=FILE]      when recording is over, write the experiment as er_export does: pprof, speedscope,
                              firefox, collapsed, perfetto, callgrind, json, parquet, otlp; more than once
  --html[=FILE]               at the end, make a page of the experiment for a browser (as er_html does), named after it
  -j on|off                   put methods of Java (HotSpot) into stacks, by looks at its memory (default on)
  --js on|off                 put functions of JavaScript (V8: node) into stacks, by looks at its memory (default on)
  --python on|off             put functions of CPython into stacks, by looks at its memory (default off; some of Python
                              3.11 and later are guessed)
  -k on|off                   keep the kernel's part of call stacks, in system calls, page faults and interrupts, with
                              the perf engine (default off; root, or who may read the kernel's addresses)
  -k kernel                   record the kernel of the whole machine, into ktest.1.er: all CPUs, idle or not, for -t,
                              while a program runs, or until Ctrl-C; with -F on (default) each program that runs
                              meanwhile into _NAME_PID_N.1.er of it, with -F off the kernel alone; root
  --engine auto|perf|signal   how samples are taken: by the kernel (perf), or by stopping running threads for a moment
                              (signal); auto takes perf where the kernel allows it
  -n                          dry run: print what would happen and do nothing
  -v                          say more; with -v, what is recorded and how
  --check                     print what this user may record on this machine, and what would allow more
  -V, --version               print the version
  --help                      print this text
  --                          end of options

The exit status is the program's own (128+n for signal n), 127 if the program is not found, 126 if it cannot run.
"""


def run(argv: list[str]) -> int:
    """Runs the command with ``argv`` (without its name) and returns the exit status."""
    options = parse(argv)
    if options is None:
        return 0
    if options.pids and options.arguments:
        raise UsageError("-P attaches to a running process: give no program with it")
    if options.tree and not options.pids:
        raise UsageError("--tree goes with -P")
    if options.aggregations and not options.interval_ns:
        raise UsageError("--aggregate needs clock profiling: leave out -p off")
    if options.kernel and not options.interval_ns:
        raise UsageError("-k on needs clock profiling: leave out -p off")
    if options.kernel and options.engine == "signal":
        raise UsageError("-k on: the signal engine does not see the kernel's part of stacks; leave out --engine signal")
    if options.print_period_s and not options.aggregations:
        raise UsageError("--print prints what is aggregated: give --aggregate, too")
    if options.pause_signal is not None and options.pause_signal[0] == options.sample_signal:
        raise UsageError("-l and -y: give two signals, for one cannot mean both")
    if options.exports and options.mpi:
        raise UsageError("--export and -M on: use er_export when all ranks have ended")
    if options.whole_kernel:
        return _kernel(options)
    if options.pids:
        from collector.session.attaching import attach

        return attach(options, _say, *_beside(options))
    if not options.arguments:
        print(USAGE, end="")
        return 0 if not argv else _no_program()
    from collector.session.session import dry_run, record

    if options.dry_run:
        print("\n".join(dry_run(options)))
        return 0
    return record(options, _say, *_beside(options))


def _kernel(options: Options) -> int:
    """Records the kernel of the machine, unless that is asked for together with what is of programs alone."""
    of_programs = {"-P": options.pids, "-M on": options.mpi, "--aggregate": options.aggregations,
                   "--python on": options.python, "--wait-descendants": options.wait_descendants}
    for option, is_asked_for in of_programs.items():
        if is_asked_for:
            raise UsageError(f"-k kernel records the whole machine: leave out {option}")
    if not options.interval_ns:
        raise UsageError("-k kernel needs clock profiling: leave out -p off")
    if options.engine == "signal":
        raise UsageError("-k kernel: the signal engine does not see the kernel; leave out --engine signal")
    from collector.session.kernel_experiment import record_kernel

    return record_kernel(options, _say, *_beside(options))


def _beside(options: Options) -> list[Beside]:
    """What goes on beside the recording, or when it is over, if anything does."""
    if not (options.print_period_s or options.exports or options.page is not None):
        return []
    from contextlib import ExitStack, contextmanager

    @contextmanager
    def beside(directory: Path, start_ns: int) -> Iterator[None]:
        with ExitStack() as stack:
            if options.page is not None:
                from collector.cli.exporting import making_a_page

                stack.enter_context(making_a_page(directory, options.page, _say))
            if options.exports:
                from collector.cli.exporting import exporting

                stack.enter_context(exporting(directory, options.exports, _say))
            if options.print_period_s:
                from collector.cli.live import printing

                stack.enter_context(printing(directory, start_ns, options.print_period_s))
            yield

    return [beside]


def parse(argv: list[str]) -> Options | None:
    """The options; None when the command line only asked for a text, which has been printed."""
    try:
        words = [f"--html-file={word.removeprefix(_PAGE_FILE)}" if word.startswith(_PAGE_FILE) else word
                 for word in argv]
        pairs, rest = getopt.getopt(words, _SHORT, _LONG)
        arguments = argv[len(argv) - len(rest):]
    except getopt.GetoptError as err:
        raise UsageError(f"{err.msg}; see collect --help") from None
    options = Options(command_line=tuple(argv))
    for option, value in pairs:
        if option == "-h" and argv[-1] != "-h":  # elsewhere it has an argument
            raise UsageError("-h: hardware counters are not recorded; leave it out with its argument "
                             "(collect --help: the usage)")
        if option in ("-h", "--help"):
            print(USAGE, end="")
            return None
        if option == "--check":
            from collector.session.check import probe, table

            found = probe()
            print("\n".join(table(found)))
            if not found.engine:
                raise EngineRefused("this user can record nothing here but overview samples (-p off)")
            return None
        if option == "--aggregate" and value == "help":
            from collector.session.asked import help_lines

            print("\n".join(help_lines()))
            return None
        if option in ("-V", "--version"):
            print(f"collect {__version__}")
            return None
        options = _with(options, option, value)
    return options._replace(arguments=tuple(arguments))


def _with(options: Options, option: str, value: str) -> Options:
    """``options`` changed by one option of the command line."""
    match option:
        case "-p":
            return options._replace(interval_ns=parse_interval(value))
        case "-o" | "-O":
            return options._replace(name=value, overwrite=option == "-O")
        case "-d":
            return options._replace(directory=value)
        case "-g":
            return options._replace(group=value)
        case "-C":
            if len(options.comments) == MAX_COMMENTS:
                raise UsageError(f"-C: at most {MAX_COMMENTS} comments")
            return options._replace(comments=(*options.comments, value))
        case "-A" | "-a":
            return options._replace(archive=_one_of(option, value, ARCHIVE_CHOICES))
        case "-S":
            return options._replace(sample_period_s=_sample_period(value))
        case "-F":
            from collector.session.follow import checked

            return options._replace(follow=checked(value))
        case "-t":
            return options._replace(window=parse_window(value))
        case "-l":
            return options._replace(sample_signal=parse_signal(option, value))
        case "-y":
            if value.startswith("@"):  # of the service: by what it asks
                return options._replace(orders=_orders(value))
            name, _, resumed = value.partition(",")
            if resumed not in ("", "r"):
                raise UsageError(f"-y {value}: give SIGNAL or SIGNAL,r")
            return options._replace(pause_signal=(parse_signal(option, name), resumed == "r"))
        case "-L":
            return options._replace(size_limit_mb=_size_limit(value))
        case "-P":
            number, at, pidfd = value.partition("@")  # of the service: by what it holds the process
            held = ((_pid(number), _pidfd(value, pidfd)),) if at else ()
            return options._replace(pids=(*options.pids, _pid(number)), pidfds=(*options.pidfds, *held))
        case "--tree":
            return options._replace(tree=True)
        case "-M":
            return options._replace(mpi=_one_of(option, value, ("on", "off")) == "on")
        case "-k":
            is_on = _one_of("-k", value, ("on", "off", "kernel")) == "on"
            return options._replace(asked=options.asked | {KERNEL} if is_on else options.asked - {KERNEL},
                                    whole_kernel=value == "kernel")
        case "--wait-descendants":
            return options._replace(wait_descendants=True)
        case "--engine":
            return options._replace(engine=_one_of(option, value, ENGINES))
        case "--aggregate":
            from collector.session.asked import asked_of, with_another

            aggregations = with_another(options.aggregations, value)
            return options._replace(aggregations=aggregations, asked=options.asked | asked_of(aggregations))
        case "--export":
            from collector.cli.exporting import format_and_file

            return options._replace(exports=(*options.exports, format_and_file(value)))
        case "--label":
            if not value.partition("=")[0] or "=" not in value:
                raise UsageError(f"--label {value}: give NAME=VALUE")
            return options._replace(labels=(*options.labels, value))
        case "--html" | "--html-file":
            return options._replace(page=value)
        case "-j":
            return options._replace(java=_one_of(option, value, ("on", "off")) == "on")
        case "--js":
            return options._replace(js=_one_of(option, value, ("on", "off")) == "on")
        case "--python":
            if value not in ("on", "off"):
                raise UsageError(f"--python {value}: give on or off")
            return options._replace(python=value == "on")
        case "--print":
            return options._replace(print_period_s=_seconds(option, value))
        case "-n":
            return options._replace(dry_run=True)
    return options._replace(verbose=True)


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{option} {value}: give one of {', '.join(choices)}")
    return value


def _sample_period(value: str) -> int:
    """Seconds between overview samples; 0 for none."""
    named = {"on": 1, "off": 0}
    if value in named:
        return named[value]
    return _seconds("-S", value, "on, off, or ")


def _seconds(option: str, value: str, or_else: str = "") -> int:
    if not is_number(value) or not 1 <= int(value) <= 1_000_000:
        raise UsageError(f"{option} {value}: give {or_else}whole seconds from 1")
    return int(value)


def _orders(value: str) -> int:
    number = value[1:]
    if is_number(number):
        with suppress(OSError, OverflowError):
            os.fstat(int(number))
            return int(number)
    raise UsageError(f"-y {value}: give SIGNAL or SIGNAL,r, or with @ the number of a pipe that is open already")


def _pidfd(value: str, number: str) -> int:
    if not is_number(number):
        raise UsageError(f"-P {value}: give the number of a process, or with @ its pidfd that is open already")
    return int(number)


def _pid(value: str) -> int:
    if not is_number(value) or not int(value):
        raise UsageError(f"-P {value}: give the number of a process")
    return int(value)


def _size_limit(value: str) -> int:
    """Megabytes; 0 for no limit."""
    if value in ("none", "unlimited"):
        return 0
    if not is_number(value) or not 1 <= int(value) <= 1 << 20:
        raise UsageError(f"-L {value}: give a size in MB from 1, or unlimited")
    return int(value)


def _no_program() -> int:
    raise UsageError("no program given; see collect --help")


def _say(text: str) -> None:
    streams.say(f"collect: {text}")
