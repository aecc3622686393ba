"""Records and accounts of a scheduler of known truth, reconciled: the sums are right whatever the witnesses' faults."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.events import Edge, Source
from collector.timing.ledger import (
    LAG_NS,
    LEAST_AWAY_NS,
    LEAST_NS,
    LONGEST_TICK_NS,
    TICK_NS,
    Budget,
    Ledger,
    ReadAccounts,
    Seen,
)
from collector.timing.silences import NO_STRIKES, Strikes
from collector.timing.timeline import NO_MOMENTS, Periods, Timeline, Wakeups, edges_of, moments_of
from tests.timing.scheduler import BUGS, MS, RUN, Plan, Witness, Work, plans

INTERVAL_NS = 10_007_000


@dataclass
class Outcome:
    """What was told of a plan: periods of each thread."""

    witness: Witness
    periods: list[Periods]
    timeline: Timeline
    ledger: Ledger

    def of(self, number: int) -> list[tuple[int, int, int, int]]:
        """(start, end, kind, source) of a thread's periods."""
        return [(start, end, kind, source) for part in self.periods for slot, start, end, kind, source in zip(
            part.slot.tolist(), part.start_ns.tolist(), part.end_ns.tolist(), part.kind.tolist(), part.source.tolist(),
            strict=True) if slot == number]

    def ran_ns(self, number: int, until_ns: int) -> int:
        clocks = self.timeline.clocks
        open_ns = until_ns - int(clocks.since_ns[number]) if clocks.kind[number] == Edge.IN else 0
        return int(clocks.cpu_ns[number]) + open_ns


def told(plan: Plan) -> Outcome:
    """Plays a plan through ledger and timeline."""
    witness, timeline, ledger = Witness(plan), Timeline(), Ledger(plan.n_cpus)
    n = len(plan.works)
    timeline.grow(n)
    zero = np.zeros(n, np.int64)
    ledger.begin(ReadAccounts(np.arange(n), np.array([work.born_ns for work in plan.works]), zero, zero))
    periods = []
    for batch in witness.batches():
        read = witness.read(batch, np.flatnonzero(timeline.clocks.kind == Edge.IN).tolist())
        seen = Seen(batch.since_ns, batch.until_ns, is_blind=batch.blind, is_lossy=witness.n_lost > 0)
        edges = ledger.reconciled(batch.edges, read, timeline, seen, struck=partial(witness.strikes, batch))
        periods.append(timeline.advance(edges))
    return Outcome(witness, periods, timeline, ledger)


def assert_lives_have_no_holes(outcome: Outcome) -> None:
    for number, work in enumerate(outcome.witness.plan.works):
        at_ns = work.born_ns
        for start_ns, end_ns, kind, _ in outcome.of(number):
            assert (start_ns, kind != Edge.ENDED) == (at_ns, True)
            assert end_ns >= start_ns
            at_ns = end_ns


def test_what_is_recorded_without_faults_is_told_as_it_was() -> None:
    works = Work(0, ((7 * MS, 11 * MS), (5 * MS, 3 * MS)), True), Work(MS, ((9 * MS, 1 * MS),) * 7, False)
    plan = Plan(works, n_cpus=1)
    outcome = told(plan)
    for number, thread in enumerate(outcome.witness.threads):
        runs = [(s.start_ns, s.end_ns) for s in thread.told if s.what == RUN]
        assert [(start, end) for start, end, kind, _ in outcome.of(number) if kind == Edge.IN and end > start] == runs
        assert all(source == Source.RECORDED for *_, source in outcome.of(number))


def assert_running_is_true(outcome: Outcome, tolerance_ns: int) -> None:
    """Of threads that live on: of others there is no last account."""
    plan = outcome.witness.plan
    for number, thread in enumerate(outcome.witness.threads):
        if thread.end_ns is None and thread.work.born_ns < plan.length_ns:
            truth_ns = outcome.witness.sums_ns(number, plan.length_ns)[RUN]
            assert abs(outcome.ran_ns(number, plan.length_ns) - truth_ns) <= tolerance_ns


