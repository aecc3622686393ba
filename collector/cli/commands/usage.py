"""What commands there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collector.cli.commands.registry import COMMANDS, OPTIONS
from collector.cli.commands.session import Session, lines

if TYPE_CHECKING:
    from collector.report.documents import Document


def help(_session: Session) -> Document:
    """The commands of er_print."""
    return lines("help", usage())


def usage() -> list[str]:
    """How er_print is called, and its commands, as lines."""
    width = max(len(c.name) + len(c.argument) for c in COMMANDS) + 4
    found = ["Usage: er_print COMMAND... EXPERIMENT...", "",
             "Prints reports of experiments (NAME.er) and experiment groups (NAME.erg). Commands may be cut short",
             "as long as they stay unique. Without a command they are read from the terminal, or from what is piped",
             "in.", ""]
    for command in COMMANDS:
        found.append(f"  {f'-{command.name} {command.argument}'.ljust(width)}{command.help}")
        found += (f"  {f'   {option}'.ljust(width)}{OPTIONS[option]}" for option in command.options)
    return [*found, f"  {'-'.ljust(width)}commands from the terminal, or from what is piped in",
            f"  {'--help'.ljust(width)}this text", f"  {'--version'.ljust(width)}the version", "",
            "SPEC is METRIC[:METRIC]...; METRIC is e (exclusive), i (inclusive) or both, then . (seconds) and %",
            "(share), then a name: user system trap textpfault datapfault kernelpfault lock sleep wait stop total",
            "totalcpu; latency (CPU time divided by the threads of the process that ran at that moment); or size,",
            "address, name. Example: -metrics e.user:i.%total:name -sort i.total -functions",
            "Of several functions of one name, # says which: by load object and address, from 1."]
