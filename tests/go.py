"""The compiler of Go, whatever the user's own settings of it are."""

from __future__ import annotations

import os
from pathlib import Path


def environment(directory: Path) -> dict[str, str]:
    """Its variables. What it has compiled once is kept in a folder; or in one for all that are given the same."""
    kept = Path(os.environ.get("COLLECT_TEST_PROGRAMS") or directory) / "go-cache"
    return {"GOCACHE": str(kept), "GO111MODULE": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