def assert_laws_hold(outcome: Outcome) -> None:
    """No thread runs before its birth, and CPUs run one thread at a time."""
    plan = outcome.witness.plan
    ran_ns = [outcome.ran_ns(number, plan.length_ns) for number in range(len(plan.works))]
    for ran, work in zip(ran_ns, plan.works, strict=True):
        assert 0 <= ran <= plan.length_ns - work.born_ns
    assert sum(ran_ns) <= plan.n_cpus * plan.length_ns


@settings(max_examples=100, deadline=None)
@given(plans(lag_ns=st.integers(0, 15_000)))
def test_late_records_have_the_sums_of_the_accounts(plan: Plan) -> None:
    outcome = told(plan)
    assert_lives_have_no_holes(outcome)
    for number, thread in enumerate(outcome.witness.threads):
        truth_ns = outcome.witness.sums_ns(number, plan.length_ns)[RUN]
        short_ns = truth_ns - outcome.ran_ns(number, plan.length_ns)
        # Of one that has ended there is no last account: its last runs begin as early as those before them did.
        n_guessed = len(thread.told) if thread.end_ns is not None else 2
        assert -n_guessed * LAG_NS <= short_ns <= plan.lag_ns * len(thread.told)


@settings(max_examples=100, deadline=None)
@given(plans(lag_ns=st.integers(0, 15_000), lost=st.floats(0, 0.5)))
def test_lost_records_have_the_sums_of_the_accounts(plan: Plan) -> None:
    outcome = told(plan)
    assert_lives_have_no_holes(outcome)
    assert_laws_hold(outcome)
    assert_running_is_true(outcome, INTERVAL_NS + LONGEST_TICK_NS)


@settings(max_examples=100, deadline=None)
@given(plans(stolen=st.floats(0, 1)))
def test_stolen_time_is_waiting(plan: Plan) -> None:
    outcome = told(plan)
    assert_lives_have_no_holes(outcome)
    assert_running_is_true(outcome, LONGEST_TICK_NS + LEAST_NS)


@settings(max_examples=100, deadline=None)
@given(plans(blind_ns=st.tuples(st.integers(1, 400 * MS), st.integers(401 * MS, 990 * MS)), lag_ns=3_000))
def test_without_records_the_accounts_tell(plan: Plan) -> None:
    outcome = told(plan)
    assert_lives_have_no_holes(outcome)
    assert_laws_hold(outcome)
    assert_running_is_true(outcome, INTERVAL_NS + TICK_NS)


def test_what_is_put_in_says_so() -> None:
    """Steal time is adjusted, a stretch without records synthetic, and nothing else is."""
    works = (Work(0, ((40 * MS, 5 * MS),) * 12, False),) * 2
    stolen = told(Plan(works, stolen=1.0))
    assert {source for *_, source in stolen.of(0)} == {Source.RECORDED, Source.ADJUSTED}
    assert stolen.ledger.steal_ns > 10 * MS
    blind = told(Plan(works, blind_ns=(203 * MS, 607 * MS)))
    for start_ns, end_ns, _, source in blind.of(1):
        if start_ns < end_ns <= 202 * MS or 705 * MS <= start_ns < end_ns:
            assert source == Source.RECORDED
        elif 303 * MS <= start_ns < end_ns <= 606 * MS:
            assert source == Source.SYNTHETIC


@pytest.mark.parametrize("bug", BUGS)
def test_the_checks_find_lying_witnesses(bug: str) -> None:
    works = (Work(3 * MS, ((13 * MS, 7 * MS),) * 9, False), Work(5 * MS, ((29 * MS, 31 * MS),) * 5, False))
    with pytest.raises(AssertionError):
        outcome = told(Plan(works, lost=0.2, bug=bug))
        assert_lives_have_no_holes(outcome)
        assert_running_is_true(outcome, INTERVAL_NS + TICK_NS)


# --- literal cases --------------------------------------------------------------------------------

IN, BLOCKED, PREEMPTED, BORN, ENDED = Edge.IN, Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED, Edge.BORN, Edge.ENDED


