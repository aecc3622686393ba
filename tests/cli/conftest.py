"""What these tests share: nobody's files of defaults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_TOOLS = {"RUSTUP_HOME": ".rustup", "CARGO_HOME": ".cargo", "GOPATH": "go", "GOCACHE": ".cache/go-build"}


@pytest.fixture(autouse=True)
def _no_defaults_of_the_developer(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty home directory, for us and for the reference reader."""
    for name, folder in _TOOLS.items():  # compilers find what belongs to them
        monkeypatch.setenv(name, os.environ.get(name) or str(Path.home() / folder))
    monkeypatch.setenv("HOME", str(_home(tmp_path_factory)))


def _home(factory: pytest.TempPathFactory) -> Path:
    home = factory.getbasetemp() / "home"
    home.mkdir(exist_ok=True)
    return home
