"""Scripts as users of the Performance Analyzer's er_print have them, and every command in every form."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector import __version__
from collector.cli import er_print as er_print_here
from collector.cli.commands.registry import COMMANDS, SCRIPT, Command
from collector.export.render import MODES

SOURCE = """
volatile int sum;
__attribute__((noinline)) int inner(int n) { for (int i = 0; i < n; i++) sum += i; return sum; }
__attribute__((noinline)) int outer(int n) { return inner(n) + 1; }
int main(void) { for (int i = 0; i < 40; i++) outer(1000003); return 0; }
"""
SCRIPT_LINES = """
# what somebody keeps in a file
version
outfile OUT
appendfile OUT
limit 7
name long
viewmode user
printmode text
metric_list
metrics \\
  e.%totalcpu:i.totalcpu:name
sort e.totalcpu
metrics
sort
limit
viewmode
printmode
setpath
addpath
pathmap
filters
help
xhelp
functions
fsummary
fsingle "inner"
fsingle inner 1
data_objects
data_single sum 1
data_layout
memobj Page_64K
mobj_list
mobj_define Lines VADDR>255?VADDR/64:-1
OMP_preg
OMP_task
races
rdetail 1
ddetail 1
dsummary
objects
osummary
cmetric_list
gprof
csingle inner 1
cprepend outer 1
cappend inner 1
crmfirst
crmlast
calltree
scc all
dcc all:src
sthresh 60
dthresh 60
source outer 1
src outer
disasm inner
dis inner 1
disasm "work.c"
lines
lsummary
pcs
psummary
setpath $expts:.
addpath /tmp
pathmap /nowhere /tmp
indxobj_list
indxobj_define Tens TSTAMP/10000000
indxobj Tens
threads
cpus
samples
seconds
processes
indx_metric_list
experiment_list
sample_list
lwp_list
thread_list
cpu_list
filters "MSTATE == 0 || MSTATE == 1"
functions
describe
thread_select 1
lwp_select all
cpu_select all
sample_select all
object_list
object_hide PROGRAM
functions
object_show all
object_api libc.so.6
functions
object_select PROGRAM
objects_default
header
overview
statistics
sample_detail
ifreq
leaks
allocs
heap
heapstat
ioactivity
iodetail
iocallstack
iostat
deadlocks
procstats
add_exp OTHER
exp_list
drop_exp OTHER
open_exp OTHER
dmetrics i.user
dsort i.user
en_desc on
tabs functions:timeline
rtabs functions
tlmode lwp:root:depth=10
tldata all
rdtmode text
metrics default
functions
outfile --
experiment_list
outfile -
quit
what stands here is not read
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str, str], str], perf_allowed: None,
             collect: Callable[..., Any]) -> Path:
    """A real recording, and a second one beside it."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "work.c").write_text(SOURCE)
    subprocess.run([need("gcc", "gcc"), "-g", "-O1", "-o", folder / "work", folder / "work.c"], check=True)
    for name in ("a.1.er", "b.1.er"):
        done = collect("-p", "hi", "-o", folder / name, folder / "work")
        assert done.returncode == 0, done.stderr
    return folder / "a.1.er"


def test_a_script_for_another_er_print_runs_unchanged(recorded: Path, tmp_path: Path, er_print: Callable[..., Any]
                                                      ) -> None:
    out, script = tmp_path / "out", tmp_path / "script"
    text = SCRIPT_LINES.replace("OUT", str(out)).replace("OTHER", str(recorded.with_name("b.1.er")))
    script.write_text(text.replace("PROGRAM", "work"))
    names = {line.split()[0] for line in SCRIPT_LINES.splitlines() if line and not line.startswith("#")}
    assert len(names) > 80
    done = er_print("-script", script, recorded)
    assert (done.returncode, done.stdout) == (0, f"er_print {__version__}\n")
    assert re.fullmatch(r"\s*ID Sel +PID Experiment +\n.*\n +1 yes +\d+ \S+b\.1\.er \n", done.stderr), done.stderr
    printed = out.read_text()
    assert "current filter setting" in printed
    assert "Print limit set to 7" in printed
    assert printed.count("was not requested when recording experiments") >= 12
    assert printed.count("Functions sorted by metric") >= 5
    assert printed.rstrip().splitlines()[-3].endswith("<Total>") or "Current metrics: i.user:e.%totalcpu" in printed
    typed = er_print(recorded, input=text.replace("PROGRAM", "work"))
    assert (typed.returncode, typed.stderr) == (0, done.stderr)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with nothing in it."""
    path = tmp_path_factory.mktemp("empty") / "empty.er"
    path.mkdir()
    (path / "log.xml").write_text('<event kind="run" tstamp="1.000000000" time="1"/>\n')
    return path


