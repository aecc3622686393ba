"""Files of defaults, and the commands that are made for them, against the reference reader in the same folders."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.cli import er_print as command
from collector.experiment.recorder import Header, Recorder

START_NS = 5_003_000_000_017
BASE = 0x55AA_0000_0000
HEADER = Header(
    hostname="somewhere", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=262_147, cpus=[2500], pid=4711,
    ppid=4001, pgrp=4711, sid=4001, cwd=b"/tmp", arguments=b"/usr/bin/prog", wsize=64, interval_ns=10_007_000,
    sample_period_s=1, start_ns=START_NS, start_unix=2_100_000_003, collector="collect 0.1", notes=[])
C_SOURCE = "int leaf(int n) { return n * 3; }\nint middle(int n) { return leaf(n) + 1; }\n" \
           "int top(int n) { return middle(n); }\n"
FAMILY = {"": b"/usr/bin/prog", "_f1": b"(fork)", "_f1_x1": b"/bin/other z", "_f2": b"prog 2"}

Say = Callable[..., str]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str, str], str]) -> Path:
    """A founder and three descendants: different counts in different states of three functions of a shared object."""
    folder = tmp_path_factory.mktemp("family")
    source, library = folder / "lib.c", folder / "lib.so"
    source.write_text(C_SOURCE)
    subprocess.run([need("gcc", "gcc"), "-g", "-gdwarf-4", "-shared", "-nostdlib", "-fPIC", "-o", library, source],
                   check=True)
    told = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    at = {name: BASE + int(value, 16) for value, name in re.findall(r"(\w+) T (\w+)", told)}
    stacks = np.array([[at["leaf"] + 5, at["middle"] + 6, at["top"] + 7], [at["middle"] + 5, at["top"] + 7, 0]],
                      np.uint64)
    for number, (lineage, arguments) in enumerate(FAMILY.items()):
        path = folder / "a.1.er" / f"{lineage}.er" if lineage else folder / "a.1.er"
        path.mkdir()
        recorder = Recorder.create(path, replace(HEADER, arguments=arguments, pid=4711 + number))
        recorder.segment_mapped(START_NS, BASE, 0x8000, 0, os.fsencode(library), 5)
        uids = recorder.frames.intern(stacks, np.array([3, 2], np.int64))
        rows = np.arange(40 + number * 7)
        recorder.clock(np.full(len(rows), 4711), np.zeros(len(rows), np.int32), START_NS + rows * 1_000_000,
                       uids[rows % 2].astype(np.int64), (rows % 10).astype(np.int32),
                       (1 + rows % (3 + number)).astype(np.int32))
        recorder.close(START_NS + 5_000_000_000)
    return folder / "a.1.er"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The current and the home directory: empty ones."""
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    return here, home


@pytest.fixture
def both(folders: tuple[Path, Path], family: Path, capsys: pytest.CaptureFixture[str],
         need: Callable[[str, str], str]) -> Callable[..., tuple[list[str], list[str]]]:
    """``both("-functions")``: what we say and what the reference reader says, blanks as one; latency is ours alone."""
    def run(*arguments: str) -> tuple[list[str], list[str]]:
        assert command.run([*arguments, str(family)]) == 0
        ours = capsys.readouterr().out
        theirs = subprocess.run([need("gprofng", "binutils"), "display", "text", *arguments, family],
                                capture_output=True, text=True, check=True)
        return tuple([" ".join(line.split()) for line in text.splitlines() if not LATENCY.search(line)]
                     for text in (ours, theirs.stdout))

    return run


LATENCY = re.compile(r"^\s*(Ex|In)clusive Latency:")
DEFAULTS = [
    "dmetrics user", "dmetrics !name", "dmetrics e.any", "dmetrics i.all", "dmetrics e!totalcpu:i!totalcpu",
    "dmetrics e%user:i.+sleep", "dmetrics size:address", "dmetrics .user", "dmetrics e.user:e!user",
    "dmetrics e!user:e.user", "dmetrics name:e.user", "dmetrics ie.wait", "dmetrics euser", "dmetrics +user",
    "dmetrics e.bogus:e.user", "dmetrics all", "dmet e.user", "-dmetrics i.lock", "dmetrics e.hwc",
    "dsort i.user", "dsort i.totalcpu", "dsort -i.totalcpu", "dsort name", "dsort -name", "dsort e.user:-i.totalcpu",
    "dsort any", "dsort i.any", "dsort size", "dsort ie.totalcpu", "dsort i.bogus",
    "dsort -e.user\ndsort i.totalcpu", "dsort e.user\ndsort -i.totalcpu", "dmetrics e.user\ndmetrics e.sleep:i.user",
    "name short # a remark\nname long", "limit 2\nlimit 4", "viewmode expert", "printmode |\nprintmode ;",
    "object_hide lib.so", "object_hide lib.so\nobject_show lib.so", "object_hide bogus", "object_api lib.so",
    "  \n# nothing\n", "dmetrics\te.user\ndsort \t i.user\t# a remark", "indxobj_define\tMine \t TSTAMP/7000000",
    "indxobj_define Mine TSTAMP/7000000", "en_desc on", "en_desc off", "en_desc =_f1", "en_desc =o.*r",
    "en_desc =_f.*", "scc basic\ndcc all:src\ncc all\nsthresh 3\ndthresh 4", "preload_libdirs ../lib",
]
SHOWN = ("-metric_list", "-functions", "-experiment_list", "-processes", "-calltree", "-callers-callees")