class Machine:
    """A ledger and a timeline of threads that were born at 0, or found runnable then, or ``off_cpu``, fed by hand in
    ms.

    ``run``: what their first accounts say, which were read so ``late``.
    """

    def __init__(self, n: int, n_cpus: int = 2, found: bool = False, run: int = 0, late: int = 0,
                 off_cpu: bool = False) -> None:
        self.timeline, self.ledger, self._at_ns = Timeline(), Ledger(n_cpus), 0
        self.timeline.grow(n)
        self.timeline.clocks.found[:n] = found
        self.ledger.begin(reads(*((slot, 0, run, 0) for slot in range(n))), 0 if off_cpu else late * MS)
        self.feed(0, [(slot, 0, BLOCKED if off_cpu else IN if found else BORN, -1) for slot in range(n)])
        if off_cpu:
            self.ledger.found_off_cpu(np.arange(n), np.full(n, late * MS))

    def feed(self, until: int, records: list[tuple[int, int, int, int]], read: ReadAccounts | None = None,
             strikes: Strikes = NO_STRIKES, behind: ReadAccounts | None = None,
             **seen: bool) -> list[tuple[int, int, int, int]]:
        """Takes records (slot, time, edge, CPU) and returns the periods (slot, start, end, kind) that they close."""
        slot, time_ms, edge, cpu = np.array(records, dtype=np.int64).reshape(-1, 4).T
        edges = edges_of(slot, time_ms * MS, edge, cpu.astype(np.int32))
        stretch, self._at_ns = Seen(self._at_ns, until * MS, **seen), until * MS
        told = self.timeline.advance(self.ledger.reconciled(edges, read or reads(), self.timeline, stretch,
                                                            struck=lambda: strikes, behind=behind))
        return [(slot, start // MS, end // MS, kind) for slot, start, end, kind in zip(
            told.slot.tolist(), told.start_ns.tolist(), told.end_ns.tolist(), told.kind.tolist(), strict=True)]


def reads(*rows: tuple[int, int, int, int]) -> ReadAccounts:
    """Accounts (slot, time, run, delay) in ms."""
    slot, time_ms, run_ms, delay_ms = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return ReadAccounts(slot, time_ms * MS, run_ms * MS, delay_ms * MS)


def test_an_arrival_on_a_cpu_ends_the_run_of_who_was_there() -> None:
    machine = Machine(2)
    assert machine.feed(50, [(0, 3, IN, 1), (1, 11, IN, 1), (1, 17, BLOCKED, 1)]) == [
        (0, 0, 3, BORN), (0, 3, 11, IN), (1, 0, 11, BORN), (1, 11, 17, IN)]
    assert machine.feed(90, [(0, 71, BLOCKED, 1)]) == [(0, 11, 71, BLOCKED), (0, 71, 71, IN)]  # came back unseen
    assert machine.ledger.n_repaired == 2


def test_an_arrival_ends_a_run_from_an_earlier_batch() -> None:
    machine = Machine(2)
    machine.feed(50, [(0, 3, IN, 1)])
    assert machine.feed(90, [(1, 61, IN, 1)]) == [(0, 3, 61, IN), (1, 0, 61, BORN)]
    assert machine.feed(99, [(1, 95, BLOCKED, 1)]) == [(1, 61, 95, IN)]


def test_a_run_of_unknown_beginning_has_the_accounts_length() -> None:
    machine = Machine(1)
    assert machine.feed(50, [(0, 41, BLOCKED, 0)], reads((0, 50, 13, 5))) == [(0, 0, 28, BORN), (0, 28, 41, IN)]


def test_what_was_found_runnable_is_told_by_its_account() -> None:
    ran, waited = Machine(1, found=True), Machine(1, found=True)
    assert ran.feed(10, [], reads((0, 10, 8, 0))) == waited.feed(10, [], reads((0, 10, 0, 0))) == []  # too early
    ran.feed(100, [], reads((0, 100, 97, 0)))
    waited.feed(100, [], reads((0, 100, 0, 0)))
    assert ran.feed(150, [(0, 121, BLOCKED, 0)]) == [(0, 0, 121, IN)]
    assert waited.feed(150, [(0, 121, IN, 0)]) == [(0, 0, 121, PREEMPTED)]


