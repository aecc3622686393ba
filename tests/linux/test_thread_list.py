"""Threads of a process that come and go: those that stay are in every list."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
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


@pytest.fixture
def pid(need: Callable[..., Any], tmp_path: Path) -> Iterator[int]:
    """Of the program above."""
    (tmp_path / "coming.c").write_text(PROGRAM)
    subprocess.run([need("gcc", "gcc"), "-pthread", "-o", tmp_path / "coming", tmp_path / "coming.c"], check=True)
    with subprocess.Popen([tmp_path / "coming"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield process.pid
        process.kill()


def test_who_lives_before_and_after_is_in_the_list(pid: int) -> None:
    """Of the lists of ``os.listdir`` some five in 3,000 are without one."""
    lists = [threads_of(pid) for _ in range(3000)]
    for before, list_, after in zip(lists, lists[1:], lists[2:], strict=False):
        assert before & after <= list_
    assert len(set.union(*lists)) > len(lists[0])
    assert len(set.intersection(*lists[:5])) > 1


def test_a_process_of_one_thread_and_one_that_is_gone() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        assert threads_of(process.pid) == {process.pid}
    with pytest.raises(FileNotFoundError):
        threads_of(process.pid)


def test_more_threads_than_fit_into_a_page_are_all_there(need: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "many.c").write_text(PROGRAM.replace("usleep(60000)", "pause()").replace("rand() % 20000", "0")
                                     .replace("200", "2000"))
    subprocess.run([need("gcc", "gcc"), "-pthread", "-o", tmp_path / "many", tmp_path / "many.c"], check=True)
    with subprocess.Popen([tmp_path / "many"], stdout=subprocess.DEVNULL) as process:
        while len(os.listdir(f"/proc/{process.pid}/task")) < 1001:
            assert process.poll() is None
        assert len(threads_of(process.pid)) >= 1001
        process.kill()
