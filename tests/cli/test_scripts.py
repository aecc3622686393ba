"""Scripts as users of the Performance Analyzer's er_print have them, and every command in every form."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
metrics e.%totalcpu:i.totalcpu:name
sort e.totalcpu
functions
fsummary
fsingle inner
objects
osummary
cmetric_list
gprof
csingle inner
cprepend outer
cappend inner
crmfirst
crmlast
calltree
scc all
dcc all:src
sthresh 60
dthresh 60
source outer
disasm inner
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
    assert (done.returncode, done.stderr) == (0, "")
    printed = out.read_text()
    assert printed.count("Functions sorted by metric") >= 5
    assert printed.rstrip().splitlines()[-3].endswith("<Total>") or "Current metrics: i.user:e.%totalcpu" in printed
    typed = er_print(recorded, input=text.replace("PROGRAM", "work"))
    assert (typed.returncode, typed.stderr) == (0, "")


_GIVEN = {"FUNCTION": "inner", "FUNCTION|FILE": "inner",
          "SPEC": "e.totalcpu", "PERCENT": "50", "CLASSES": "all", "TYPE": "Threads",
          "NAME": "Mine", "EXPR": "THRID", "LIST": "all", "N": "5", "FORM": "long", "on|off": "on", "PATH": "/tmp",
          "OLD": "/a", "NEW": "/b", "MODE": "user", "on|off|=REGEX": "on", "VALUE": "x"}
_OTHERS = ("script", "version", "outfile", "appendfile", "symbols", "printmode", "aggregations", "json_aggregations",
           "wakers", "drop_exp", "compare")  # elsewhere: options, files, what was aggregated, several experiments
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
            command.name == "procstats" or command.name == "indxobj_define", command.name


def test_every_table_is_another_document(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from collector.cli import er_print

    for name in ("functions", "osummary", "experiment_ids", "datasize", "gcevents", "experiment_list"):
        er_print.run(["-printmode", "json", f"-{name}", str(recorded)])
        assert json.loads(capsys.readouterr().out)["document"].lower() == name


