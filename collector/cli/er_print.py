"""``er_print``: the reports of experiments as text, in the language of the Performance Analyzer's er_print.

Commands are carried out from left to right, so what is set (``-metrics``, ``-limit``, ``-outfile``) holds for what
follows. Arguments that are no commands are experiments, wherever they stand; they are opened before the first command.
An error of the command line ends it; one of a script's line is said, and the next line is carried out.
What the commands do is in the package ``commands``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from collector import __version__
from collector.cli.commands.registry import (
    COMMANDS,
    NAME,
    QUIT,
    SCRIPT,
    TYPED,
    Command,
    find_command,
    is_option,
    misplaced,
)
from collector.cli.commands.session import ALL, Session, is_number
from collector.cli.progress import Working
from collector.errors import CollectorError, UsageError

if TYPE_CHECKING:
    from collector.report.documents import Document

__all__ = ["COMMANDS", "UsageError", "read_defaults", "run"]

_SCRIPTS_MAX = 16  # within each other
_TYPED = Command("-", "", "", TYPED)
_REFUSED = Command("", "", "", "")  # a line of a script that cannot be understood
_WORD = re.compile(r'"([^"]*)"(?!\S)|(\S+)')  # in a line; one in double quotes may have blanks in it


class Call(NamedTuple):
    """A command of the command line, with what it was given.

    ``where``: the line of a script that it stands in. ``refusal``: why that cannot be understood. ``left_out``: what
    is said of words that the command does not take.
    """

    command: Command
    arguments: list[str]
    options: dict[str, str]
    where: str = ""
    refusal: CollectorError | None = None
    left_out: str = ""


def run(argv: list[str]) -> int:
    """Carry out the command line; the exit status. Raises CollectorError."""
    if not argv or any(argument in ("--help", "-h", "-help") for argument in argv):
        _print_help()
        return 0 if argv else 2
    if any(argument in ("--version", "-V", "-version") for argument in argv):
        print(f"er_print {__version__}")
        return 0
    calls, experiments = _parsed(argv)
    session = Session(experiments)
    try:
        with Working("opening experiments"):
            session.founders  # noqa: B018 - errors of experiments come first
        read_defaults(session, "er_print")
        if calls:
            carry_out(session, calls)
        else:
            _converse(session)
    finally:
        session.end()
        _warn(session)
    return session.status


def read_defaults(session: Session, called: str) -> None:
    """What files of defaults say: where files are looked for, which columns are shown, and so on; ``called``: the
    command that reads them."""
    from collector.cli.rc_files import Defaults

    def carry_out_silently(line: str) -> None:
        for call in _line_calls(line, ()):
            if call.left_out:
                raise UsageError(call.left_out)
            call.command.function()(session, *call.arguments, **call.options)

    Defaults(session, carry_out_silently, called).read()


def _converse(session: Session) -> None:
    """Commands from the terminal, or from what is piped into it."""
    from collector.cli.commands.interactive import converse

    converse(session, lambda session, line: carry_out(session, _line_calls(line, ())))


def carry_out(session: Session, calls: Sequence[Call]) -> None:
    """The commands, one after the other; what they say is printed. CollectorError of any but a script's line."""
    for call in calls:
        if call.command is _TYPED:
            _converse(session)
            continue
        if call.command.act == QUIT:
            break
        try:
            _carry_out(session, call)
        except CollectorError as err:
            if not call.where:
                raise
            session.failed(call.where, err)


def _carry_out(session: Session, call: Call) -> None:
    if call.refusal is not None:
        raise call.refusal
    if call.left_out:
        session.tell(f"{call.where}: {call.left_out}" if call.where else call.left_out)
    what = f"-{call.command.name}"
    with Working(what):
        documents = iter(_documents(call.command.function()(session, *call.arguments, **call.options)))
    while True:
        with Working(what):
            document = next(documents, None)
        if document is None:
            break
        session.show(document)


def _documents(found: Document | Iterable[Document] | None) -> Iterable[Document]:
    if found is None:
        return ()
    return found if isinstance(found, Iterable) else (found,)


def _warn(session: Session) -> None:
    """What was found wrong with the experiments, and how much of them was skipped."""
    from collector.experiment.names import shown

    for problem in session.problems():
        print(f"er_print: warning: {shown(problem)}", file=sys.stderr)


def _parsed(argv: Sequence[str], scripts: tuple[str, ...] = ()) -> tuple[list[Call], list[str]]:
    """Commands with their arguments, and the rest: experiments."""
    calls: list[Call] = []
    experiments: list[str] = []
    waiting = list(argv)[::-1]
    while waiting:
        word = waiting.pop()
        if word == "-":
            calls.append(Call(_TYPED, [], {}))
            continue
        if not word.startswith("-"):
            experiments.append(word)
            continue
        if is_option(word.partition("=")[0]):
            _set_option(calls, word, waiting)
            continue
        call = _call(find_command(word[1:], word), word, waiting)
        if call.command.act == SCRIPT:
            calls += script_calls(call.arguments[0], scripts)
        else:
            calls.append(call)
    return calls, experiments