def test_where_we_end_what_was_found_runnable_is_told_by_its_account_from_behind_that() -> None:
    """Nobody had looked before; one ran, and goes on, one had a CPU behind the end alone, one had ended itself."""
    machine = Machine(3, found=True)
    assert machine.feed(200, [], reads()) == []
    told = machine.feed(200, [(slot, 200, ENDED, 0) for slot in range(3)],
                        behind=reads((0, 290, 287, 0), (1, 290, 9, 270)))
    assert sorted(one for one in told if one[1] < one[2]) == [(0, 0, 200, IN), (1, 0, 200, PREEMPTED), (2, 0, 200, IN)]


@pytest.mark.parametrize(("run", "first", "told"), [(297, BLOCKED, (0, 220, 340, IN)),
                                                    (200, IN, (0, 220, 340, PREEMPTED))])
def test_what_was_found_runnable_once_more_is_told_by_what_its_account_has_gained(
        run: int, first: int, told: tuple[int, int, int, int]) -> None:
    """It ran for 200 ms before nobody knew what it did."""
    machine = Machine(1)
    machine.feed(220, [(0, 0, IN, 0), (0, 200, BLOCKED, 0), (0, 220, PREEMPTED, 0)], reads((0, 220, 200, 0)))
    machine.timeline.find_again(np.array([0]), np.array([True]))
    machine.feed(320, [], reads((0, 320, run, 0)))
    assert machine.feed(350, [(0, 340, first, 0)]) == [told]
    assert machine.ledger.steal_ns == 0


@pytest.mark.parametrize(("edge", "told"), [(IN, PREEMPTED), (BLOCKED, IN), (PREEMPTED, IN)])
def test_the_first_record_of_a_found_thread_tells_what_it_did(edge: int, told: int) -> None:
    ran_ms = 17 if edge == IN else 83
    assert Machine(1, found=True).feed(100, [(0, 83, edge, 0)], reads((0, 100, ran_ms, 0))) == [(0, 0, 83, told)]


@pytest.mark.parametrize(("late", "run", "records", "told"), [
    (25, 1004, [(0, 4, PREEMPTED, 0)], [(0, 0, 4, IN)]),  # it had left its CPU by then
    (1, 998, [(0, 4, PREEMPTED, 0)], [(0, 0, 4, IN)]),  # as of the tick before
    (25, 1004, [(0, 10, IN, 0), (0, 14, BLOCKED, 0)], [(0, 0, 10, PREEMPTED), (0, 10, 14, IN)]),  # it had run by then
    (25, 1000, [(0, 24, IN, 0), (0, 28, BLOCKED, 0)], [(0, 0, 24, PREEMPTED), (0, 24, 28, IN)])])  # it just ran
def test_the_account_of_who_was_found_is_as_old_as_records_say(late: int, run: int, records: list[Any],
                                                               told: list[Any]) -> None:
    """At 0 it had run for 1000 ms, and it runs for 4 more."""
    machine = Machine(1, found=True, run=run, late=late)
    assert machine.feed(50, records, reads((0, 50, 1004, 0))) == told
    told = machine.feed(100, [(0, 100, IN, 0)], reads((0, 90, 1004, 0)))
    assert [kind for *_, kind in told] == [records[-1][2]]
    assert machine.ledger.steal_ns == 0


@pytest.mark.parametrize(("run", "records"), [
    (1004, [(4, IN), (8, BLOCKED)]),  # it had run by then
    (1004, [(4, BLOCKED)]),  # it ran at 0
    (1000, [(24, IN), (28, BLOCKED)]),  # it just ran: as of the tick before
    (1000, [(26, IN), (30, BLOCKED)])])