@pytest.mark.parametrize("text", DEFAULTS)
def test_a_file_of_defaults_does_what_it_does_to_the_reference_reader(
        text: str, folders: tuple[Path, Path], both: Callable[..., tuple[list[str], list[str]]]) -> None:
    (folders[0] / ".gprofng.rc").write_text(f"{text}\n")
    shown = SHOWN[:4] if "printmode" in text else SHOWN
    ours, theirs = both(*shown, *(("-indxobj", "Mine") if "Mine" in text else ()))
    assert ours == theirs
    assert len(ours) > 10


def test_random_defaults_of_two_files(folders: tuple[Path, Path],
                                      both: Callable[..., tuple[list[str], list[str]]]) -> None:
    chance = random.Random(17)
    names = ("user", "system", "total", "totalcpu", "sleep", "any", "size", "name", "bogus")

    def spec() -> str:
        return ":".join(f"{chance.choice(('e', 'i', 'ei', 'ie'))}{chance.choice(('.', '%', '.%', '!', '+'))}"
                        f"{chance.choice(names)}" for _ in range(chance.randrange(1, 5)))

    for _ in range(12):
        for folder in folders:
            (folder / ".gprofng.rc").write_text(f"dmetrics {spec()}\ndsort {chance.choice(('-', ''))}{spec()}\n"
                                                f"dmetrics {spec()}\nname {chance.choice(('short', 'long'))}\n")
        ours, theirs = both("-metric_list", "-functions")
        assert ours == theirs, [(folder / ".gprofng.rc").read_text() for folder in folders]


def test_the_nearest_file_counts_and_lists_grow(folders: tuple[Path, Path], family: Path,
                                                er_print: Callable[..., Any]) -> None:
    here, home = folders
    (here / ".gprofng.rc").write_text("limit 1\naddpath /near\ndmetrics e.user\npathmap /a /b\n")
    (home / ".gprofng.rc").write_text("limit 9\naddpath /far\ndmetrics e.lock\npathmap /c /d\nprintmode |\n")
    done = er_print("-functions", "-metric_list", "-addpath", "/asked", "-pathmap", "/e", "/f", family)
    assert done.stderr == "".join(f"er_print: defaults of {folder}/.gprofng.rc hold\n" for folder in folders)
    assert done.stdout.count("\n") > 9
    assert '"<Total>"' in done.stdout
    assert "leaf" not in done.stdout.partition("Current")[0]
    assert "Current metrics: e.user:e.lock:e.%totalcpu:i.%totalcpu:name" in done.stdout
    assert "\t/near\n\t/far\n\t/asked\n" in done.stdout
    assert "\t`/a' -> `/b'\n\t`/c' -> `/d'\n\t`/e' -> `/f'\n" in done.stdout
    os.symlink(here / ".gprofng.rc", home / "again")
    (home / ".gprofng.rc").unlink()
    os.rename(home / "again", home / ".gprofng.rc")
    assert er_print("-functions", family).stderr.count("hold") == 1


def test_studios_name_counts_where_the_other_is_not(folders: tuple[Path, Path], family: Path,
                                                    er_print: Callable[..., Any]) -> None:
    (folders[0] / ".er.rc").write_text("dmetrics e.lock\ntabs functions:timeline\ntlmode lwp\nmobj_define a b\n")
    done = er_print("-metric_list", family)
    assert done.stdout.startswith("Current metrics: e.lock:")
    assert "warning" not in done.stderr
    (folders[0] / ".gprofng.rc").write_text("dmetrics e.wait\n")
    assert er_print("-metric_list", family).stdout.startswith("Current metrics: e.wait:e.%totalcpu")


def test_the_systems_file(folders: tuple[Path, Path], family: Path, er_print: Callable[..., Any],
                          tmp_path: Path) -> None:
    plain = er_print("-metric_list", family)
    assert (plain.stdout.split("\n")[0], plain.stderr) == (
        "Current metrics: e.%totalcpu:i.%totalcpu:name", "")
    (tmp_path / "gprofng.rc").write_text("dmetrics i.wait\ndmetrics ie!any\nlimit 2\n")
    other = er_print("-metric_list", "-functions", family, env=os.environ | {"GPROFNG_SYSCONFDIR": str(tmp_path)})
    assert other.stdout.startswith("Current metrics: i.wait:name\n")
    assert other.stderr == ""
    none = er_print("-metric_list", family, env=os.environ | {"GPROFNG_SYSCONFDIR": "/nowhere"})
    assert none.stdout == plain.stdout


