"""er_print without a command: commands from a terminal, with history and completion, or from what is piped into it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from collector.cli.commands.registry import COMMANDS, QUIT, find_command
from collector.cli.commands.session import Session
from collector.errors import CollectorError, UsageError

_PROMPT = "(er_print) "
_HISTORY = ".er_print_history"
_HISTORY_MAX = 1000
_ANY_BYTES = "surrogateescape"  # as names of files are


def converse(session: Session, carry_out: Callable[[Session, str], None]) -> None:
    """Carry out line after line until the end; what is wrong with one is said, and the next one comes."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors != _ANY_BYTES:  # else it has been read from
        sys.stdin.reconfigure(errors=_ANY_BYTES)
    n_lines = 0
    session.is_asked = is_terminal
    typed = _typed() if is_terminal else sys.stdin or ()  # there is none where the descriptor was closed
    for number, line in enumerate(whole(typed), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        n_lines += 1
        if _is_end(words[0].removeprefix("-")):
            break
        try:
            carry_out(session, line)
        except CollectorError as err:
            if is_terminal:
                print(f"er_print: {err}", file=sys.stderr)
            else:
                session.failed(f"standard input: line {number}", err)
        session.out.flush()
    if not n_lines and not is_terminal:
        raise UsageError("nothing to print; give a command such as -functions (er_print --help lists them)")


def _is_end(word: str) -> bool:
    with suppress(UsageError):
        return find_command(word, word).act == QUIT
    return False


def whole(typed: Iterable[str]) -> Iterator[str]:
    """Lines; one that ends with a backslash is empty and goes on in the next."""
    begun = ""
    for line in typed:
        begun += line.removesuffix("\n")
        if begun.endswith("\\"):
            begun = begun[:-1]
            yield ""
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _typed() -> Iterator[str]:
    """The lines that somebody types; Control-C empties one, Control-D ends."""
    with suppress(ImportError):
        _prepare()
    while True:
        try:
            yield input(_PROMPT)
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def _prepare() -> None:
    """History from the last time, and commands by the tabulator."""
    import atexit
    import readline

    file = Path.home() / _HISTORY
    with suppress(OSError):
        readline.read_history_file(file)

    def save() -> None:
        with suppress(OSError):
            readline.set_history_length(_HISTORY_MAX)
            readline.write_history_file(file)

    atexit.register(save)
    names = [f"{name} " for command in COMMANDS for name in (command.name, command.alias) if name]

    def complete(text: str, number: int) -> str | None:
        found = [name for name in names if name.startswith(text)] if not readline.get_begidx() else []
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
