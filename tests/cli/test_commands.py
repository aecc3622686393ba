"""The table of commands: whole, without doubles, and quick to ask."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.cli.commands.registry import COMMANDS, QUIT, SCRIPT, Command, find_command

CARRIED_OUT = [command for command in COMMANDS if command.act not in (SCRIPT, QUIT)]


@pytest.mark.parametrize("command", CARRIED_OUT, ids=lambda command: command.name)
def test_every_entry_has_a_function_that_takes_what_it_says(command: Command) -> None:
    parameters = list(inspect.signature(command.function()).parameters.values())[1:]
    options = {option.split()[0].removeprefix("--") for option in command.options}
    given = [each for each in parameters
             if each.name not in options and each.default in (inspect.Parameter.empty, "all", "")]
    assert options <= {each.name for each in parameters}
    assert len(given) == len(command.argument.split())
    assert all((each.default is inspect.Parameter.empty) != word.startswith("[")
               for each, word in zip(given, command.argument.split(), strict=True))


def test_every_name_is_there_once() -> None:
    names = [name for command in COMMANDS for name in (command.name, command.alias) if name]
    assert len(names) == len(set(names))
    assert all(find_command(name, name) for name in names)


def test_reading_the_command_line_imports_no_arrays() -> None:
    code = "import sys, collector.cli.er_print; print({'numpy', 'collector.report'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_reading_starts_no_threads() -> None:
    """numpy's linear algebra would start one for each CPU, which spins."""
    program = ("import os, sys; from collector.cli.main import er_print; sys.argv[1:] = ['-functions', '/nowhere.er'];"
               "er_print(); import numpy; print(len(os.listdir('/proc/self/task')))")
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("command", ["er_print", "er_html", "er_export"])
def test_readers_start_where_no_limit_can_be_changed(command: str, workload: Callable[..., Path]) -> None:
    program = f"import sys; from collector.cli import main; sys.argv[1:] = ['/nowhere.er']; main.{command}()"
    done = subprocess.run([workload("fixedlimits"), sys.executable, "-c", program], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_readers_may_open_as_many_files_as_their_user_may() -> None:
    for command in ("er_print", "er_html", "er_export"):
        program = ("import resource, sys; from collector.cli import main; limit = resource.RLIMIT_NOFILE;"
                   "resource.setrlimit(limit, (64, resource.getrlimit(limit)[1])); sys.argv[1:] = ['/nowhere.er'];"
                   f"main.{command}(); soft, hard = resource.getrlimit(limit); print(64 < soft == hard)")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"
