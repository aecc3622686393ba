"""What listings of source and instructions show: the words of ``scc``, ``dcc`` and ``cc``.

Compilers on Linux leave no commentary in what they compile, so its classes are only checked.
"""

from __future__ import annotations

from typing import NamedTuple

from collector.cli.commands.session import is_number
from collector.errors import UsageError

_CLASSES = ("basic", "version", "warn", "parallel", "query", "loop", "pipe", "inline", "memops", "fe", "codegen", "cf",
            "all", "none")
_SWITCHES = {"src": ("with_source", True), "nosrc": ("with_source", False), "hex": ("with_bytes", True),
             "nohex": ("with_bytes", False), "srcmetrics": None, "nosrcmetrics": None, "func": None, "nofunc": None}
_THRESHOLD = "threshold"


class Commentary(NamedTuple):
    """``threshold``: percent of the largest value that make a row hot."""

    threshold: int = 75
    with_source: bool = True
    with_bytes: bool = False


def with_commentary(known: Commentary, command: str, spec: str) -> Commentary:
    """What ``spec`` says: words with colons between them, each of which may be cut short. Raises UsageError."""
    for word in spec.lower().split(":"):
        name, sign, value = word.partition("=")
        choices = [*_CLASSES, *(_SWITCHES if command == "dcc" else ()), _THRESHOLD]
        switches = list(_SWITCHES) if command == "scc" else []  # of cc, those that are the others' business
        found = [one for one in [*choices, *switches] if one == name] or \
                [one for one in [*choices, *switches] if name and one.startswith(name)]
        if len(found) != 1:
            what = f"may be {' or '.join(found)}" if found else "is not known"
            raise UsageError(f"-{command} {spec}: {word!r} {what}; give some of {', '.join(choices)}")
        if found[0] == _THRESHOLD:
            known = with_threshold(known, f"{command} {_THRESHOLD}=", value if sign else "")
        elif switch := _SWITCHES.get(found[0]):
            known = known._replace(**{switch[0]: switch[1]})
    return known


def with_threshold(known: Commentary, command: str, percent: str) -> Commentary:
    """Another threshold. Raises UsageError."""
    if not is_number(percent) or int(percent) > 100:
        raise UsageError(f"-{command} {percent}: give percents, 0 to 100, of the largest value")
    return known._replace(threshold=int(percent))