@pytest.mark.parametrize(("lines", "printed"), [
    (("limit 3 # a remark", "limit"), "limit set to 3"), (("limit\t#3",), "limit set to 0"),
    (("filters FNAME(\"a # b\") SOME IN STACK #x",), 'setting: "FNAME("a # b") SOME IN STACK"'),
    (("viewmode MACHINE",), "set to machine"), (("printmode JSON", "limit"), '{"document": "limit"'),
    (("printmode X", "printmode"), "set to `X'"), (("name Short:SoName", "compare DELTA", "limit"), "limit"),
    (("inlines ON", "en_desc OFF", "scc VERSION", "dcc Basic:NoSrc", "limit"), "limit"),
    (("thread_select",), "Exp Sel"), (("lwp_select", "cpu_select"), "Exp Sel"), (("sample_select",), "Exp Sel"),
    (("object_show",), "Sel  Load Object"), (("object_hide",), "Sel  Load Object"),
    (("object_api", "object_select"), "Sel  Load Object"),
    (("data_metric_list",), "not requested"), (("mapfile work order",), "No mapfile of work was written")])
def test_lines_of_other_scripts_are_understood(lines: tuple[str, ...], printed: str, empty: Path, tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script").write_text("\n".join(lines))
    assert er_print_here.run(["-script", str(tmp_path / "script"), str(empty)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert printed in shown.out


def test_a_line_of_a_script_that_is_wrong_is_told_and_the_next_ones_come(
        empty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script").write_text("limit 3\nfunctons\n\nfilters \\\n((\n"
                                     f"open_exp {tmp_path}/none.er\nscript {tmp_path}/other\nlimit 5 6\nlimit\n")
    (tmp_path / "other").write_text("name odd\nlimit\n")
    script = f"-script {tmp_path / 'script'}"

    def said(*arguments: str) -> list[str]:
        assert er_print_here.run([*arguments, str(empty)]) == 2
        out, err = capsys.readouterr()
        assert out == "Print limit set to 3\nPrint limit set to 5\n"
        return err.splitlines()

    expected = [f"{script}: line 2: -functons: no such command", f"{script}: line 5: ", "", "",
                f"{script}: line 6: {tmp_path}/none.er: not an experiment",
                f"-script {tmp_path / 'other'}: line 1: -name odd: give long",
                f"warning: {script}: line 8: -limit: '6' cannot be understood"]
    told = [line.removeprefix("er_print: ") for line in said(*script.split())]
    assert len(told) == len(expected)
    assert all(line.startswith(start) for line, start in zip(told, expected, strict=True)), told
    monkeypatch.setattr("sys.stdin", io.StringIO((tmp_path / "script").read_text()))
    typed = said()
    assert len(typed) == len(expected)
    assert typed[0].startswith("er_print: standard input: line 2: -functons: no such command")


NAMESAKES = {
    "a.c": "extern volatile int sum;\nstatic __attribute__((noinline)) void namesake(void) "
           "{ for (int i = 0; i < 20000003; i++) sum += i; }\nvoid first(void) { namesake(); }\n",
    "b.c": "volatile int sum;\nvoid first(void);\nstatic __attribute__((noinline)) void namesake(void) "
           "{ for (int i = 0; i < 80000003; i++) sum ^= i; }\nint main(void) { first(); namesake(); return 0; }\n",
}


def test_the_number_of_one_of_several_functions_is_gprofng_s(tmp_path: Path, need: Callable[[str, str], str],
                                                             perf_allowed: None, collect: Callable[..., Any],
                                                             er_print: Callable[..., Any]) -> None:
    for name, text in NAMESAKES.items():
        (tmp_path / name).write_text(text)
    built = [need("gcc", "gcc"), "-g", "-gdwarf-4", "-O1", "-o", "prog", *NAMESAKES]
    subprocess.run(built, cwd=tmp_path, check=True)
    path = tmp_path / "x.er"
    assert collect("-p", "hi", "-o", path, tmp_path / "prog").returncode == 0
    gprofng = [need("gprofng", "binutils"), "display", "text"]
    for number in "1", "2":
        for command in "-fsingle", "-csingle", "-source":
            words = [command, "namesake", number, path]
            theirs = subprocess.run([*gprofng, *words], capture_output=True, text=True, check=True).stdout.splitlines()
            ours = er_print(*words)
            assert (ours.returncode, ours.stderr) == (0, "")
            for row in (0, 4) if command != "-source" else (0,):
                assert ours.stdout.splitlines()[row].split() == theirs[row].split()
            if command == "-csingle":
                assert ("first" if number == "1" else "main") in ours.stdout.split("Stack Fragment")[0].split()
    unclear = er_print("-fsingle", "namesake", path)
    assert unclear.returncode == 0
    assert unclear.stdout == er_print("-fsingle", "namesake", "2", path).stdout
    assert re.fullmatch(r"er_print: warning: namesake may be 1: namesake \(\S+a\.c\) at 0x\w+ in prog; 2: [^;]*; "
                        r"2, with the most CPU time, was taken: give the number behind the name\n", unclear.stderr)
    beyond = er_print("-csingle", "namesake", "3", path)
    assert (beyond.returncode, beyond.stdout) == (2, "")
    assert beyond.stderr.startswith("er_print: namesake may be 1: ")


@pytest.mark.parametrize(("words", "printed"), [
    (("-func", "-quit", "-threads"), "Functions sorted"), (("-source", "outer", "1"), "Source file:"),
    (("-outfile", "-", "-metrics", "e.%user", "-sort", "e.user", "-limit", "100", "-func", "-callers-callees"),
     "Current metrics: e.%user"),
    (("-filters", 'FNAME("inner") SOME IN USTACK', "-functions"), "current filter setting"),
    (("-limit", "3", "-"), "Functions sorted"), (("-dis", "inner", "1"), "Source file:")])
def test_command_lines_of_others_are_understood(words: tuple[str, ...], printed: str, recorded: Path,
                                                er_print: Callable[..., Any]) -> None:
    done = er_print(*words, recorded, input="functions\nexit\nnothing\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(printed)
    assert "Threads sorted" not in done.stdout


_GIVEN = {"FUNCTION": "inner", "FUNCTION|FILE": "inner",
          "SPEC": "e.totalcpu", "PERCENT": "50", "CLASSES": "all", "TYPE": "Threads",
          "NAME": "Mine", "EXPR": "THRID", "LIST": "all", "N": "5", "FORM": "long", "on|off": "on", "PATH": "/tmp",
          "OLD": "/a", "NEW": "/b", "MODE": "user", "on|off|=REGEX": "on", "VALUE": "x",
          "OBJECT": "work", "FILE": "order"}
_OTHERS = ("script", "version", "outfile", "appendfile", "symbols", "printmode", "aggregations", "json_aggregations",
           "wakers", "drop_exp", "compare", "help", "quit")  # elsewhere: options, files, aggregations
_AFTER = {"cappend": "-csingle inner", "cprepend": "-csingle outer", "crmfirst": "-csingle outer -cappend inner",
          "crmlast": "-csingle outer -cappend inner"}


def _words(command: Command, recorded: Path) -> list[str]:
    given = {**_GIVEN, "EXPERIMENT": str(recorded.with_name("b.1.er"))}
    return [*_AFTER.get(command.name, "").split(), f"-{command.name}",
            *(given[word] for word in command.argument.split() if not word.startswith("["))]


@pytest.mark.parametrize("mode", [*MODES, ";"])
def test_every_document_has_every_form(mode: str, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from collector.cli import er_print

    for command in COMMANDS:
        if command.act == SCRIPT or command.name in _OTHERS:
            continue
        assert er_print.run(["-printmode", mode, *_words(command, recorded), str(recorded)]) == 0
        printed = capsys.readouterr()
        assert printed.err == "", command.name
        if mode == "json":
            for line in printed.out.splitlines():
                assert line.startswith('{"document": '), (command.name, line)
                json.loads(line)
        assert printed.out or command.act.split(":")[0] in ("settings", "code", "defaults") or \
            command.name in ("procstats", "indxobj_define", "mobj_define"), command.name


def test_every_table_is_another_document(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from collector.cli import er_print

    for name in ("functions", "osummary", "experiment_ids", "datasize", "gcevents", "experiment_list"):
        er_print.run(["-printmode", "json", f"-{name}", str(recorded)])
        assert json.loads(capsys.readouterr().out)["document"].lower() == name


