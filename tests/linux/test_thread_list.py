"""Threads of a process that come and go: those that stay are in every list."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from collector.linux.thread_list import threads_of

# Every other thread ends soon, and those born behind it stay for a while.
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *goes(void *x) {
    usleep(rand() % 20000);
    return x;
}
static void *stays(void *x) {
    usleep(60000);
    return x;
}
int main(void) {
    pthread_t threads[200];
    puts("begun");
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 200; i++) pthread_create(threads + i, NULL, i % 2 ? stays : goes, NULL);
        for (int i = 0; i < 200; i++) pthread_join(threads[i], NULL);
    }
}
"""


# So many threads stay, and no other ones come.
MANY = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *stays(void *x) {
    pause();
    return x;
}
int main(int argc, char **argv) {
    pthread_t thread;
    for (int i = atoi(argv[1]); i > 0; i--)
        if (pthread_create(&thread, NULL, stays, NULL)) return 1;
    puts("begun");
    fflush(stdout);
    pause();
}
"""


@pytest.fixture
def begun(need: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., int]]:
    """``begun(source, arguments ...)``: the process of a program that has said so."""
    with ExitStack() as stack:
        def begin(source: str, *arguments: object) -> int:
            path = tmp_path / "program"
            path.with_suffix(".c").write_text(source)
            subprocess.run([need("gcc", "gcc"), "-pthread", "-o", path, path.with_suffix(".c")], check=True)
            process = stack.enter_context(subprocess.Popen([path, *map(str, arguments)], stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            return process.pid

        yield begin


def test_who_lives_before_and_after_is_in_the_list(begun: Callable[..., int]) -> None:
    """Of the lists of ``os.listdir`` some five in 3,000 are without one. So many are compared in which there are
    threads that stay, and more until three times two hundred have come."""
    pid = begun(PROGRAM)
    before, list_, n_compared, seen = set[int](), threads_of(pid), 0, set[int]()
    while n_compared < 3000 or len(seen) < 600:
        after = threads_of(pid)
        assert before & after <= list_
        n_compared += len(before & after) > 1
        before, list_ = list_, after
        seen |= after


@pytest.mark.parametrize("n_others", [0, 1, 70, 2000])
def test_all_are_in_the_list(n_others: int, begun: Callable[..., int]) -> None:
    pid = begun(MANY, n_others)
    assert sorted(threads_of(pid)) == sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    assert len(threads_of(pid)) == 1 + n_others


def test_a_process_that_is_gone_has_no_list() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    with pytest.raises(FileNotFoundError):
        threads_of(process.pid)
