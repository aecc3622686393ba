"""Where files are looked for: load objects, their debug files and sources.

In this order: copies in the founder's archives; where ``pathmap`` leads; what ``setpath`` and ``addpath`` name (of a
folder, the file of that base name in it; ``$expts``: the folders of the experiments); the path that was recorded; and,
last, the default search path ``$expts:.``. gprofng takes the default path before the recorded one, and so any file of
that name in the current directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from collector.errors import UsageError

EXPERIMENTS = "$expts"
_DEFAULT = (EXPERIMENTS, ".")


@dataclass(frozen=True)
class Places:
    """``path``: folders that were asked for; ``last``: those that are searched when all else failed.

    ``maps``: (prefix, what takes its place). ``debug_files``: whether separate ones are read. ``experiments``: folders.
    ``archives``: folders with copies like those in an experiment's archives.
    """

    path: tuple[str, ...] = ()
    last: tuple[str, ...] = _DEFAULT
    maps: tuple[tuple[str, str], ...] = ()
    debug_files: bool = True
    archives: tuple[str, ...] = ()
    experiments: tuple[str, ...] = field(default=(), compare=False)

    @property
    def search_path(self) -> tuple[str, ...]:
        """The folders as they were given."""
        return (*self.path, *self.last)

    @property
    def folders(self) -> list[str]:
        """What was asked for, in folders."""
        return self._expanded(self.path)

    def with_path(self, text: str) -> Places:
        """With the folders of ``text``, between colons, and no others. Raises UsageError."""
        return replace(self, path=_folders("setpath", text), last=())

    def with_more(self, text: str) -> Places:
        """With the folders of ``text`` as well. Raises UsageError."""
        return replace(self, path=(*self.path, *_folders("addpath", text)))

    def with_map(self, old: str, new: str) -> Places:
        """With one more prefix of paths that is replaced. Raises UsageError."""
        pair = old.rstrip("/"), new.rstrip("/")
        if pair[0] == pair[1] or pair in self.maps:
            raise UsageError(f"pathmap {old} {new}: " + (
                "that changes nothing" if pair[0] == pair[1] else "is known already"))
        return replace(self, maps=(*self.maps, pair))

    def asked(self, recorded: str) -> list[str]:
        """Where a file that was at ``recorded`` may be by what was asked for."""
        name = os.path.basename(recorded)
        return [*self._mapped(recorded), *(os.path.join(folder, name) for folder in self._expanded(self.path))]

    def of(self, recorded: str) -> list[str]:
        """All paths at which it may be, the likeliest first. Not whether it is there."""
        last = [os.path.join(folder, os.path.basename(recorded)) for folder in self._expanded(self.last)]
        return list(dict.fromkeys([*self.asked(recorded), recorded, *last]))

    def _mapped(self, recorded: str) -> list[str]:
        return [new + recorded[len(old):] for old, new in self.maps if recorded.startswith(f"{old}/")]

    def copies(self, archives: str, copy: str) -> list[str]:
        """Where a copy of that name may be: in an experiment's own archives, else in others."""
        return [os.path.join(folder, copy) for folder in (archives, *self.archives)]

    def _expanded(self, path: tuple[str, ...]) -> list[str]:
        return [folder for one in path for folder in (self.experiments if one == EXPERIMENTS else (one,))]


def _folders(command: str, text: str) -> tuple[str, ...]:
    folders = tuple(part for part in text.split(":") if part)
    if not folders:
        raise UsageError(f"{command} {text}: give folders, with colons between them")
    return folders
