"""Names of founders, descendants and groups."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.errors import ExperimentError
from collector.experiment import names
from collector.experiment.reader import open_experiment


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def experiment(path: Path) -> Path:
    path.mkdir()
    (path / "log.xml").write_text("")
    return path


def test_importing_names_needs_nothing_beyond_the_standard_library() -> None:
    code = "import sys; before = set(sys.modules); import collector.experiment.names; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign == {"collector"}


@pytest.mark.parametrize(("existing", "arguments", "expected"), [
    ([], {}, "test.1.er"),
    (["test.1.er"], {}, "test.2.er"),
    (["test.1.er", "test.17.er", "test.9.er", "test.x.er", "test12.er", "a.test.99.er", "test.5.er.d"], {},
     "test.18.er"),
    (["test.2.er"], {}, "test.1.er"),
    ([], {"output": "mine.er"}, "mine.er"),
    ([], {"output": "mine.er///"}, "mine.er"),
    (["mine.3.er"], {"output": "mine.3.er"}, "mine.4.er"),
    (["mine.3.er", "mine.11.er"], {"output": "mine.3.er"}, "mine.12.er"),
    (["mine.3.er"], {"output": "mine.2.er"}, "mine.2.er"),
    (["a.b.1.er", "a.b.1.7.er"], {"output": "a.b.1.er"}, "a.b.2.er"),
    (["a\nb.1.er"], {"output": "a\nb.1.er"}, "a\nb.2.er"),
    (["d/test.1.er"], {"directory": "d"}, "d/test.2.er"),
    (["d/x.1.er"], {"directory": "d", "output": "x.1.er"}, "d/x.2.er"),
    (["run.4.er"], {"group": "run.erg"}, "run.1.er"),
    (["run.1.er"], {"group": "g/run.erg"}, "run.2.er"),
    (["run.1.er"], {"group": "run.erg", "output": "own.er"}, "own.er"),
    (["mine.er"], {"output": "mine.er", "overwrite": True}, "mine.er"),
    (["mine.1.er"], {"output": "mine.1.er", "overwrite": True}, "mine.1.er"),
    (["test.1.er"], {"overwrite": True}, "test.2.er"),
])
def test_names_chosen(here: Path, existing: list[str], arguments: dict[str, str], expected: str) -> None:
    for name in existing:
        (here / name).parent.mkdir(exist_ok=True)
        experiment(here / name)
    for name in ("d", "g"):
        (here / name).mkdir(exist_ok=True)
    assert names.choose(**arguments) == Path(expected)  # type: ignore[arg-type]
    assert names.create_directory(**arguments).path == Path(expected)  # type: ignore[arg-type]
    assert stat.S_IMODE((here / expected).stat().st_mode) == 0o700
    assert os.listdir(here / expected) == ["log.xml"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"output": "mine"}, "must end in .er"),
    ({"output": ".er"}, "must end in .er"),
    ({"output": "d/.er"}, "must end in .er"),
    ({"output": ""}, "must end in .er"),
    ({"output": "a\0b.er"}, "not a file name"),
    ({"output": "taken.er"}, "taken.er exists; choose another name with -o, or -O"),
    ({"output": "taken12.er"}, "taken12.er exists"),
    ({"output": "12.er"}, "12.er exists"),
    ({"output": "nowhere/x.er"}, "nowhere does not exist"),
    ({"directory": "nowhere"}, "nowhere does not exist"),
    ({"directory": "file"}, "file is not a directory"),
    ({"output": "x" * 300 + ".er"}, "File name too long"),
    ({"output": "file.er", "overwrite": True}, "file.er is not an experiment"),
    ({"output": "link.er", "overwrite": True}, "link.er is a symbolic link"),
    ({"output": "precious.er", "overwrite": True}, "precious.er is not an experiment"),
    ({"group": "run"}, "must end in .erg"),
    ({"group": ".erg"}, "must end in .erg"),
    ({"group": "run.erg", "output": "blank d/x.er"}, "blanks"),
    ({"group": "nowhere/run.erg", "output": "x.er"}, "nowhere does not exist"),
    ({"group": "dir.erg"}, "cannot write dir.erg: Is a directory"),
    ({"group": "link.erg"}, "cannot write link.erg: Too many levels of symbolic links"),
    ({"group": "/proc/self/run.erg", "output": "x.er"}, "cannot write /proc/self/run.erg: this user may make no file"),
])
def test_names_refused(here: Path, arguments: dict[str, str], message: str) -> None:
    for name in ("taken.er", "taken12.er", "12.er", "victim.er"):
        experiment(here / name)
    (here / "file").touch()
    (here / "file.er").touch()
    (here / "blank d").mkdir()
    (here / "link.er").symlink_to("victim.er")
    (here / "link.erg").symlink_to("victim.erg")
    (here / "dir.erg").mkdir()
    (here / "precious.er").mkdir()
    (here / "precious.er" / "thesis.tex").write_text("words")
    before = sorted(here.rglob("*"))
    for refuse in (names.choose, names.create_directory):
        if "too long" in message and refuse is names.choose:
            continue
        with pytest.raises(ExperimentError, match=re.escape(message)) as error:
            refuse(**arguments)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    assert sorted(here.rglob("*")) == before


def test_a_message_stays_on_one_line(here: Path) -> None:
    experiment(here / "a\nb.er")
    with pytest.raises(ExperimentError) as error:
        names.create_directory("a\nb.er")
    assert str(error.value).startswith("a\\nb.er exists")


def test_an_unwritable_directory_is_named(here: Path) -> None:
    with pytest.raises(ExperimentError, match=r"cannot create /proc/self/test\.1\.er: .*-d"):
        names.create_directory(directory="/proc/self")


def test_overwriting_removes_the_old_experiment_and_nothing_outside(here: Path) -> None:
    outside = experiment(here / "outside.er")
    old = experiment(here / "old.er")
    (old / "archives").symlink_to(outside, target_is_directory=True)
    (old / "deep").mkdir()
    (old / "deep" / "file").touch()
    made = names.create_directory("old.er", overwrite=True)
    made.forget_replaced()
    assert made.path == Path("old.er")
    assert sorted(os.listdir(here)) == ["old.er", "outside.er"]
    assert os.listdir("old.er") == ["log.xml"]
    assert os.listdir(outside) == ["log.xml"]


def test_an_older_experiment_stays_until_there_is_something_to_record(here: Path) -> None:
    old = experiment(here / "old.er")
    (old / "mark").touch()
    place = names.prepare_directory("old.er", overwrite=True)
    assert sorted(os.listdir("old.er")) == ["log.xml", "mark"]
    place.remove()
    place = names.prepare_directory("old.er", overwrite=True)
    place.take_place()
    assert os.listdir("old.er") == ["log.xml"]
    place.remove()
    assert os.listdir(here) == ["old.er"]
    assert sorted(os.listdir("old.er")) == ["log.xml", "mark"]
    place = names.prepare_directory("old.er", overwrite=True)
    place.take_place()
    place.forget_replaced()
    assert os.listdir(here) == ["old.er"]
    assert os.listdir("old.er") == ["log.xml"]


def test_an_older_experiment_that_became_something_else_is_not_replaced(here: Path) -> None:
    old = experiment(here / "old.er")
    place = names.prepare_directory("old.er", overwrite=True)
    (old / "log.xml").unlink()
    (old / "thesis.tex").touch()
    with pytest.raises(ExperimentError, match=r"old\.er is not an experiment"):
        place.take_place()
    place.remove()
    assert os.listdir(here) == ["old.er"]
    assert os.listdir(old) == ["thesis.tex"]


def test_who_is_killed_before_there_is_something_to_record_leaves_the_older_experiment(here: Path) -> None:
    (experiment(here / "old.er") / "mark").touch()
    code = ("import os; from collector.experiment import names; names.prepare_directory('old.er', overwrite=True); "
            "os.kill(os.getpid(), 9)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert sorted(os.listdir("old.er")) == ["log.xml", "mark"]


def test_removing_takes_what_was_begun_and_leaves_the_rest(here: Path) -> None:
    begun, other = here / "begun.er", here / "other.er"
    begun.mkdir()
    (begun / "overview").touch()
    other.mkdir()
    (other / "thesis.tex").touch()
    for path in (begun, other, here / "nothing.er"):
        names.remove_directory(path)
    assert os.listdir(here) == ["other.er"]


def test_many_at_once_get_different_names(here: Path) -> None:
    code = "from collector.experiment import names; print(names.create_directory().path)"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(7)]
    made = [process.communicate()[0].strip() for process in running]
    assert sorted(made) == [f"test.{number}.er" for number in range(1, 8)]


def test_a_group_lists_its_experiments_and_gprofng_reads_it(
        here: Path, record: Callable[..., object], gprofng: Callable[..., object]) -> None:
    for name in ("run.1.er", "run.2.er"):
        record(name)
        names.add_to_group("run.erg", Path(name))
    assert (here / "run.erg").read_text() == f"#analyzer experiment group\n{here}/run.1.er\n{here}/run.2.er\n"
    listed = gprofng("-experiment_list", experiment=here / "run.erg")
    assert re.findall(r"4711 (\S+)", listed.text) == [f"{here}/run.1.er", f"{here}/run.2.er"]  # type: ignore[attr-defined]


def test_a_relative_group_lies_where_the_experiments_lie(here: Path) -> None:
    (here / "d").mkdir()
    names.add_to_group("run.erg", Path("d/run.1.er"), "d")
    assert (here / "d/run.erg").exists()


def test_a_group_without_a_last_newline_is_continued_properly(here: Path) -> None:
    (here / "run.erg").write_text("#analyzer experiment group\nold.er")
    names.add_to_group("run.erg", Path("new.er"))
    assert (here / "run.erg").read_text() == f"#analyzer experiment group\nold.er\n{here}/new.er\n"


def test_a_group_that_is_a_symbolic_link_is_refused(here: Path) -> None:
    (here / "victim").write_text("")
    (here / "run.erg").symlink_to("victim")
    with pytest.raises(ExperimentError, match=r"cannot write run\.erg"):
        names.add_to_group("run.erg", Path("x.er"))
    assert (here / "victim").read_text() == ""


def test_concurrent_members_of_a_group_are_all_there(here: Path) -> None:
    code = ("import sys; from pathlib import Path; from collector.experiment import names\n"
            "for i in range(50): names.add_to_group('g.erg', Path(f'{sys.argv[1]}.{i}.er'))")
    running = [subprocess.Popen([sys.executable, "-c", code, letter]) for letter in "abc"]
    assert [process.wait() for process in running] == [0, 0, 0]
    lines = (here / "g.erg").read_text().splitlines()
    assert lines[0] == "#analyzer experiment group"
    assert sorted(lines[1:]) == sorted(f"{here}/{letter}.{i}.er" for letter in "abc" for i in range(50))


def test_lineages() -> None:
    third = names.Lineage().child("f", 3)
    assert third == names.Lineage("_f3", "_f3", 1)
    assert third.child("x", 1) == names.Lineage("_f3_x1", "_f3_x1", 2)
    assert names.descendant_path(Path("test.1.er"), third.child("x", 1)) == Path("test.1.er/_f3_x1.er")
    assert names.mpi_name(2) == "M_r2.er"
    assert (names.lineage_of("_f3_x1.er"), names.lineage_of("test.1.er")) == ("_f3_x1", "")
    with pytest.raises(ValueError, match="no such kind"):
        third.child("z", 1)


def generations(lineage: names.Lineage, *steps: tuple[str, int]) -> names.Lineage:
    """A descendant of a descendant of ..."""
    for letter, number in steps:
        lineage = lineage.child(letter, number)
    return lineage


EXEC = ("x", 1)


def test_a_lineage_too_long_for_a_name_is_cut() -> None:
    longest = generations(names.Lineage(), *[EXEC] * 84)
    assert longest.name == longest.text == "_x1" * 84
    assert len(longest.name + ".er") == 255
    assert longest.child(*EXEC) == names.Lineage(
        "_x1" * 85, "_x1" * 66 + "_z85_obpenddadngaofcn_x1", 85, "_x1" * 66)
    assert not longest.is_cut
    assert longest.child(*EXEC).is_cut


def test_names_of_cut_lineages_fit_and_differ(here: Path) -> None:
    every = [generations(names.Lineage.named(f"_{'n' * 15}_PID_4194303.1"), *[("f", 4194303), EXEC] * 21)]
    for _ in range(400):
        every += [every[-1].child(letter, number) for letter, number in [("x", 1), ("f", 2_147_483_647), ("C", 1)]]
        every.append(every[-3].child("f", 1))
    every += [other.child("f", 1) for other in generations_apart()]
    assert len({lineage.name for lineage in every}) == len(every)
    for lineage in every:
        names.descendant_path(here, lineage).mkdir()


def generations_apart() -> list[names.Lineage]:
    """Of one depth, with the same beginning and the same end."""
    same = generations(names.Lineage(), *[EXEC] * 80)
    return [generations(same, ("f", number), *[EXEC] * 20) for number in range(100)]


def test_cut_lineages_come_behind_their_ancestors_by_generation() -> None:
    line = [names.Lineage()]
    for number in range(300):
        line.append(line[-1].child("fxcC"[number % 4], 1))
    found = [lineage.name + ".er" for lineage in line]
    assert sorted(sorted(found), key=names.sort_key) == found
    siblings = [line[-1].child("f", number).name + ".er" for number in range(1, 20)]
    assert sorted(sorted(siblings), key=names.sort_key) == siblings


def test_what_a_generation_takes_does_not_grow() -> None:
    lineage = generations(names.Lineage(), *[EXEC] * 20_000)
    assert len(lineage.text) < 4200
    ancestor = re.match(r"((?:_x1){66}_z(\d+)_[a-p]{16}_x1)((?:_x1)+)\Z", lineage.text)
    assert ancestor is not None  # whose log has the generations before
    assert int(ancestor[2]) + len(ancestor[3]) // 3 == lineage.depth == 20_000


def test_descendants_are_sorted_by_number() -> None:
    wanted = ["_C1.er", "_f1.er", "_f1_x1.er", "_f2.er", "_f2_f9.er", "_f2_f10.er", "_f10.er", "_x1.er"]
    assert sorted(wanted[3:] + wanted[:3], key=names.sort_key) == wanted


@pytest.mark.parametrize(("path", "copy"), [
    (b"/usr/lib/x86_64-linux-gnu/libc.so.6", b"libc.so.6_dnWuQRcLhw9"),
    (b"/usr/bin/xz", b"xz_UHyILZt997d"),
    (b"xz", b"xz_dbrs1000000"),
    (b"/usr/bin/" + b"n" * 243, b"n" * 243 + b"_UHyILZt997d"),
])
def test_names_of_copies(path: bytes, copy: bytes) -> None:
    assert names.archive_name(path) == copy


def test_names_of_copies_of_long_names_fit() -> None:
    copy = names.archive_name(b"/usr/bin/" + b"n" * 244)
    assert copy.startswith(b"n" * 231 + b"_UHyILZt997d_")
    assert len(copy) == 255


def test_a_directory_without_its_recorder_opens(tmp_path: Path, gprofng: Callable[..., Any]) -> None:
    path = names.create_directory(str(tmp_path / "early.er")).path
    assert "No errors" in gprofng("-header", experiment=path).text
    gprofng("-functions", experiment=path)


LOOKED_AT = """
import os, sys
from collector.experiment import names
n_calls = 0
def look(event, arguments):
    global n_calls
    n_calls += event.startswith("os.") or event == "open"
    if os.access("early.er", os.F_OK) and not os.access("early.er/log.xml", os.F_OK):
        os._exit(1)
sys.addaudithook(look)
names.create_directory("early.er")
sys.exit(0 if n_calls > 2 else 2)
"""


def test_who_begins_again_stands_what_was_left_half_written(here: Path) -> None:
    """The collector was killed while it wrote its own log: there is a part of it, under its other name."""
    path = names.create_directory().path
    (path / "log.xml.new").write_text("<exper")
    (path / "map.xml").write_text("")
    names.begin_again(path)
    assert os.listdir(path) == ["log.xml"]
    assert open_experiment(path).log.complete is False


def test_a_directory_and_its_log_come_at_once(here: Path) -> None:
    """Looked at before each call of the system by which it is made."""
    assert subprocess.run([sys.executable, "-c", LOOKED_AT], check=False).returncode == 0
    assert os.listdir(here) == ["early.er"]
    assert os.listdir("early.er") == ["log.xml"]
