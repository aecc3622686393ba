"""The compiler of Go, whatever the user's own settings of it are."""

from __future__ import annotations

from pathlib import Path


def environment(programs: Path) -> dict[str, str]:
    """Its variables. What it has compiled once is kept in a folder."""
    return {"GOCACHE": str(programs / "go-cache"), "GO111MODULE": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
