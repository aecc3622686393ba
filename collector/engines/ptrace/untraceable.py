"""Programs that the tracer detaches from as they begin: tracing would change what they do. Standard library only."""

from __future__ import annotations

from collector.linux import programs, ptrace

_LEAKS = ("is not recorded: its leak check fails in a process that is traced; ASAN_OPTIONS=detect_leaks=0 leaves that "
          "out")
_UNKNOWN = "lacks the privileges of its file, if that has any, since it is traced: we may not read it"
_DEBUGGER = "is not recorded: it traces what it starts itself, which only one can"


class Untraceable:
    """Which programs those are."""

    def __init__(self, inspector: ptrace.Inspector) -> None:
        self._inspector = inspector
        self._withholds = not programs.may_trace_the_privileged()

    def begun(self, pid: int) -> tuple[str, bool]:
        """Why a process that stands at its exec should not be traced, if it should not, and whether it is traced no
        more. Where it still is, that is too late: it lacks what it should have."""
        try:
            if self._withholds and (kind := programs.withheld_privilege(pid)):
                return self._give_back(pid, kind)
            why = _DEBUGGER if programs.is_debugger(pid) else _LEAKS if programs.checks_leaks(pid) else ""
        except PermissionError:  # its file may not be read
            return (_UNKNOWN if self._withholds else ""), False
        except OSError:  # it is gone
            return "", False
        if why:
            ptrace.detach(pid)
        return why, bool(why)

    def _give_back(self, pid: int, kind: str) -> tuple[str, bool]:
        """The kernel has withheld a program's privileges. Begun once more, untraced, it has them."""
        try:
            if ptrace.execute_again(self._inspector, pid):
                return f"is not recorded: it would lose its privileges ({kind})", True
        except OSError:
            pass
        return f"has lost its privileges ({kind}), since it is traced", False
