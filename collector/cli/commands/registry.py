"""The table of commands: what each is called, what it takes, and which function carries it out.

A command is a function of a module in this package: ``(session, argument..., option=...)`` to a document, some
documents, or nothing where it only sets something. To add one, write the function and enter it below; its module is not
imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from collector.errors import UsageError

if TYPE_CHECKING:
    from collector.report.documents import Document

    Result = Document | Iterable[Document] | None

NAME = "[NAME]"
SCRIPT, QUIT, TYPED = "script", "quit", "typed"  # carried out where command lines are read
_STYLE, _TOP = "--style dtrace|stap", "--top N"


class Command(NamedTuple):
    """A command: what it takes, what it does. What may be left out is in brackets: ``all`` and a number or a name.

    ``act`` is ``module:function``. ``options`` may stand anywhere behind it, ``--NAME VALUE``. ``current``: what tells
    what is set, for a line of a script that gives no argument.
    """

    name: str
    argument: str
    help: str
    act: str
    alias: str = ""
    options: tuple[str, ...] = ()
    is_whole: bool = False  # may not be cut short
    current: str = ""

    def value_of(self, option: str) -> str:
        """What the option ``--NAME`` takes; empty where the command has none of that name."""
        return dict(each.split(" ", 1) for each in self.options).get(option, "")

    def function(self) -> Callable[..., Result]:
        """What carries it out."""
        module, name = self.act.split(":")
        found: Any = getattr(import_module(f"{__package__}.{module}"), name)
        return found  # type: ignore[no-any-return]


OPTIONS = {
    _STYLE: "as dtrace prints it (the default), or as SystemTap does",
    _TOP: "only the N keys with the largest values",
}
COMMANDS = (
    Command("functions", "", "functions with the current metrics", "functions:functions"),
    Command("callers-callees", "", "callers and callees of each function", "functions:callers_callees", "gprof"),
    Command("calltree", "", "the tree of calls", "functions:calltree", "ctree"),
    Command("csingle", "FUNCTION [#]", "callers and callees of one function: begins a fragment of the stack",
            "functions:csingle"),
    Command("cappend", "FUNCTION [#]", "a function more behind the fragment", "functions:cappend"),
    Command("cprepend", "FUNCTION [#]", "a function more before the fragment", "functions:cprepend"),
    Command("crmfirst", "", "the fragment without its first function", "functions:crmfirst"),
    Command("crmlast", "", "the fragment without its last function", "functions:crmlast"),
    Command("fsummary", "", "all metrics of every function", "functions:fsummary"),
    Command("osummary", "", "load objects with the current metrics", "functions:osummary"),
    Command("fsingle", "FUNCTION [#]", "all metrics of one function", "functions:fsingle"),
    Command("lines", "", "source lines with the current metrics", "code:lines"),
    Command("pcs", "", "instructions with the current metrics", "code:pcs"),
    Command("lsummary", "", "all metrics of every source line", "code:lsummary"),
    Command("psummary", "", "all metrics of every instruction", "code:psummary"),
    Command("source", "FUNCTION|FILE [#]", "a source file with the metrics of its lines", "code:source", "src"),
    Command("disasm", "FUNCTION|FILE [#]", "instructions with their metrics, between their source", "code:disasm"),
    Command("scc", "CLASSES", "what source listings show: compiler commentary, threshold=PERCENT", "code:scc"),
    Command("dcc", "CLASSES", "what listings of instructions show; also [no]src, [no]hex", "code:dcc"),
    Command("cc", "CLASSES", "both", "code:cc"),
    Command("sthresh", "PERCENT", "of the largest value, from which a source line is marked ##; 75", "code:sthresh"),
    Command("dthresh", "PERCENT", "the same for instructions", "code:dthresh"),
    Command("symbols", "FILE.tar", "pack the files that names, lines and source come from; -addpath reads them",
            "code:symbols"),
    Command("threads", "", "threads with the current metrics", "index:threads"),
    Command("processes", "", "processes (experiments) with the current metrics", "index:processes"),
    Command("samples", "", "samples with the current metrics", "index:samples"),
    Command("cpus", "", "CPUs with the current metrics", "index:cpus"),
    Command("leaks", "", "memory that was never released, by call stack", "traces:leaks"),
    Command("allocs", "", "memory that was allocated, by call stack", "traces:allocs"),
    Command("heap", "", "both, by call stack", "traces:heap"),
    Command("heapstat", "", "the most memory in use, and how large the pieces were", "traces:heapstat"),
    Command("ioactivity", "", "input and output by file", "traces:ioactivity"),
    Command("iodetail", "", "the same for each time that a file was open", "traces:iodetail"),
    Command("iocallstack", "", "input and output by call stack", "traces:iocallstack"),
    Command("iostat", "", "how large the pieces were that were read and written", "traces:iostat"),
    Command("deadlocks", "", "deadlocks; no collector records them any more", "traces:deadlocks"),
    Command("dsummary", "", "the same", "traces:deadlocks"),
    *(Command(name, argument, f"{what}: no collector records that here", f"traces:{act}", is_whole=True)
      for name, argument, what, act in (
          ("data_objects", "", "data objects", "dataspace"), ("data_single", "NAME [#]", "one of them", "data_single"),
          ("data_layout", "", "their layout", "dataspace"), ("memobj", "TYPE", "memory objects", "memobj"),
          ("mobj_list", "", "their types", "dataspace"), ("mobj_define", "NAME EXPR", "one more", "mobj_define"),
          ("data_metric_list", "", "metrics of data objects", "dataspace"),
          ("omp_preg", "", "parallel regions", "openmp"), ("omp_task", "", "tasks of OpenMP", "openmp"),
          ("races", "", "data races", "races"), ("rdetail", "VALUE", "one of them", "rdetail"),
          ("ddetail", "VALUE", "one deadlock", "ddetail"))),
    Command("ifreq", "", "counts of instructions; no collector records them here", "traces:ifreq"),
    Command("mapfile", "OBJECT FILE", "an order of functions for the linkers of Solaris; not written here",
            "traces:mapfile", is_whole=True),
    Command("procstats", "", "nothing: figures of gprofng's own work", "traces:procstats"),
    Command("gcevents", "", "garbage collections of Java with the current metrics", "index:gcevents"),
    Command("experiment_ids", "", "the same by experiment", "index:experiment_ids", is_whole=True),
    Command("datasize", "", "the same by how much was allocated, read or written", "index:datasize"),
    Command("duration", "", "the same by how long what was traced took", "index:duration"),
    Command("seconds", "", "seconds of the run with the current metrics", "index:seconds"),
    Command("indxobj", "TYPE", "the same for any index object", "index:indxobj"),
    Command("indxobj_list", "", "the index objects that there are", "index:indxobj_list"),
    Command("indxobj_define", "NAME EXPR", "an index object of one's own: packets grouped by an expression",
            "index:indxobj_define"),
    Command("filters", "EXPR", "only packets for which it is true, such as 'THRID == 2 && MSTATE == 7'",
            "filters:filters", current="filters:current"),
    Command("describe", "", "the names that expressions may use", "filters:describe"),
    Command("thread_select", "LIST", "only these threads, such as 1-3,7 or all", "filters:thread_select",
            current="filters:thread_list"),
    Command("lwp_select", "LIST", "the same for LWPs", "filters:lwp_select",
            current="filters:lwp_list"),
    Command("cpu_select", "LIST", "the same for CPUs", "filters:cpu_select",
            current="filters:cpu_list"),
    Command("sample_select", "LIST", "the same for samples", "filters:sample_select",
            current="filters:sample_list"),
    Command("thread_list", "", "how many threads there are, and which are selected", "filters:thread_list"),
    Command("lwp_list", "", "the same for LWPs", "filters:lwp_list"),
    Command("cpu_list", "", "the same for CPUs", "filters:cpu_list"),
    Command("sample_list", "", "the same for samples", "filters:sample_list"),
    Command("header", "[N|all]", "who, where, when, how; messages of the collector", "experiments:header"),
    Command("overview", "", "all metrics, summed up", "experiments:overview"),
    Command("statistics", "[N|all]", "time in each state and counters, from the samples", "experiments:statistics"),
    Command("sample_detail", "[N|all]", "the same for every sample", "experiments:sample_detail"),
    Command("aggregations", NAME, "what collect --aggregate has aggregated: all, or one of them",
            "data:aggregations", options=(_STYLE, _TOP)),
    Command("json_aggregations", NAME, "the same as a JSON document", "data:json_aggregations", options=(_TOP,)),
    Command("wakers", "", "whose wake-ups ended whose waits, after collect --aggregate wakers", "data:wakers"),
    Command("objects", "", "load objects", "experiments:objects"),
    Command("object_list", "", "load objects, and whether their functions are shown", "experiments:object_list"),
    Command("object_show", "LIST", "functions of these load objects are shown", "experiments:object_show",
            current="experiments:object_list"),
    Command("object_hide", "LIST", "each of these load objects is one function", "experiments:object_hide",
            current="experiments:object_list"),
    Command("object_api", "LIST", "of these load objects only the functions by which they are entered are shown",
            "experiments:object_api", current="experiments:object_list"),
    Command("object_select", "LIST", "functions of these load objects are shown, and of no other",
            "experiments:object_select", current="experiments:object_list"),
    Command("objects_default", "", "functions of all load objects are shown", "experiments:objects_default"),
    Command("open_exp", "EXPERIMENT", "another experiment or group instead", "experiments:open_exp"),
    Command("add_exp", "EXPERIMENT", "one more", "experiments:add_exp"),
    Command("drop_exp", "EXPERIMENT", "one less", "experiments:drop_exp"),
    Command("experiment_list", "", "experiments: founders and descendants", "experiments:experiment_list",
            "exp_list"),
    Command("metric_list", "", "the metrics that there are", "settings:metric_list"),
    Command("cmetric_list", "", "the metrics of callers and callees", "settings:cmetric_list", "gmetric_list"),
    Command("indx_metric_list", "", "the metrics of index objects", "settings:indx_metric_list"),
    Command("version", "", "the version", "settings:version"),
    Command("metrics", "SPEC", "choose metrics; default: the default ones", "settings:metrics",
            current="settings:current_metrics"),
    Command("compare", "FORM", "groups of experiments side by side: on, delta or ratio to the first one; off",
            "comparison:compare"),
    Command("sort", "SPEC", "sort by a metric that is shown; -SPEC: the other way", "settings:sort",
            current="settings:current_sort"),
    Command("dmetrics", "SPEC", "default metrics, before those known; also in .gprofng.rc, as other settings",
            "defaults:dmetrics"),
    Command("dsort", "SPEC", "the default order, as the first of SPEC that is shown", "defaults:dsort"),
    Command("en_desc", "on|off|=REGEX", "which descendants count: by lineage or program", "defaults:en_desc"),
    Command("viewmode", "MODE", "user, expert or machine", "defaults:viewmode", current="defaults:current_viewmode"),
    Command("limit", "N", "print at most N lines (or functions) of a table; 0: all", "settings:limit",
            current="settings:current_limit"),
    Command("name", "FORM", "long, short or mangled names; :soname adds load objects, :offset names code without "
            "symbols, :unique tells functions of one name apart", "settings:name"),
    Command("inlines", "on|off", "inlined functions as frames of their own; off unless asked for",
            "settings:inlines"),
    Command("setpath", "PATH", "folders where files are looked for, with colons; $expts: the experiments",
            "settings:setpath", current="settings:current_path"),
    Command("addpath", "PATH", "more such folders, or a file that -symbols made", "settings:addpath",
            current="settings:current_path"),
    Command("pathmap", "OLD NEW", "what takes the place of the beginning of a path", "settings:pathmap",
            current="settings:current_maps"),
    Command("debug_files", "on|off", "names and lines from separate debug files; on unless asked for",
            "settings:debug_files"),
    Command("printmode", "MODE", "text, csv, html, json, or one character between values", "settings:printmode",
            current="settings:current_printmode"),
    Command("outfile", "FILE", "print into a file from here on; - for standard output, -- for standard error",
            "settings:outfile"),
    Command("appendfile", "FILE", "the same, behind what is in it", "settings:appendfile"),
    *(Command(name, "VALUE", "of the graphical analyzer or of gprofng's parts: accepted, nothing to do",
              "defaults:accepted")
      for name in ("tabs", "rtabs", "tlmode", "tldata", "rdtmode", "preload_libdirs", "stack_align", "machinemodel")),
    *(Command(name, "", "accepted: there is no such warning", "defaults:ignored")
      for name in ("ignore_fs_warn", "ignore_no_xhwcprof")),
    Command("script", "FILE", "commands from a file, one a line, without the dash", SCRIPT),
    Command("help", "", "what commands there are", "usage:help"),
    Command("xhelp", "", "the same", "usage:help"),
    Command("quit", "", "the end of a script, or of all commands", QUIT, "exit"),
)


def is_option(option: str) -> bool:
    """Whether a command has an option ``--NAME``."""
    return any(command.value_of(option) for command in COMMANDS)


def misplaced(option: str) -> UsageError:
    """Where an option ``--NAME`` may stand."""
    owners = [f"-{command.name}" for command in COMMANDS if command.value_of(option)]
    where = "that" if len(owners) == 1 else "one of them"
    return UsageError(f"{option} is an option of {' and '.join(owners)}: put it behind {where}")


def find_command(text: str, word: str) -> Command:
    """The command that ``text`` names, in full or by a beginning that no other has. Raises UsageError.

    Large letters are small ones: index objects have such names.
    """
    text = text.lower()
    for command in COMMANDS:
        if text and text in (command.name, command.alias):
            return command
    found = [command for command in COMMANDS
             if text and not command.is_whole and (command.name.startswith(text) or command.alias.startswith(text))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{word} may be {' or '.join(command.name for command in found)}; say more of it")
    if is_option(f"--{text}"):
        raise misplaced(f"--{text}")
    from collector.suggestions import meant

    names = [name for command in COMMANDS for name in (command.name, command.alias) if name]
    raise UsageError(f"{word}: no such command; er_print --help lists them{meant(text, names)}")
