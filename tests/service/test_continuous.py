"""Continuous mode without a kernel: the clock is handed in, and 24 hours go by."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.linux.peers import Credentials
from collector.service import budget, config, labels, retention, rotation, wishes
from collector.service.budget import Used
from collector.service.config import ConfigError
from collector.service.daemon import Daemon, Settings
from collector.service.peers import Bucket
from collector.service.retention import MEGABYTE, Kept
from collector.service.rotation import Newcomers, Plan, Window
from collector.service.sessions import Order, Session
from collector.service.targets import Process, Wanted

DAY_S = 86_400.0
ROOT = Path(__file__).resolve().parents[2]


class Simulated:
    """A session of continuous mode: windows of the plan, experiments of so many megabytes, what is deleted."""

    def __init__(self, plan: Plan, keep: int, megabytes: int, size_bytes: int, disk_bytes: int) -> None:
        self.plan, self.keep, self.megabytes, self.size_bytes = plan, keep, megabytes, size_bytes
        self.disk_bytes, self.reserve_bytes = disk_bytes, 100 * MEGABYTE
        self.now_s = self.recorded_s = 0.0
        self.n_runs = self.n_refused = 0
        self.kept: list[Kept] = []
        self.windows: list[Window] = []

    @property
    def free_bytes(self) -> int:
        return self.disk_bytes - sum(each.n_bytes for each in self.kept)

    def run(self, until_s: float, stretched: float = 1.0) -> None:
        while True:
            window = rotation.next_window(self.plan, 0.0, self.now_s, self.n_runs, stretched)
            assert window is not None
            assert window.begin_s >= self.now_s
            if window.begin_s >= until_s:
                return
            self.now_s = window.begin_s
            if not self._make_room():
                self.n_refused += 1
                self.now_s += 10
                continue
            self.n_runs += 1
            self.windows.append(window)
            self.now_s += window.length_s
            self.recorded_s += window.length_s
            self.kept.append(Kept(f"web.{self.n_runs}.er", self.now_s, self.size_bytes))
            self.check()

    def _make_room(self) -> bool:
        room = retention.room(self.kept, self.keep - 1, self.megabytes * MEGABYTE, self.size_bytes,
                              self.free_bytes, self.reserve_bytes)
        self.kept = [each for each in self.kept if each not in room.surplus + room.for_disk]
        return room.is_enough

    def check(self) -> None:
        assert len(self.kept) <= self.keep
        assert sum(each.n_bytes for each in self.kept) <= self.megabytes * MEGABYTE
        assert self.free_bytes >= self.reserve_bytes - self.size_bytes
        names = [each.name for each in self.kept]
        assert names == [f"web.{number}.er" for number in range(self.n_runs - len(names) + 1, self.n_runs + 1)]


def test_a_day_of_ten_seconds_of_each_minute() -> None:
    day = Simulated(Plan(10.0, 60.0), 60, 512, 5 * MEGABYTE, 10_000 * MEGABYTE)
    day.run(DAY_S)
    assert (day.n_runs, day.recorded_s, len(day.kept)) == (1440, 14_400.0, 60)
    assert day.windows[0] == Window(0.0, 10.0)
    assert day.windows[-1] == Window(DAY_S - 60, 10.0)
    shifted = Simulated(Plan(10.0, 60.0, phase=0.5), 60, 512, 5 * MEGABYTE, 10_000 * MEGABYTE)
    shifted.run(DAY_S)
    assert [window.begin_s for window in shifted.windows[:3]] == [0.0, 30.0, 90.0]


@pytest.mark.parametrize("set_s", [-1e6, -3600.0, -59.0, -1.0, 1.0, 3600.0, 1e6, 1e9])
def test_a_clock_that_is_set_delays_a_window_by_no_more_than_its_period(set_s: float) -> None:
    plan, began_s, now_s = Plan(10.0, 60.0, phase=0.25), 1e7, 1e7 + 12_345
    window = rotation.next_window(plan, began_s, now_s + set_s, 3)
    assert window is not None
    assert 0 < window.begin_s - (now_s + set_s) <= 60
    assert (window.begin_s - began_s) % 60 == 15


def test_what_ended_at_the_same_time_goes_in_the_order_of_its_end() -> None:
    kept = [Kept(str(number), 5.0, 10) for number in range(4)]  # as they are when the clock was set back
    assert [each.name for each in retention.surplus(kept, 2, 0)] == ["0", "1"]
    assert [each.name for each in retention.to_free(kept, 0, 15)] == ["0", "1"]


def test_a_day_without_a_break_in_pieces_of_an_hour() -> None:
    day = Simulated(Plan(rotate_s=3600.0), 48, 512, 40 * MEGABYTE, 10_000 * MEGABYTE)
    day.run(DAY_S)
    assert (day.n_runs, day.recorded_s, len(day.kept)) == (24, DAY_S, 12)  # 13 of 40 MB are more than 512


def test_a_day_on_a_disk_that_is_too_small() -> None:
    day = Simulated(Plan(10.0, 60.0), 1000, 100_000, 30 * MEGABYTE, 300 * MEGABYTE)
    day.run(DAY_S)
    assert (day.n_runs, day.n_refused, len(day.kept)) == (1440, 0, 7)
    full = Simulated(Plan(10.0, 60.0), 1000, 100_000, 30 * MEGABYTE, 90 * MEGABYTE)
    full.run(DAY_S)
    assert (full.n_runs, len(full.kept)) == (0, 0)
    assert full.n_refused > 1000


def test_a_budget_that_is_exceeded_makes_fewer_windows() -> None:
    day = Simulated(Plan(10.0, 60.0), 60, 512, MEGABYTE, 10_000 * MEGABYTE)
    day.run(DAY_S, stretched=4.0)
    assert day.n_runs == 360


@given(st.floats(1, 100), st.floats(1, 1000), st.floats(1, 5000), st.floats(0, 1e6), st.integers(0, 5),
       st.floats(1, 64))
def test_a_window_is_never_in_the_past_and_never_longer_than_asked_for(
        record_s: float, every_s: float, rotate_s: float, now_s: float, n_runs: int, stretched: float) -> None:
    window = rotation.next_window(Plan(min(record_s, every_s), every_s, rotate_s), 0.0, now_s, n_runs, stretched)
    assert window is not None
    assert window.begin_s >= now_s - 1e-6
    assert 0 < window.length_s <= max(rotate_s, record_s)


A, B = Process(11, 100), Process(12, 200)


def test_a_run_ends_once_for_processes_that_two_looks_have_met() -> None:
    newcomers, found = Newcomers(), frozenset({A, B})
    newcomers.begin(1000.0)
    assert [newcomers.is_due(1000.0 + s, 2.0) for s in (5, 9, 10)] == [False, False, True]
    looks = [(5, {A}), (10, {B}), (15, {Process(B.pid, B.start_ticks + 1)}), (20, {A, B}), (25, {B}), (30, {B})]
    assert [newcomers.look(1000.0 + s, frozenset(there)) for s, there in looks] == [
        frozenset(), frozenset(), frozenset(), frozenset(), {B}, frozenset()]
    newcomers.begin(1100.0)
    assert newcomers.look(1195.0, found) == frozenset()  # nothing of the run before
    assert newcomers.look(1200.0, found) == found


def test_runs_last_longer_and_longer_while_processes_come_all_the_time() -> None:
    newcomers, now_s, lasted = Newcomers(), 0.0, []
    for _ in range(10):
        newcomers.begin(now_s)
        began_s = now_s
        while not newcomers.look(now_s, frozenset({A})):
            now_s += 5
        lasted.append(now_s - began_s)
    assert lasted == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600]
    for _ in range(10):  # one comes in an hour
        newcomers.begin(now_s)
        now_s += 3600
        newcomers.look(now_s, frozenset({A}))
        assert newcomers.look(now_s + 5, frozenset({A})) == {A}
        now_s += 10
    newcomers.begin(now_s)
    newcomers.look(now_s, frozenset({A}))
    assert newcomers.look(now_s + 10, frozenset({A})) == {A}


KEPT = [Kept(str(n), float(n), n * 10) for n in (3, 1, 2)]


@pytest.mark.parametrize(("keep", "max_bytes", "wanted", "gone"), [
    (0, 0, 0, []), (3, 60, 0, []), (2, 0, 0, ["1"]), (1, 0, 0, ["1", "2"]), (3, 59, 0, ["1"]), (3, 60, 1, ["1"]),
    (3, 29, 0, ["1", "2", "3"]), (3, 100, 100, ["1", "2", "3"]),
])
def test_the_oldest_go_first(keep: int, max_bytes: int, wanted: int, gone: Sequence[str]) -> None:
    assert [each.name for each in retention.surplus(KEPT, keep, max_bytes, wanted)] == list(gone)


def test_the_reserve_is_made_free_by_as_few_as_possible() -> None:
    assert [each.name for each in retention.to_free(KEPT, 75, 100)] == ["1", "2"]
    assert retention.to_free(KEPT, 100, 100) == []
    assert len(retention.to_free(KEPT, 0, 1000)) == 3


@pytest.mark.parametrize(("keep", "max_bytes", "free", "gone", "is_room"), [
    (9, 0, 100, [], True), (9, 0, 90, ["1"], True), (9, 0, 75, ["1", "2"], True), (2, 0, 80, ["1", "2"], True),
    (1, 0, 65, ["1", "2", "3"], True), (9, 0, 40, ["1", "2", "3"], True), (9, 0, 39, [], False),
    (0, 29, 40, ["1", "2", "3"], True), (2, 0, 39, ["1"], False),
])
def test_what_is_deleted_for_the_reserve_makes_room_or_stays(keep: int, max_bytes: int, free: int,
                                                              gone: Sequence[str], is_room: bool) -> None:
    found = retention.room(KEPT, keep, max_bytes, 0, free, 100)
    assert ([each.name for each in found.surplus + found.for_disk], found.is_enough) == (list(gone), is_room)


class Spending:
    """One session of the configuration under a budget, second by second; ``cost`` is what a run with intervals so many
    times as long takes of a CPU while it records."""

    def __init__(self, percent: float, plan: Plan, cost: Callable[[float], float]) -> None:
        self.budget, self.plan, self.cost = budget.Budget(percent, 0.0, Used()), plan, cost
        self.now_s = self.end_s = 0.0
        self.n_runs, self.factor = 0, 0.0  # of the run, if there is one
        self.used = Used()
        self.lines: list[str] = []

    def spend(self, seconds: int, own: float = 0.0, clients: float = 0.0) -> float:
        """The part of a CPU that was used for the configuration; beside it the daemon and clients use theirs."""
        before = self.used
        for _ in range(seconds):
            self._begin_or_end()
            part = self.cost(self.factor) if self.factor else 0.0
            self.used = self.used.plus(Used(own, part, part * self.factor, clients))
            self.now_s += 1
            line = self.budget.look(self.now_s, self.used, self.plan.period_s)
            self.lines += [line] if line is not None else []
        part = self.used.per_s(before, seconds)
        return part.own_s + part.runs_s

    def _begin_or_end(self) -> None:
        if self.factor and self.now_s < self.end_s:
            return
        self.factor = 0.0
        window = rotation.next_window(self.plan, 0.0, self.now_s - 1, self.n_runs, self.budget.stretched)
        assert window is not None
        if window.begin_s <= self.now_s:
            self.n_runs, self.factor, self.end_s = self.n_runs + 1, self.budget.stretched, self.now_s + window.length_s


def test_the_budget_holds_for_any_cost_that_goes_with_the_interval() -> None:
    """A cost of 12 % of a CPU, of which 0.2 % does not go with the interval."""
    spending = Spending(2.0, Plan(rotate_s=30.0), lambda factor: 0.002 + 0.118 / factor)
    spending.spend(300)
    assert spending.spend(1500) <= 0.02
    assert 5 < spending.budget.stretched < 16
    assert spending.lines[0] == ("recording took 12.00 % of a CPU, of 2 % allowed: intervals are longer, 6.60 times "
                                 "what was asked for")
    assert len(spending.lines) <= 5
    spending.cost = lambda _: 0.0  # nothing is recorded any more
    spending.spend(60)
    assert spending.budget.stretched == 1.0


@pytest.mark.parametrize("cost", [lambda factor: 0.72 / factor, lambda _: 0.6, lambda factor: 0.2 + 0.4 / factor])
def test_the_budget_holds_for_windows(cost: Callable[[float], float]) -> None:
    """Of a minute, whether what a window takes goes with the interval or not."""
    spending = Spending(2.0, Plan(10.0, 60.0, phase=0.7), cost)
    spending.spend(3600)
    assert 0.01 < spending.spend(5400) <= 0.02
    assert len(spending.lines) <= 4


def test_the_budget_holds_for_windows_that_are_far_apart() -> None:
    """6 s of CPU time for each window, one every 30 s; 5 % are allowed."""
    spending = Spending(5.0, Plan(6.0, 30.0), lambda _: 1.0)
    spending.spend(600)
    assert spending.spend(7200) <= 0.05
    assert spending.budget.stretched <= 8


def test_what_clients_asked_for_lengthens_nothing_that_is_configured() -> None:
    """10 % for ten minutes, where 2 % are allowed."""
    spending = Spending(2.0, Plan(10.0, 60.0), lambda factor: 0.06 / factor)
    spending.spend(600, clients=0.1)
    assert (spending.lines, spending.n_runs) == ([], 10)


def test_a_run_that_goes_on_as_it_began_makes_intervals_as_long_as_its_time_asks_for_and_no_longer() -> None:
    """Pieces of an hour: what is lengthened now holds from the next one on."""
    spending = Spending(2.0, Plan(rotate_s=3600.0), lambda factor: 0.04 / factor)
    assert spending.spend(3600) == pytest.approx(0.04)
    assert spending.budget.stretched == pytest.approx(2.2)
    assert spending.spend(7200) == pytest.approx(0.04 / 2.2)
    assert len(spending.lines) == 1


def test_intervals_are_as_they_were_with_the_first_look_that_sees_no_more_to_hold() -> None:
    """The daemon had 30 % of a CPU to do for five minutes: windows are a minute apart again in two of its looks."""
    spending = Spending(2.0, Plan(10.0, 60.0), lambda factor: 0.03 / factor)
    spending.spend(300, own=0.3)
    assert spending.budget.stretched == 8.0
    spending.spend(2 * 8 * 60)
    assert spending.budget.stretched == 1.0
    assert len(spending.lines) == 2


def test_who_asks_while_clients_take_too_much_begins_with_longer_intervals() -> None:
    spent = budget.ClientsBudget(2.0, 0.0, Used())
    used, lines = 0.0, []
    for minute in range(40):
        used += 60 * {0: 0.1, 1: 0.02}.get(minute // 10, 0.0)
        lines.append(spent.look(60.0 * (minute + 1), Used(own_s=used, runs_s=used, clients_s=used)))
        assert spent.stretched == pytest.approx(5.0 if minute < 10 else 1.0)  # however often it was looked at
    assert [(number, line) for number, line in enumerate(lines) if line] == [
        (0, "what clients asked for takes 10.00 % of a CPU, of 2 % allowed beside the configuration's: the next begins "
            "with intervals 5.00 times as long"),
        (20, "what clients asked for takes 0.00 % of a CPU, of 2 % allowed beside the configuration's: all is well")]
    assert budget.ClientsBudget(0.0, 0.0, Used()).look(60.0, Used(clients_s=60.0)) is None


def test_the_budget_is_looked_at_as_often_as_there_are_windows_of_sessions_that_go_on(tmp_path: Path) -> None:
    daemon = Daemon(Settings(str(tmp_path / "s"), str(tmp_path / "spool")), lambda *_: None)
    assert daemon.longest_period_s() == 0
    for name, state, plan in (("web", "resting", Plan(10, 60)), ("all", "recording", Plan(3600, 3600)),
                              ("old", "stopped", Plan(10, 86_400)), ("bad", "failed", Plan(10, 7200))):
        order = Order(name, Credentials(0, 0, ()), Wanted(unit=name), wishes.Wishes(10_007_000, ()), plan)
        daemon.sessions[name] = Session(order, daemon.house)
        daemon.sessions[name].state = state
    assert daemon.longest_period_s() == 60
    daemon.sessions["web"].state = "stopped"
    assert daemon.longest_period_s() == 0


def test_a_budget_that_cannot_be_held_is_told() -> None:
    spent = budget.Budget(1.0, 0.0, Used())
    for number in range(1, 10):
        spent.look(number * 30.0, Used(own_s=number * 30.0 * 0.5))
    assert spent.stretched == budget.STRETCHED_MAX
    assert spent.is_over


def test_requests_a_second_are_counted_by_a_clock() -> None:
    now = [0.0]
    bucket = Bucket(2.0, lambda: now[0])
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    now[0] = 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert bucket.is_full


# -- the configuration

GOOD = '''
[daemon]
budget_percent = 5

[[target]]
name = "web"
unit = "nginx.service"
record_s = 10
every_s = 60

[[target]]
name = "db"
command = "^postgres:"
options = ["-p", "hi", "-L", "8"]
'''
WRONG = (
    ("[daemon]\nbudget_percent = 'x'\n", r":2: Expected `float`, got `str` \(daemon.budget_percent\)"),
    ("[daemon]\n\nbugdet = 1\n", ":3: Object contains unknown field `bugdet`"),
    ("[daemon]\nmetrics_mode = '0888'\n", r":2: Expected `str` matching regex .* \(daemon.metrics_mode\)"),
    ("[deamon]\n", ":1: Object contains unknown field `deamon`"),
    ("a = \n", ":1: Invalid value"),
    (GOOD + "keep = 0\n", r":15: Expected `int` >= 1 \(target\[1\].keep\)"),
    (GOOD + "[[target]]\nname = 'web'\nunit = 'a.service'\n", r":15: target 'web': there is another of this name"),
    (GOOD + "[[target]]\nname = '../etc'\nunit = 'a.service'\n", ":16: Expected `str` matching regex"),
    (GOOD + "[[target]]\nname = '7'\nunit = 'a.service'\n", ":16: Expected `str` matching regex"),
    (GOOD + "[[target]]\nname = 'c'\n", ":15: target 'c': give one of"),
    (GOOD + "[[target]]\nname = 'c'\nunit = 'a'\ncommand = 'b'\n", ":15: target 'c': give one of"),
    (GOOD + "[[target]]\nname = 'c'\ncommand = '('\n", r":15: target 'c': command \(: missing \)"),
    (GOOD + "[[target]]\nname = 'c'\nunit = 'a'\nrecord_s = 5\n", ":15: target 'c': record_s and every_s go together"),
    (GOOD + "[[target]]\nname = 'c'\nunit = 'a'\nrecord_s = 0.04\nevery_s = 1\n",
     ":15: target 'c': record_s = 0.04: give 0.1 or more"),
    (GOOD + "[[target]]\nname = 'c'\nunit = 'a'\noptions = ['-o', 'x.er']\n", ":15: target 'c': option -o not"),
    (GOOD + "[[target]]\nname = 'c'\nunit = '../a'\n", ":15: target 'c': unit ../a: give the name of a unit"),
)


def test_a_configuration_is_read() -> None:
    read = config.parse(GOOD, "collectord.toml")
    assert [target.name for target in read.target] == ["web", "db"]
    assert read.target[0].plan._replace(phase=0.0) == Plan(10.0, 60.0, 3600.0, 64)
    assert 0 < read.target[0].plan.phase < 1
    assert config.parse("", "x") == config.Config()


@pytest.mark.parametrize("name", ["README.md", "systemd/collectord.toml"])
def test_the_configurations_of_the_documents_are_right(name: str) -> None:
    text = (ROOT / name).read_text()
    shown = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    for each in shown or [text.replace("\n# ", "\n")]:
        config.parse(each, name)
    assert len(shown) == (2 if name == "README.md" else 0)


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_a_mistake_in_the_configuration_names_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^collectord.toml{message}"):
        config.parse(text, "collectord.toml")


@given(st.text())
def test_any_text_is_a_configuration_or_a_line_that_says_why_not(text: str) -> None:
    try:
        config.parse(text, "c")
    except ConfigError as err:
        assert str(err).startswith("c:")


# -- options and labels


@pytest.mark.parametrize(("words", "stretched", "argv"), [
    ((), 1.0, ["-p", "10007u"]),
    (("-p", "hi"), 2.0, ["-p", "1994u"]),
    (("-p", "hi"), 1e9, ["-p", "1000000u"]),
    (("-p", "off", "-S", "1"), 4.0, ["-p", "off", "-S", "1"]),
    (("--tree", "--aggregate=a=count()", "-t", "5"), 1.0,
     ["-p", "10007u", "--tree", "--aggregate=a=count()", "-t", "5"]),
])
def test_options_of_a_client(words: Sequence[str], stretched: float, argv: list[str]) -> None:
    assert wishes.parse(words).argv(stretched, 0, copies=True) == argv
    assert wishes.parse(words).argv(stretched, 9, copies=False) == [*argv, "-L", "9", "-A", "off"]


def test_of_two_limits_the_smaller_counts() -> None:
    assert wishes.parse(("-L", "5")).argv(1.0, 9, copies=True)[-2:] == ["-L", "5"]
    assert wishes.parse(("-L", "50")).argv(1.0, 9, copies=True)[-2:] == ["-L", "9"]


@pytest.mark.parametrize(("words", "stretched", "said"), [
    ((), 1.0, ""), (("-p", "off"), 8.0, ""), (("-p", "1000"), 8.0, ""),
    ((), 4.0, "every 40.028 ms instead of 10.007 ms, to stay within the budget"),
    (("-p", "500"), 8.0, "every 1000.000 ms instead of 500.000 ms, to stay within the budget"),
])
def test_an_interval_that_the_budget_lengthens_is_told(words: Sequence[str], stretched: float, said: str) -> None:
    assert wishes.parse(words).changed(stretched) == said


@pytest.mark.parametrize("words", [("-o", "/etc/x.er"), ("-d", "/"), ("-P", "1"), ("-y", "KILL"), ("-g", "a.erg"),
                                   ("program",), ("-p",), ("-L", "x"), ("--label=a=b",), ("-O", "x.er"), ("-M", "on")])
def test_options_that_are_not_for_clients(words: Sequence[str]) -> None:
    with pytest.raises(Exception, match=r"a session takes|give a size"):
        wishes.parse(words)


CONTAINER = "0123456789abcdef" * 4


@pytest.mark.parametrize(("path", "unit", "container"), [
    ("/system.slice/nginx.service", "nginx.service", ""),
    (f"/system.slice/docker-{CONTAINER}.scope", f"docker-{CONTAINER}.scope", CONTAINER),
    (f"/kubepods/burstable/pod1/{CONTAINER}", "", CONTAINER),
    ("/user.slice/user-0.slice/user@0.service/app.slice/a.service/x", "a.service", ""),
    ("/", "", ""),
])
def test_what_a_control_group_tells(path: str, unit: str, container: str) -> None:
    assert labels.of_cgroup(path) == {"cgroup": path, "unit": unit, "container": container}
