"""Commands that the tests start by a fork are as those that are executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import prefork
import pytest

COLLECT = str(Path(sys.executable).with_name("collect"))
SEES = r"""
cat; pwd; echo "$WHAT"; ls -l /proc/self/fd | grep -c '[0-9] ->'; echo "$@" >&2
grep -E '^(Sig[BIC]|Umask|Cpus_allowed_list)' /proc/self/status
read -r _ _ _ parent group _ < /proc/$PPID/stat; echo $parent; test $group = $PPID; echo own group $?
exit 7
"""


@pytest.mark.parametrize("new_session", [False, True])
def test_what_a_program_sees_of_its_start(new_session: bool, tmp_path: Path, perf_allowed: None) -> None:
    said = []
    for start in (prefork.run, subprocess.run):
        folder = tmp_path / start.__module__
        folder.mkdir()
        command = [COLLECT, "-A", "off", "-o", "x.er", "sh", "-c", SEES, "sh", "a b", "\udcff*"]
        done = start(command, input=b"in\n", capture_output=True, cwd=folder,
                     env=os.environ | {"WHAT": "it sees"}, start_new_session=new_session)
        assert (folder / "x.er" / "log.xml").exists()
        said.append((done.returncode, done.stdout.replace(bytes(folder), b"."), done.stderr.partition(b"collect: ")[0]))
    forked, executed = said
    assert forked == executed
    lines = forked[1].decode().splitlines()
    assert lines[:3] == ["in", ".", "it sees"]
    assert lines[-2:] == [str(os.getpid()), f"own group {0 if new_session else 1}"]
    assert (forked[0], forked[2]) == (7, b"a b \xff*\n")


def test_what_is_not_plain_is_executed(tmp_path: Path) -> None:
    prefork.end()  # an earlier test may have changed what a child inherits, such as limits
    assert prefork.is_plain([COLLECT], {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                                        "stderr": subprocess.PIPE, "cwd": tmp_path})
    ours, theirs = os.openpty()
    for options in ({"env": os.environ | {"PYTHONMALLOC": "debug"}}, {"preexec_fn": os.getpid}, {"stderr": theirs},
                    {"user": 1}, {"umask": 0o77}):
        assert not prefork.is_plain([COLLECT], options)
    os.close(ours)
    os.close(theirs)
    assert not prefork.is_plain(["/bin/true"], {})
    assert not prefork.is_plain(COLLECT, {})
    nice = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(nice)})
    try:
        assert len(nice) == 1 or not prefork.is_plain([COLLECT], {})
    finally:
        os.sched_setaffinity(0, nice)
