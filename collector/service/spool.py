"""Where experiments lie, and what is known of sessions; no name in it is a client's.

    SPOOL/sessions/ID.json      what a session is, for after a restart         the daemon's, 0600
    SPOOL/own/ID/ID.N.er        experiments recorded with the daemon's rights  the daemon's, 0700
    SPOOL/own/ID/.gone-ID.N.er  one that is being removed
    SPOOL/users/UID/ID/ID.N.er  experiments recorded with a user's rights      the user's, 0700

What lies below ``users/UID`` is the user's to change, symbolic links included. So the daemon itself makes and removes
nothing there: short-lived children do, with that user's rights; it only looks what there is and how large, and follows
no link.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from collector.errors import CollectorError, reason
from collector.linux.peers import Credentials
from collector.service.children import as_peer, run
from collector.service.peers import Rights

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = ".gone-"
_ENTRIES_MAX, _DEPTH_MAX = 200_000, 64
_PATH_MAX = 3000
_NUMBER, _USERS_NUMBER = re.compile("[1-9][0-9]*"), re.compile("[1-9][0-9]{0,8}")


class Spool:
    """The folders of one daemon, held by a lock."""

    def __init__(self, path: Path) -> None:
        """Makes what is missing. Raises CollectorError."""
        self.path = Path(os.path.abspath(path))
        if len(os.fsencode(self.path)) > _PATH_MAX:
            raise CollectorError(f"--spool {path}: the path is too long")
        try:
            for name, mode in (("", 0o711), ("own", 0o700), ("sessions", 0o700), ("users", 0o771)):
                (self.path / name).mkdir(exist_ok=True, parents=not name)
                os.chmod(self.path / name, mode)
            self._lock = os.open(self.path, _OPEN)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CollectorError(f"--spool {path}: another collectord has it; stop that, or name another folder"
                                 ) from None
        except OSError as err:
            raise CollectorError(f"--spool {path}: {reason(err)}; name a folder that this user may write") from None

    # -- places

    def folder(self, owner: Credentials, rights: Rights, session_id: str) -> Path:
        """Of a session."""
        if rights is Rights.DAEMON or owner.uid == os.geteuid():
            return self.path / "own" / session_id
        return self.path / "users" / str(owner.uid) / session_id

    def owner(self, owner: Credentials, folder: Path) -> Credentials:
        """Whose what lies there is: its session's owner's, or the daemon's."""
        return Credentials(os.geteuid(), os.getegid(), ()) if folder.is_relative_to(self.path / "own") else owner

    async def make(self, owner: Credentials, rights: Rights, session_id: str) -> Path:
        """Makes the session's folder. Raises CollectorError."""
        folder = self.folder(owner, rights, session_id)
        if folder.parent.name == "own":
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder
        if not folder.parent.is_dir():  # our group may write in users/, so that its owner can be the user
            await run(as_peer(owner, ["mkdir", "-m", "0700", "--", str(folder.parent)], gid=os.getegid()))
        await run(as_peer(owner, ["mkdir", "-p", "-m", "0700", "--", str(folder)]))
        return folder

    async def remove(self, owner: Credentials, path: Path) -> None:
        """Removes an experiment, a file of it, or a session's folder, with its owner's rights."""
        if path.is_relative_to(self.path / "own"):
            await asyncio.to_thread(_remove, path)  # there may be thousands of descendants in it
        else:
            with suppress(CollectorError):
                await run(as_peer(owner, ["rm", "-rf", "--one-file-system", "--", str(path)]))

    async def remove_empty(self, owner: Credentials, folder: Path) -> None:
        """Removes a session's folder, with its owner's rights; one that has something in it stays."""
        if folder.is_relative_to(self.path / "own"):
            with suppress(OSError):
                folder.rmdir()
        elif self.exists(folder):
            with suppress(CollectorError):
                await run(as_peer(owner, ["rmdir", "--", str(folder)]))

    async def sweep(self) -> None:
        """Removes what was being removed when the daemon before ended."""
        for path in (self.path / "own").glob(f"*/{_GONE}*"):
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    def found(self, session_id: str) -> list[tuple[int, str, float]]:
        """Run, name and latest change of the experiments that a session of the daemon's own has, whatever its facts
        say; by run."""
        name = re.compile(re.escape(session_id) + r"\.([1-9][0-9]{0,8})\.er")
        try:
            folder = self._opened(self.path / "own" / session_id)
        except OSError:
            return []
        try:
            return sorted((int(match[1]), entry, os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mtime)
                          for entry in os.listdir(folder) if (match := name.fullmatch(entry)))
        finally:
            os.close(folder)

    def size(self, path: Path) -> int:
        """Bytes that are taken below a path of the spool; 0 where there is nothing."""
        try:
            return sum(_sizes(self._opened(path)))
        except OSError:
            return 0

    def exists(self, path: Path) -> bool:
        """Whether there is such a folder, without a link on the way."""
        try:
            os.close(self._opened(path))
        except OSError:
            return False
        return True

    def has_file(self, path: Path) -> bool:
        """Whether there is such a regular file, without a link on the way."""
        try:
            folder = self._opened(path.parent)
            try:
                return stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
            finally:
                os.close(folder)
        except OSError:
            return False

    def _opened(self, path: Path) -> int:
        """A folder below ours, step by step, so that nothing on the way is a link. Raises OSError."""
        fd = os.dup(self._lock)
        for name in path.relative_to(self.path).parts:
            try:
                below = os.open(name, _OPEN, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def free_bytes(self) -> int:
        """What an ordinary user may still write on this disk."""
        return shutil.disk_usage(self.path).free

    # -- what is known of sessions

    def store(self, session_id: str, facts: dict[str, Any]) -> None:
        """Keeps the facts of a session; whole or not at all. Raises OSError."""
        path = self.path / "sessions" / f"{session_id}.json"
        draft = path.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(facts))
            file.flush()
            os.fsync(file.fileno())  # or the name may reach the disk before what is in it, where the machine dies
        os.replace(draft, path)

    def forget(self, session_id: str) -> None:
        """There is no such session any more."""
        with suppress(FileNotFoundError):
            (self.path / "sessions" / f"{session_id}.json").unlink()

    def stored(self) -> list[str]:
        """All sessions that there are facts of."""
        return sorted(path.stem for path in (self.path / "sessions").glob("*.json"))

    def facts(self, session_id: str) -> dict[str, Any]:
        """Of a session, as they were stored. Raises OSError, ValueError."""
        facts = json.loads((self.path / "sessions" / f"{session_id}.json").read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("not an object")
        return facts

    def latest(self, owner: Credentials) -> int:
        """The largest number of a session of which there is anything that its next one would meet; or 0."""
        ours = [*self.stored(), *os.listdir(self.path / "own")]
        return max([0, *(int(name) for name in ours if _NUMBER.fullmatch(name)),
                    *(int(name) for name in self._of_user(owner.uid) if _USERS_NUMBER.fullmatch(name))])

    def _of_user(self, uid: int) -> list[str]:
        """What lies in a user's folder, who may have put anything there."""
        try:
            folder = self._opened(self.path / "users" / str(uid))
        except OSError:
            return []
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in islice(entries, _ENTRIES_MAX)]
        finally:
            os.close(folder)


def _remove(path: Path) -> None:
    """Gone at once for whoever looks, and sooner or later from the disk."""
    gone = path.with_name(_GONE + path.name)
    try:
        path.rename(gone)
    except OSError:  # there is one of this name, or nothing to rename
        gone = path
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        gone.unlink()


def _sizes(folder: int, left: Iterator[object] | None = None, depth: int = 0) -> Iterator[int]:
    """Of the files below an open folder, which is closed; no link is followed. Whose folder it is may have made any
    number of others in it, side by side or one in the other: so many names are looked at, and so deep."""
    left = iter(range(_ENTRIES_MAX)) if left is None else left
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if next(left, None) is None:
                    return
                with suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry.stat(follow_symlinks=False).st_blocks * 512
                    elif depth < _DEPTH_MAX:
                        yield from _sizes(os.open(entry.name, _OPEN, dir_fd=folder), left, depth + 1)
    finally:
        os.close(folder)
