"""Which file was mapped: as written in map.xml, read back, and compared with what is there now."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.elf import object_of_bytes, open_object
from collector.experiment import xml
from collector.experiment.identity import UNKNOWN, Identity, attributes, difference, identity_of, of_element

BUILT = Identity(bytes(range(20)))
OTHER = Identity(bytes(range(1, 21)))
SIZED = Identity(b"", 16_024, 1_700_000_003_000_000_007)


@pytest.mark.parametrize("identity", [BUILT, SIZED, Identity(b"", 0, 0), UNKNOWN, Identity(b"\0")])
def test_what_is_written_is_read_back(identity: Identity) -> None:
    (element,) = xml.parse(xml.element("event", {"kind": "map", **attributes(identity)}))
    assert of_element(element) == identity


@pytest.mark.parametrize("damaged", [
    {"buildid": "xyz"}, {"buildid": ""}, {"fsize": 5}, {"fsize": 5, "mtime": "1.5"},
    {"fsize": -5, "mtime": "1.000000000"}, {"fsize": 5, "mtime": "\u00b2.000000000"},
    {"fsize": 5, "mtime": "-1.000000000"}, {"mtime": "1.000000000"}])
def test_what_cannot_be_is_unknown(damaged: dict[str, xml.Value]) -> None:
    (element,) = xml.parse(xml.element("event", damaged))
    assert of_element(element) == UNKNOWN


@pytest.mark.parametrize(("recorded", "found", "is_copy", "words"), [
    (BUILT, BUILT, False, ""), (BUILT, OTHER, False, "build id 010203040506..., recorded 000102030405..."),
    (BUILT, SIZED, False, "build id none"), (SIZED, OTHER, False, "recorded none"), (SIZED, SIZED, False, ""),
    (SIZED, SIZED._replace(size=3), True, "3 bytes, recorded 16024"), (SIZED, SIZED._replace(mtime_ns=1), True, ""),
    (SIZED, SIZED._replace(mtime_ns=1), False, "another time"), (UNKNOWN, BUILT, False, "")])
def test_files_are_told_apart(recorded: Identity, found: Identity, is_copy: bool, words: str) -> None:
    assert bool(words) == bool(difference(recorded, found, is_copy))
    assert words in difference(recorded, found, is_copy)


def test_a_file_is_known_by_its_build_id_else_by_size_and_time(tmp_path: Path, program: Any,
                                                               need: Callable[[str, str], str]) -> None:
    with open_object(os.fsdecode(program.path)) as file:
        assert len(identity_of(file).build_id) == 20
    without = tmp_path / "without"
    command = [need("objcopy", "binutils"), "--remove-section=.note.gnu.build-id", program.path, without]
    subprocess.run(command, check=True)
    with open_object(str(without)) as file:
        assert identity_of(file) == Identity(b"", without.stat().st_size, without.stat().st_mtime_ns)
    assert identity_of(object_of_bytes(without.read_bytes(), "memory")) == UNKNOWN