@pytest.mark.parametrize("until", [6, 22, 27, 40])
def test_the_account_of_who_was_found_off_its_cpu_is_as_late_as_it_was_read(
        run: int, records: list[tuple[int, int]], until: int) -> None:
    """At 0 it had run for 1000 ms, it runs for 4 more, and its account was read at 25. The batches are cut anywhere."""
    machine = Machine(1, found=True, run=run, late=25, off_cpu=True)
    machine.feed(until, [(0, at, edge, 0) for at, edge in records if at <= until])
    machine.feed(50, [(0, at, edge, 0) for at, edge in records if at > until], reads((0, 50, 1004, 0)))
    assert machine.timeline.clocks.cpu_ns[0] == 4 * MS
    assert (machine.ledger.steal_ns, machine.ledger.n_repaired) == (0, 0)


def test_a_lost_end_is_an_end_and_no_steal_time_where_records_were_lost() -> None:
    steal, lost = Machine(1), Machine(1)
    for machine, is_lossy in ((steal, False), (lost, True)):
        machine.feed(100, [(0, 3, IN, 0)], reads((0, 100, 20, 0)), is_lossy=is_lossy)
    assert lost.timeline.clocks.kind[0] == BLOCKED
    assert steal.timeline.clocks.kind[0] == IN
    assert lost.ledger.steal_ns == 0 < steal.ledger.steal_ns


def test_stolen_time_is_where_the_clock_was_silent() -> None:
    """Also of a run that goes on, whose account is a tick old."""
    machine = Machine(2)
    struck = Strikes(moments_of(np.zeros(8, np.int64), np.array([13, 23, 50, 53, 63, 73, 83, 93]) * MS), 10 * MS)
    told = machine.feed(120, [(0, 3, IN, 0), (1, 3, IN, 1), (1, 110, BLOCKED, 1)],
                        reads((0, 100, 76, 0), (1, 120, 90, 0)), struck)
    assert [(start, end) for slot, start, end, kind in told if (slot, kind) == (0, PREEMPTED)] == [(32, 49)]
    assert [(start, end) for slot, start, end, kind in told if (slot, kind) == (1, PREEMPTED)] == [(92, 109)]
    assert machine.ledger.steal_ns == (17 + 17) * MS


def test_who_has_the_cpu_back_is_where_it_was() -> None:
    """And whoever arrives there ends that run."""
    machine = Machine(2, n_cpus=2)
    machine.feed(120, [(0, 3, IN, 1)], reads((0, 100, 76, 0)))
    told = machine.timeline.edges
    assert told.cpu[told.source == Source.ADJUSTED].tolist() == [1, 1]
    assert (0, 99, 131, IN) in machine.feed(150, [(1, 131, IN, 1)])


def test_a_run_whose_end_was_lost_ends_before_time_was_stolen() -> None:
    """It left CPU 0 at 20, and another thread came there at 60; the process has used 20 ms."""
    timeline, ledger, zero, slots = Timeline(), Ledger(2), np.zeros(2, np.int64), np.arange(2)
    timeline.grow(2)
    ledger.begin(ReadAccounts(slots, zero, zero, zero))
    rows = [(0, 0, BORN, -1), (0, 0, IN, 0), (0, 100, ENDED, -1), (1, 0, BORN, -1), (1, 60, IN, 0)]
    slot, time_ms, edge, cpu = np.array(rows, np.int64).T
    read = reads((1, 120, 60, 0))
    timeline.advance(ledger.reconciled(edges_of(slot, time_ms * MS, edge, cpu.astype(np.int32)), read, timeline,
                                       Seen(0, 120 * MS, is_lossy=True), budgets=[Budget(slots[:1], 20 * MS)]))
    assert timeline.clocks.cpu_ns[0] == 20 * MS
    assert ledger.steal_ns == 0


def test_cpus_cannot_run_more_than_their_number() -> None:
    machine = Machine(3, n_cpus=1)  # no CPU is known of these runs
    machine.feed(100, [(slot, 10, IN, -1) for slot in range(3)])
    assert sum(machine.timeline.ran_ns(np.arange(3), np.full(3, 100 * MS))) <= 100 * MS


def test_nothing_comes_after_an_end_and_nothing_before_a_birth() -> None:
    machine = Machine(1)
    machine.feed(50, [(0, 3, IN, 0), (0, 11, ENDED, -1)])
    assert machine.feed(90, [(0, 12, BLOCKED, 0), (0, 61, IN, 0)]) == []
    assert machine.timeline.clocks.cpu_ns[0] == 8 * MS


