"""The command ``collectctl``: what a client asks of the daemon, and how the answers look."""

from __future__ import annotations

import getopt
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from collector import __version__
from collector.cli import streams
from collector.errors import CollectorError, UsageError, shown
from collector.service import protocol
from collector.service.client import Client, NoDaemon, pid_of, socket_path
from collector.wording import many

USAGE = """\
usage: collectctl [--socket PATH] [--json] COMMAND

  attach PID... [OPTIONS]            records running processes
  attach --unit NAME [OPTIONS]       the processes of a systemd unit, now and after each restart
  attach --cgroup PATH [OPTIONS]     those of a control group, such as /system.slice
  attach --command REGEX [OPTIONS]   those whose command line matches
                                     OPTIONS are those of collect: -p -S -t -L -F -A -C --engine --tree --aggregate,
                                     and --label NAME=VALUE
  list [--label NAME=VALUE]...       your sessions
  status ID                          one of them, and what it said
  pause ID, resume ID, sample ID     stops recording, goes on, takes an overview sample now
  stop ID                            ends it; the experiment stays
  fetch ID [--wait] [--last N]       its experiments as a tar archive, on standard output: collectctl fetch 1 | tar x;
                                     --wait: when it is over
  top [--every SECONDS]              the sessions, again and again
  doctor                             what is wrong
  reload                             has the configuration read again (root)
"""
_SHORT = "p:S:t:L:F:A:a:C:"
_ATTACH = ["unit=", "cgroup=", "command=", "label=", "engine=", "tree", "aggregate="]
_LOOK_S = 0.5
_OVER = ("stopped", "failed", "finished")
_CONTROLS = ("pause", "resume", "sample", "stop")
_OURS = frozenset({"--unit", "--cgroup", "--command", "--label"})

Answer = Callable[[Client, list[str], bool], int]


def run(argv: list[str]) -> int:
    """Runs the command with ``argv`` (without its name) and returns the exit status."""
    pairs, rest = _options(argv, "hV", ["socket=", "json", "help", "version"], anywhere=False)
    given = dict(pairs)
    if given.keys() & {"-V", "--version"}:
        print(f"collectctl {__version__}")
        return 0
    if given.keys() & {"-h", "--help"} or not rest:
        print(USAGE, end="")
        return 0 if given.keys() & {"-h", "--help"} else 2
    command, words = rest[0], rest[1:]
    if command not in _COMMANDS:
        raise UsageError(f"{command}: no such command; see collectctl --help")
    as_json = "--json" in given or "--json" in words
    words = [word for word in words if word != "--json"]
    path, words = _socket(words, given.get("--socket", socket_path()))
    try:
        with Client(path) as client:
            return _COMMANDS[command](client, words, as_json)
    except NoDaemon as err:
        if command == "doctor":
            print(f"wrong  {err}")
            return 1
        raise


def _socket(words: list[str], path: str) -> tuple[str, list[str]]:
    """The path that ``--socket PATH`` or ``--socket=PATH`` behind a command gives, or ``path``; and the other words."""
    for at, word in enumerate(words):
        if word.startswith("--socket="):
            return word.removeprefix("--socket="), words[:at] + words[at + 1:]
        if word == "--socket":
            if at + 1 == len(words):
                raise UsageError("--socket: give the path of the daemon's socket")
            return words[at + 1], words[:at] + words[at + 2:]
    return path, words


def _options(words: Sequence[str], short: str, long: list[str], *, anywhere: bool = True) -> tuple[
        list[tuple[str, str]], list[str]]:
    try:
        return (getopt.gnu_getopt if anywhere else getopt.getopt)(list(words), short, long)
    except getopt.GetoptError as err:
        raise UsageError(f"{err.msg}; see collectctl --help") from None


def _attach(client: Client, words: list[str], as_json: bool) -> int:
    pairs, rest = _options(words, _SHORT, _ATTACH)
    given = dict(pairs)
    options = [word for name, value in pairs if name not in _OURS
               for word in ([f"{name}={value}" if value else name] if name.startswith("--") else [name, value])]
    return _show(client.ask(protocol.Attach(
        version=1, pids=tuple(map(pid_of, rest)), unit=_text(given.get("--unit")), cgroup=_text(given.get("--cgroup")),
        command=_text(given.get("--command")), options=tuple(_sent(word) for word in options),
        labels=_labels(pairs))), as_json)


