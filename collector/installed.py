"""The commands of this installation, as other processes run them: whatever PATH says, with this interpreter."""

from __future__ import annotations

import sys


def command(name: str, *, is_isolated: bool = False) -> list[str]:
    """The first words of a command line that runs ``name``, an entry point of ``cli.main``; its arguments follow.

    The folder that it is run in is no place for modules (``-P``). ``is_isolated``: nor are those that the environment
    and the user's home name (``-I``), for who runs it with another one's environment.
    """
    program = f"import sys; from collector.cli.main import {name}; sys.argv[0] = {name!r}; sys.exit({name}())"
    return [sys.executable, "-I" if is_isolated else "-P", "-c", program]