def test_what_ended_without_an_account_ran_after_its_last_one() -> None:
    """It had slept for 900 ms by then, which the estimate of what came later is not to fill."""
    timeline, ledger, zero = Timeline(), Ledger(1), np.zeros(1, np.int64)
    timeline.grow(1)
    ledger.begin(ReadAccounts(zero, zero, zero, zero))
    lived = np.array([Edge.BORN, Edge.IN, Edge.OUT_BLOCKED])
    edges = edges_of(np.zeros(3, np.int64), np.array([0, 0, 100]) * MS, lived)
    read = ReadAccounts(zero, zero + 1000 * MS, zero + 100 * MS, zero)
    timeline.advance(ledger.reconciled(edges, read, timeline, Seen(0, 1000 * MS)))
    ended = edges_of(zero, zero + 1100 * MS, np.array([Edge.ENDED]))
    none = ReadAccounts(*(zero[:0],) * 4)
    timeline.advance(ledger.reconciled(ended, none, timeline, Seen(1000 * MS, 1100 * MS, is_blind=True)))
    assert timeline.clocks.cpu_ns[0] == 100 * MS + 10 * MS  # a tenth of 100 ms


@pytest.mark.parametrize(("left_ms", "estimated_ms"), [(40, 40), (0, 0), (-3, 0), (160, 100)])
def test_estimates_are_no_more_than_what_the_clock_of_their_process_leaves(left_ms: int, estimated_ms: int) -> None:
    """Three threads have worked for 50 of 100 ms; the one that lives runs 31 ms more, two end after another 100 ms."""
    timeline, ledger, zero, slots = Timeline(), Ledger(2), np.zeros(3, np.int64), np.arange(3)
    timeline.grow(3)
    ledger.begin(ReadAccounts(slots, zero, zero, zero))
    lived = edges_of(slots.repeat(3), np.tile([0, 0, 50], 3) * MS, np.tile([Edge.BORN, Edge.IN, Edge.OUT_BLOCKED], 3))
    timeline.advance(ledger.reconciled(lived, ReadAccounts(slots, zero + 100 * MS, zero + 50 * MS, zero), timeline,
                                       Seen(0, 100 * MS)))
    ended = edges_of(slots[1:], zero[1:] + 200 * MS, np.full(2, Edge.ENDED))
    goes_on = ReadAccounts(*(np.array([value]) * MS for value in (0, 200, 81, 0)))
    timeline.advance(ledger.reconciled(ended, goes_on, timeline, Seen(100 * MS, 200 * MS, is_blind=True),
                                       budgets=[Budget(slots, (3 * 50 + 31 + left_ms) * MS)]))
    assert timeline.clocks.cpu_ns[0] == 81 * MS
    assert timeline.clocks.cpu_ns[1:].sum() - 100 * MS == pytest.approx(estimated_ms * MS, abs=2)
    assert timeline.clocks.cpu_ns[1] == timeline.clocks.cpu_ns[2]


@pytest.mark.parametrize(("left_ms", "stolen"), [(100, []), (99.5, []), (83, [(30, 47)]), (77, [(30, 47), (80, 86)])])
def test_of_threads_that_are_gone_the_clock_of_their_process_tells_what_was_stolen(
        left_ms: float, stolen: list[tuple[int, int]]) -> None:
    """One that has run for 100 ms by its records, of which its clock was silent from 30 to 47 and from 80 to 86."""
    timeline, ledger, zero = Timeline(), Ledger(1), np.zeros(1, np.int64)
    timeline.grow(1)
    ledger.begin(ReadAccounts(zero, zero, zero, zero))
    times_ms = np.array([10, 20, 47, 50, 60, 70, 86, 90])
    struck = Strikes(moments_of(np.zeros(8, np.int64), times_ms * MS), 10 * MS)
    lived = edges_of(np.zeros(3, np.int64), np.array([0, 0, 100]) * MS, np.array([Edge.BORN, Edge.IN, Edge.ENDED]))
    none = ReadAccounts(*(zero[:0],) * 4)
    told = timeline.advance(ledger.reconciled(lived, none, timeline, Seen(0, 200 * MS), struck=lambda: struck,
                                              budgets=[Budget(zero, int(left_ms * MS))]))
    waits = told.take((told.kind == Edge.OUT_PREEMPTED) & (told.source == Source.ADJUSTED))
    assert [(round(start / MS), round(end / MS)) for start, end in zip(
        waits.start_ns.tolist(), waits.end_ns.tolist(), strict=True)] == stolen
    assert timeline.clocks.cpu_ns[0] == (min(left_ms, 100) if stolen else 100) * MS
    assert ledger.steal_ns == 100 * MS - timeline.clocks.cpu_ns[0]


