"""The command ``collectord``: the daemon, in the foreground, with systemd or without."""

from __future__ import annotations

import asyncio
import getopt
import os

from collector import __version__
from collector.cli import streams
from collector.errors import UsageError
from collector.service import notify
from collector.service.client import DEFAULT_SOCKET

SPOOL = "/var/lib/collectord"
_LONG = ["socket=", "spool=", "config=", "only=", "metrics=", "check", "help", "version"]

USAGE = f"""\
usage: collectord [--socket PATH] [--spool DIR] [--config FILE] [--only NAME] [--metrics WHERE]

Records what it is told to by collectctl and by its configuration, all the time, within a budget.

  --socket PATH   where collectctl finds it (default {DEFAULT_SOCKET}, or the socket that systemd hands over)
  --spool DIR     where experiments lie (default {SPOOL})
  --config FILE   the configuration; SIGHUP or `collectctl reload` reads it again
  --only NAME     records this target of the configuration alone, and does not serve the metrics that it names
  --metrics WHERE serves metrics on this path, or port of this machine, whatever the configuration says
  --check         reads the configuration, says what is wrong in it, and ends
  --version       print the version
  --help          print this text
"""


def run(argv: list[str]) -> int:
    """Runs the command with ``argv`` (without its name) and returns the exit status."""
    try:
        pairs, rest = getopt.getopt(argv, "hV", _LONG)
    except getopt.GetoptError as err:
        raise UsageError(f"{err.msg}; see collectord --help") from None
    options = dict(pairs)
    if rest:
        raise UsageError(f"{rest[0]}: collectord takes options only; see collectord --help")
    if options.keys() & {"-h", "--help"}:
        print(USAGE, end="")
        return 0
    if options.keys() & {"-V", "--version"}:
        print(f"collectord {__version__}")
        return 0
    config = options.get("--config")
    from collector.service.daemon import Daemon, Settings, read

    if "--check" in options:
        if config is None:
            raise UsageError("--check: give --config FILE")
        read(config, options.get("--only"))
        return 0
    os.umask(0o077)

    settings = Settings(options.get("--socket", DEFAULT_SOCKET), options.get("--spool", SPOOL), config,
                        options.get("--only"), options.get("--metrics", ""))
    asyncio.run(Daemon(settings, _say).serve())
    return 0


def _say(level: str, text: str) -> None:
    """With the prefix by which the journal knows the level, where the journal reads it."""
    prefix = notify.PREFIXES[level] if "JOURNAL_STREAM" in os.environ else "collectord: "
    streams.say(f"{prefix}{text}")
