"""What is packed into a file of symbols is there when it is unpacked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from collector.errors import ExperimentError
from collector.experiment.bundle import pack, unpack
from collector.leftovers import removed_if_ended


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


ENDED = """
import os, signal, sys
from collector.cli.commands.session import Session
from collector.experiment.bundle import pack

class Files(dict):
    def items(self):  # asked for when the file is there
        assert [name for name in os.listdir() if name.endswith(".new")] and os.listdir("temporary")
        os.kill(os.getpid(), int(sys.argv[1]))
        return super().items()

session = Session([])
try:
    session.unpacked("s.tar")
    pack("t.tar", Files())
finally:
    session.end()
"""


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "USR1"])
def test_who_is_ended_by_a_signal_leaves_neither_an_unfinished_file_nor_what_was_unpacked(name: str, tmp_path: Path
                                                                                          ) -> None:
    (tmp_path / "real").write_bytes(b"program")
    (tmp_path / "temporary").mkdir()
    pack(str(tmp_path / "s.tar"), {"real_1": str(tmp_path / "real")})
    number = signal.Signals[f"SIG{name}"]
    done = subprocess.run([sys.executable, "-c", ENDED, str(number)], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {"TMPDIR": "temporary"}, check=False,
                          preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
    assert done.returncode == (0 if name == "USR1" else -number), done.stderr  # that one is ignored
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {
        "real", "s.tar", "temporary", *(["t.tar"] if name == "USR1" else [])}


def test_signals_mean_what_they_did_when_nothing_is_left_to_go() -> None:
    gone: list[str] = []
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with removed_if_ended(lambda: gone.append("outer")):
        with removed_if_ended(lambda: gone.append("inner")):
            pass
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    assert gone == []
