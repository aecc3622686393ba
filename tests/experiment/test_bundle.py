"""What is packed into a file of symbols is there when it is unpacked."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from collector.errors import ExperimentError
from collector.experiment.bundle import pack, unpack


def unpacked(bundle: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    assert unpack(str(bundle), str(folder)) == len(os.listdir(folder))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_files_that_are_links_are_packed_themselves(tmp_path: Path, suffix: str) -> None:
    """As sources in a build tree of links, debug files by build id, and libraries that a store keeps once."""
    (tmp_path / "real").write_bytes(b"program" * 999)
    (tmp_path / "real.c").write_bytes(b"int x;\n")
    (tmp_path / "x.debug").symlink_to("real")
    (tmp_path / "link.c").symlink_to("real.c")
    (tmp_path / "hard").hardlink_to(tmp_path / "real")
    files = {f"{name}_{number}": str(tmp_path / name)
             for number, name in enumerate(("real", "real.c", "x.debug", "link.c", "hard"))}
    packed = pack(str(tmp_path / f"s.{suffix}"), files)
    assert (packed.n_files, packed.left_out) == (5, [])
    assert packed.size == (tmp_path / f"s.{suffix}").stat().st_size
    found = unpacked(tmp_path / f"s.{suffix}", tmp_path / "there")
    assert found == {name: Path(file).read_bytes() for name, file in files.items()}


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"program")
    packed = pack(str(tmp_path / "s.tar"), {"gone_1": str(tmp_path / "gone.c"), "real_2": str(tmp_path / "real")})
    assert packed.n_files == 1
    assert packed.left_out == [f"{tmp_path}/gone.c: left out: No such file or directory"]
    assert unpacked(tmp_path / "s.tar", tmp_path / "there") == {"real_2": b"program"}


def test_a_link_that_somebody_put_into_a_tar_file_is_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as bundle:
        link = tarfile.TarInfo("archives/passwd_1")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bundle.addfile(link)
    with pytest.raises(ExperimentError, match="there are no symbols in it"):
        unpacked(tmp_path / "s.tar", tmp_path / "there")