def _labels(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    labels = {}
    for name, value in pairs:
        if name == "--label":
            key, equals, text = value.partition("=")
            if not equals or not key:
                raise UsageError(f"--label {value}: give NAME=VALUE")
            labels[_sent(key)] = _sent(text)
    return labels


def _text(value: str | None) -> str | None:
    return None if value is None else _sent(value)


def _sent(value: str) -> str:
    """A word of the command line, if it can be sent."""
    if not value.isprintable() or shown(value) != value:
        raise UsageError(f"{shown(value)}: there are bytes in it that cannot be sent: give printable text")
    return value


def _list(client: Client, words: list[str], as_json: bool) -> int:
    pairs, rest = _options(words, "", ["label="])
    _no_more(rest)
    return _show(client.ask(protocol.List(version=1, labels=_labels(pairs))), as_json)


def _status(client: Client, words: list[str], as_json: bool) -> int:
    reply = client.ask(protocol.Status(version=1, id=_one(words)))
    if as_json or not isinstance(reply, protocol.Sessions):
        return _show(reply, as_json)
    for session in reply.sessions:
        print("\n".join(_details(session)))
    return 0


def _control(action: str) -> Answer:
    def control(client: Client, words: list[str], as_json: bool) -> int:
        return _show(client.ask(protocol.Control(version=1, id=_one(words), action=action)), as_json)  # type: ignore[arg-type]

    return control


def _fetch(client: Client, words: list[str], as_json: bool) -> int:
    pairs, rest = _options(words, "", ["last=", "wait"])
    given = dict(pairs)
    last = given.get("--last", "0")
    if not last.isascii() or not last.isdigit() or len(last) > 6:
        raise UsageError(f"--last {last}: give how many experiments")
    if sys.stdout.isatty():
        raise UsageError("fetch writes an archive: collectctl fetch ID | tar x, or > FILE.tar")
    sys.stdout.flush()
    session = _one(rest)
    if (state := _state(client, session)) not in _OVER:
        what = "waiting until it is over" if "--wait" in given else "this is what there is by now; --wait waits for it"
        streams.say(f"collectctl: session {session} is {state}: {what}")
    while "--wait" in given and _state(client, session) not in _OVER:
        time.sleep(_LOOK_S)
    client.fetch(protocol.Fetch(version=1, id=session, last=int(last)), sys.stdout.buffer.write)
    return 0


def _state(client: Client, session: str) -> str:
    reply = client.ask(protocol.Status(version=1, id=session))
    return reply.sessions[0].state if isinstance(reply, protocol.Sessions) else ""


def _top(client: Client, words: list[str], as_json: bool) -> int:
    pairs, rest = _options(words, "", ["every="])
    _no_more(rest)
    try:
        every_s = float(dict(pairs).get("--every", "2"))
    except ValueError:
        raise UsageError("--every: give seconds, from 0.2") from None
    for reply in client.watch(protocol.Top(version=1, every_s=every_s)):
        if sys.stdout.isatty() and not as_json:
            print("\x1b[H\x1b[J", end="")
        _show(reply, as_json)
        sys.stdout.flush()
    return 0


def _doctor(client: Client, words: list[str], as_json: bool) -> int:
    _no_more(words)
    reply = client.ask(protocol.Doctor(version=1))
    _show(reply, as_json)
    return int(isinstance(reply, protocol.Findings) and any(finding.wrong for finding in reply.findings))


def _reload(client: Client, words: list[str], as_json: bool) -> int:
    _no_more(words)
    return _show(client.ask(protocol.Reload(version=1)), as_json)


def _no_more(words: Sequence[str]) -> None:
    if words:
        raise UsageError(f"{shown(words[0])}: one word too many; see collectctl --help")


def _one(words: Sequence[str]) -> str:
    if len(words) != 1:
        raise UsageError("give the ID of a session; collectctl list has them")
    return _sent(words[0])


_COMMANDS: dict[str, Answer] = {
    "attach": _attach, "list": _list, "status": _status, "fetch": _fetch, "top": _top, "doctor": _doctor,
    "reload": _reload, **{action: _control(action) for action in _CONTROLS}}

# -- how answers look


def _show(reply: protocol.AnyReply, as_json: bool) -> int:
    if as_json:
        print(protocol.encoded(reply).decode(), end="")
        return 0
    match reply:
        case protocol.Started(id=session, message=message):
            print(f"session {session}: {shown(message)}")
        case protocol.Sessions():
            _table(reply)
        case protocol.Findings(findings=findings):
            for finding in findings:
                print(f"{'wrong' if finding.wrong else 'ok':5}  {shown(finding.text)}")
        case protocol.Done(message=message):
            print(shown(message))
        case _:
            raise CollectorError("the daemon answered something that does not belong here")
    return 0


def _table(reply: protocol.Sessions) -> None:
    rows = [("ID", "STATE", "USER", "CPU %", "OWN %", "RUNS", "SAMPLES", "MB", "TARGET"),
            *(_row(session) for session in reply.sessions)]
    widths = [max(len(row[column]) for row in rows) for column in range(8)]
    for row in rows:
        print("  ".join([*(f"{cell:<{width}}" if column < 3 else f"{cell:>{width}}"
                           for column, (cell, width) in enumerate(zip(row, widths, strict=False))), row[8]]).rstrip())
    if reply.stretched > 1:
        print(f"intervals are {reply.stretched:.1f} times what is configured, to stay within the budget")


def _row(session: protocol.Session) -> tuple[str, ...]:
    more = f" ({shown(session.message)})" if session.message else ""
    return (session.id, session.state, str(session.uid), f"{100 * session.share:.1f}",
            f"{100 * session.own_share:.1f}", str(session.n_runs), str(session.n_samples),
            f"{session.n_bytes / 1e6:.1f}", f"{shown(session.target)}{more}")


def _details(session: protocol.Session) -> Iterable[str]:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(session.began_s))
    yield f"session {session.id}: {session.state}{f', {shown(session.message)}' if session.message else ''}"
    yield f"  {shown(session.target)}, for user {session.uid}, since {began}, every {session.interval}"
    for name, value in sorted(session.labels.items()):
        yield f"  {shown(name)}={shown(value)}"
    yield f"  {many(session.n_runs, 'run')}, {many(session.n_samples, 'sample')}, {session.n_bytes / 1e6:.1f} MB"
    if session.n_waiting or session.n_refused:
        waiting = many(session.n_waiting, "experiment waits", "experiments wait")
        yield f"  {waiting} to be handed over, {many(session.n_refused, 'was', 'were')} refused"
    for name in session.experiments:
        yield f"  {os.path.join(session.directory, name)}"
    for line in session.said:
        yield f"  | {shown(line)}"