def _call(command: Command, word: str, waiting: list[str]) -> Call:
    """``command`` with what is its own of the words behind it, the next one last. UsageError."""
    call = Call(command, [], {})
    may_be = _is_aggregation if command.argument == NAME else is_number
    words = command.argument.split()
    call.arguments.extend(_value(word, wanted, waiting) for wanted in words if not wanted.startswith("["))
    while waiting:
        name = waiting[-1].partition("=")[0]
        if command.value_of(name):
            _set_option([call], waiting.pop(), waiting)
        elif len(call.arguments) < len(words) and (may_be(waiting[-1]) or (name == ALL and ALL in _also(words))):
            call.arguments.append(waiting.pop())
        else:
            break
    return call


def _set_option(calls: Sequence[Call], word: str, waiting: list[str]) -> None:
    """Gives an option to the last command that has one of that name. UsageError."""
    name, sign, value = word.partition("=")
    for call in reversed(calls):
        wanted = call.command.value_of(name)
        if wanted:
            call.options[name.removeprefix("--")] = value if sign else _value(name, wanted, waiting)
            return
    raise misplaced(name)


def _also(words: Sequence[str]) -> str:
    """What may be left out, with the word for everything where there is one."""
    return words[-1] + (ALL if words[-1] == NAME else "")


def _value(word: str, wanted: str, waiting: list[str]) -> str:
    if not waiting:
        raise UsageError(f"{word} needs an argument: {wanted}")
    return waiting.pop()


def _is_aggregation(word: str) -> bool:
    """Whether it may be the name of one; those of experiments and groups have a dot in them."""
    return word.removeprefix("@").isidentifier()


def script_calls(path: str, outer: tuple[str, ...]) -> list[Call]:
    """The commands of a file, one a line; empty lines and those that begin with # say nothing. UsageError of the file,
    not of its lines.

    ``outer``: the scripts that are being read, this one among their commands.
    """
    from collector.cli.commands.interactive import whole

    try:
        file = os.path.realpath(path)
        if file in outer:
            raise UsageError(f"-script {path}: the script runs itself; take the command out of {outer[-1]}")
        if len(outer) >= _SCRIPTS_MAX:
            raise UsageError(f"-script {path}: more than {_SCRIPTS_MAX} scripts within each other")
        lines = Path(path).read_text("utf-8", "surrogateescape").splitlines()
    except (OSError, ValueError) as err:
        raise UsageError(f"-script {path}: {getattr(err, 'strerror', None) or err}") from err
    found: list[Call] = []
    for number, line in enumerate(whole(lines), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            where = f"-script {path}: line {number}"
            try:
                calls = _line_calls(line, (*outer, file))
            except UsageError as err:
                calls = [Call(_REFUSED, [], {}, refusal=err)]
            found += [call if call.where else call._replace(where=where) for call in calls]
            if found and found[-1].command.act == QUIT:
                return found[:-1]
    return found


def _line_calls(line: str, scripts: tuple[str, ...]) -> list[Call]:
    """The command of a line, its dash left out or not."""
    from collector.cli.rc_files import without_remark

    words = _words(without_remark(line))
    words[0] = "-" + words[0].removeprefix("-")
    if len(words) == 1 and (command := find_command(words[0][1:], words[0])).current:
        return [Call(command._replace(argument="", act=command.current), [], {})]
    found, rest = _parsed(words, scripts)
    left_out = f"{words[0]}: {' '.join(rest)!r} cannot be understood" if rest else ""
    return [*found[:-1], *(call._replace(left_out=left_out) for call in found[-1:])]


def _words(line: str) -> list[str]:
    """The words of a script's line; an expression, which comes last, is all that is left of it. Raises UsageError."""
    words = [found[1] if found[2] is None else found[2] for found in _WORD.finditer(line)]
    try:
        wanted = find_command(words[0].removeprefix("-"), words[0]).argument.split()
    except UsageError:
        return words
    if wanted[-1:] != ["EXPR"]:
        return words
    parts = line.split(maxsplit=len(wanted))
    quoted = len(parts) > len(wanted) and parts[-1].strip()
    if quoted and len(quoted) > 1 and quoted[0] == quoted[-1] and quoted[0] in "'\"" and quoted[0] not in quoted[1:-1]:
        parts[-1] = quoted[1:-1]
    return parts


def _print_help() -> None:
    from collector.cli.commands.usage import usage

    print("\n".join(usage()))
