"""What these tests share: nobody's files of defaults."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_defaults_of_the_developer(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty home directory, for us and for the reference reader."""
    monkeypatch.setenv("HOME", str(_home(tmp_path_factory)))


def _home(factory: pytest.TempPathFactory) -> Path:
    home = factory.getbasetemp() / "home"
    home.mkdir(exist_ok=True)
    return home