def test_a_run_whose_end_no_record_could_tell_is_over_when_records_rest() -> None:
    """Not at the end of the thread, of which there was no account in between."""
    timeline, ledger, zero = Timeline(), Ledger(1), np.zeros(1, np.int64)
    timeline.grow(1)
    ledger.begin(ReadAccounts(zero, zero, zero, zero))
    edges = edges_of(np.zeros(3, np.int64), np.array([0, 11, 900]) * MS, np.array([Edge.BORN, Edge.IN, Edge.ENDED]))
    none = ReadAccounts(*(zero[:0],) * 4)
    timeline.advance(ledger.reconciled(edges, none, timeline, Seen(0, 1000 * MS, is_lossy=True, rested_ns=14 * MS)))
    assert timeline.clocks.cpu_ns[0] == 3 * MS


class Napper:
    """One thread's clock, fed with runs (from, to) in ns and its run by the account at a time. It gives when its runs
    began."""

    def __init__(self) -> None:
        self._timeline, self._ledger, self._none = Timeline(), Ledger(1), np.zeros(1, np.int64)
        self._timeline.grow(1)
        self._ledger.begin(ReadAccounts(*(self._none,) * 4))
        self._since_ns = 0
        self.ended: list[int] = []

    def feed(self, edges: list[tuple[int, Edge]], until_ns: int, run_ns: int,
             woken: Wakeups = NO_MOMENTS, came: Wakeups = NO_MOMENTS) -> list[int]:
        time_ns, edge = (np.array(column, np.int64) for column in zip(*edges, strict=True))
        read = ReadAccounts(self._none, self._none + until_ns, self._none + run_ns, self._none)
        seen, self._since_ns = Seen(self._since_ns, until_ns), until_ns
        given = edges_of(np.zeros(len(edge), np.int64), time_ns, edge)
        found = self._ledger.reconciled(given, read, self._timeline, seen, woken, came)
        self._timeline.advance(found)
        self.ended = [int(time) for time in found.time_ns[found.edge == BLOCKED]]
        return [int(time) for time in found.time_ns[found.edge == IN]]


def test_no_run_begins_before_its_wake_up() -> None:
    """And none as early as the end of the run before it: what was recorded off a CPU has a length."""
    edges = [(0, Edge.BORN), (90_000, IN), (100_000, BLOCKED), (105_000, IN), (120_000, BLOCKED), (170_000, IN),
             (180_000, BLOCKED)]
    woken = moments_of(np.zeros(2, np.int64), np.array([168_500, 101_000]))
    began = Napper().feed(edges, 200_000, 35_000 + 3 * 7_000, woken)
    assert began == [90_000 - 7_000, 101_000 + LEAST_AWAY_NS, 168_500 + LEAST_AWAY_NS]
    assert Napper().feed(edges, 200_000, 35_000 + 3 * 7_000) == [90_000 - 7_000, 100_000 + LEAST_AWAY_NS, 163_000]


def test_a_run_of_exact_beginning_ends_later_instead() -> None:
    """But not behind the next wake-up. Each run has its share, whichever of its ends that moves."""
    edges = [(0, Edge.BORN), (90_000, IN), (100_000, BLOCKED), (150_000, IN), (160_000, BLOCKED), (190_000, IN),
             (200_000, BLOCKED)]
    came = moments_of(np.zeros(2, np.int64), np.array([90_000, 190_000]))
    woken = moments_of(np.zeros(1, np.int64), np.array([104_000]))
    napper = Napper()
    assert napper.feed(edges, 300_000, 30_000 + 3 * 7_000, woken, came) == [90_000, 143_000, 190_000]
    assert napper.ended == [104_000 - LEAST_AWAY_NS, 160_000, 207_000]