def test_the_current_directory_may_have_been_deleted(folders: tuple[Path, Path], family: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    (folders[1] / ".gprofng.rc").write_text("dmetrics e.lock\n")
    folders[0].rmdir()
    assert command.run(["-metric_list", str(family)]) == 0
    assert capsys.readouterr().out.startswith("Current metrics: e.lock:")


@pytest.mark.parametrize(("line", "words"), [
    ("bogus x", "'bogus' is no command"), ("functions", "'functions' is no command"), ("metrics e.user", "'metrics'"),
    ("d x", "'d' is no command"), ("dmetrics", "dmetrics needs an argument"), ("dmetrics a.user", "'a.user'"),
    ("dmetrics e.lock i.user", "'i.user' is left out"), ("dsort d.user", "'d.user'"), ("name odd", "long, short"),
    ("limit many", "limit many"), ("viewmode odd", "user, expert, machine"), ("printmode odd", "printmode odd"),
    ("en_desc =(", "en_desc =("), ("en_desc odd", "on, off"), ("scc odd", "'odd' is not known"),
    ("object_hide all", "name the load objects"), ("indxobj_define Threads 1", "another name"),
    ("indxobj_define Mine (", "Mine"), ("pathmap /a", "pathmap"), ("sthresh 101", "sthresh 101"), ("\xff\0", ""),
    ("limit 1 2", "'2' cannot be understood"),
])
def test_what_is_wrong_is_one_line_and_the_others_hold(line: str, words: str, folders: tuple[Path, Path],
                                                       family: Path, er_print: Callable[..., Any]) -> None:
    (folders[0] / ".gprofng.rc").write_text(f"# mine\n\n{line}\ndmetrics e.lock\n", "latin-1")
    done = er_print("-metric_list", "-functions", family)
    assert done.returncode == 0
    assert done.stdout.startswith("Current metrics: e.lock:")
    path = folders[0] / ".gprofng.rc"
    said = done.stderr.splitlines()
    assert said[0] == f"er_print: defaults of {path} hold"
    assert len(said) == 2, said
    assert said[1].startswith(f"er_print: warning: {path}: line 3: ")
    assert words in said[1]


def test_a_file_that_cannot_be_read_is_said(folders: tuple[Path, Path], family: Path,
                                            er_print: Callable[..., Any]) -> None:
    (folders[0] / ".gprofng.rc").mkdir()
    (folders[1] / ".gprofng.rc").write_bytes(os.urandom(5003))
    done = er_print("-functions", family)
    assert done.returncode == 0
    assert "leaf" in done.stdout
    assert all(line.startswith("er_print: ") and line.isprintable() for line in done.stderr.splitlines())


def test_defaults_on_the_command_line(folders: tuple[Path, Path], family: Path, er_print: Callable[..., Any]) -> None:
    text = er_print("-dmetrics", "e.lock", "-dmetrics", "i.wait", "-dsort", "-i.any", "-metrics", "e.user",
                    "-metrics", "default", "-viewmode", "machine", family).stdout
    assert text.splitlines()[2:] == [
        "Current metrics: i.wait:e.lock:e.%totalcpu:i.%totalcpu:name",
        "Current Sort Metric: -Inclusive Wait CPU Time ( -i.wait )", "Viewmode set to machine"]


def test_descendants_that_do_not_count(both: Callable[..., tuple[list[str], list[str]]]) -> None:
    for how in ("off", "=_f1_x1", "=other|_f2"):
        ours, theirs = both("-en_desc", how, "-functions", "-calltree", "-experiment_list", "-processes")
        assert ours == theirs
        filtered, _ = both("-en_desc", how, "-filters", "1", "-functions")
        assert filtered[1:] == both("-en_desc", how, "-functions")[0]  # the reference reader forgets it here
    assert both("-en_desc", "off", "-en_desc", "on", "-functions")[0] == both("-functions")[0]


def test_entries_of_load_objects_alone(both: Callable[..., tuple[list[str], list[str]]]) -> None:
    for how in ("api", "hide", "show"):
        ours, theirs = both(f"-object_{how}", "lib.so", "-functions", "-object_list", "-calltree", "-object_list")
        begin = "Functions sorted by metric: Exclusive Total CPU Time"
        assert ours[ours.index(begin):] == theirs[theirs.index(begin):]


@pytest.mark.parametrize("kind", ["Experiment_IDs", "GCEvents", "Datasize", "Duration"])
def test_index_objects(kind: str, both: Callable[..., tuple[list[str], list[str]]]) -> None:
    ours, theirs = both("-indxobj", kind, f"-{kind}", "-ifreq", "-procstats")
    assert ours == theirs
    assert len(ours) > 5