def test_a_gap_that_is_filled_is_still_a_gap() -> None:
    edges = [(0, Edge.BORN), (0, IN), (MS, BLOCKED), (9 * MS, IN), (10 * MS, BLOCKED), (19 * MS, IN),
             (20 * MS, BLOCKED)]
    assert Napper().feed(edges, 20 * MS, 20 * MS) == [0, MS + LEAST_AWAY_NS, 10 * MS + LEAST_AWAY_NS]


LATE = [(0, Edge.BORN), (0, IN), (MS, BLOCKED), (50 * MS, IN), (51 * MS, BLOCKED), (101 * MS, IN), (102 * MS, BLOCKED)]


@pytest.mark.parametrize("wakes, came, begins", [
    ((47 * MS, 100 * MS), (), (48 * MS, 101 * MS)),  # it ran 2 ms more than recorded: of the longer wait
    ((47 * MS, 100 * MS), (50 * MS, 101 * MS), (48 * MS, 101 * MS)),  # though its beginning is told
    ((49 * MS, 100 * MS), (), (49 * MS + LEAST_AWAY_NS, 100 * MS + LEAST_AWAY_NS)),  # of both
    ((), (), (50 * MS, 99 * MS)),  # of the longest gap that a run is behind, which the nap that lasts is not
], ids=("one", "told", "both", "unknown"))
def test_an_account_that_began_long_before_its_run_takes_of_the_waits(wakes: tuple[int, ...], came: tuple[int, ...],
                                                                      begins: tuple[int, int]) -> None:
    """The thread naps as its account is read, longer than any of its waits were: it has not run meanwhile."""
    woken, told = (moments_of(np.zeros(len(times), np.int64), np.array(times, np.int64)) for times in (wakes, came))
    assert Napper().feed(LATE, 300 * MS, 5 * MS, woken, told) == pytest.approx([0, *begins], abs=2 * LAG_NS)


@pytest.mark.parametrize("run_ms, begins_ms", [(3, (50, 101)), (7, (50, 101)), (9, (50, 99))])
def test_what_an_account_has_from_behind_the_end_is_none_of_the_runs(run_ms: int, begins_ms: tuple[int, int]) -> None:
    """It was read 4 ms later: up to so much of it is of that time, and what is more is of the runs."""
    edges = [*LATE[:-1], (102 * MS, Edge.ENDED)]
    began = Napper().feed(edges, 106 * MS, run_ms * MS)
    assert began == pytest.approx([0, *(begin * MS for begin in begins_ms)], abs=2 * LAG_NS)


def test_a_stale_account_does_not_change_the_lag() -> None:
    """Runs that are recorded 9 us late: the second account is read while the thread runs, and 1 ms old."""
    napper, lag_ns, period_ns, n = Napper(), 9_000, 100_000, 20

    def runs(first: int) -> list[tuple[int, Edge]]:
        return [pair for i in range(first, first + n) for pair in (
            (i * period_ns + 50_000 + lag_ns, IN), ((i + 1) * period_ns, BLOCKED))]

    def began(first: int) -> list[int]:
        return [i * period_ns + 50_000 for i in range(first, first + n)]

    assert napper.feed([(0, Edge.BORN), *runs(0)], n * period_ns + 1, n * 50_000) == began(0)
    at_ns = 2 * n * period_ns + MS
    open_run = (2 * n * period_ns + 50_000 + lag_ns, IN)
    assert napper.feed([*runs(n), open_run], at_ns, 2 * n * 50_000) == [*began(n), open_run[0] - lag_ns]
    last = [(at_ns + 1, BLOCKED), *runs(3 * n)]
    run_ns = 2 * n * 50_000 + MS - 50_000 + 1 + n * 50_000
    assert napper.feed(last, 4 * n * period_ns + 1, run_ns) == began(3 * n)
