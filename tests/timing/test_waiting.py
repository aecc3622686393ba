"""What threads wait for: every reason as a table, and the laws of accounts, ticks and settling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.events import Edge, Reason
from collector.timing.microstate import ThreadClocks
from collector.timing.waiting import Departures, Microstate, PageFaults, Spans, Waiting

INTERVAL = 10_007
BORN, IN, BLOCKED, PREEMPTED, ENDED = Edge.BORN, Edge.IN, Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED, Edge.ENDED
IP = 0x7F00_0000_1234
ON_CODE_PAGE, ON_OTHER_PAGE = 0x7F00_0000_1FFF, 0x7F00_0000_2000

Departure = tuple[int, int, int, Reason, int]  # time, slot, stack, reason, ip
Fault = tuple[int, int, int, int, bool]  # time, slot, address, ip, in kernel
Span = tuple[int, Microstate, int, int, int]  # slot, state, length, end, stack


def column(rows: Sequence[Sequence[int]], at: int, kind: type) -> np.ndarray:
    return np.array([row[at] for row in rows], kind)


def departures_of(rows: Sequence[Departure]) -> Departures:
    return Departures(column(rows, 1, np.int64), column(rows, 0, np.int64), column(rows, 2, np.uint64),
                      column(rows, 3, np.int8), column(rows, 4, np.uint64), np.full(len(rows), 1, np.int32))


def faults_of(rows: Sequence[Fault]) -> PageFaults:
    return PageFaults(column(rows, 1, np.int64), column(rows, 0, np.int64), column(rows, 2, np.uint64),
                      column(rows, 3, np.uint64), column(rows, 4, bool))


class Watch:
    """Clocks and waiting of a few threads, fed batch by batch."""

    def __init__(self, n_threads: int, interval_ns: int = INTERVAL) -> None:
        self.clocks, self.waiting = ThreadClocks(interval_ns), Waiting(interval_ns)
        for _ in range(n_threads):
            self.clocks.new_slot()

    def feed(self, edges: Sequence[tuple[int, int, Edge]], departures: Sequence[Departure] = (),
             faults: Sequence[Fault] = (), run_delay: dict[int, int] | None = None,
             wake_ups: Sequence[tuple[int, int]] = ()) -> list[Span]:
        """One batch, wake-ups as (time, slot); what it closed, by time."""
        periods = self.clocks.advance(column(edges, 1, np.int64), column(edges, 0, np.int64),
                                      column(edges, 2, np.int8)).off_cpu()
        grown = run_delay or {}
        delays = (np.array(list(grown), np.int64), np.array(list(grown.values()), np.int64))
        woken = self.waiting.woken_ns(periods, column(wake_ups, 1, np.int64), column(wake_ups, 0, np.int64))
        return listed(self.waiting.close(periods, self.clocks.edges, departures_of(departures), faults_of(faults),
                                         woken, delays))


def listed(spans: Spans) -> list[Span]:
    rows = zip(spans.slot.tolist(), map(Microstate, spans.state.tolist()), spans.length_ns.tolist(),
               spans.end_ns.tolist(), spans.uid.tolist(), strict=True)
    return sorted(rows, key=lambda row: (row[3], row[0], row[1] == Microstate.WAIT_CPU))


# --- reasons --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "state"), [
    (Reason.UNKNOWN, Microstate.SLEEP), (Reason.SLEEP, Microstate.SLEEP), (Reason.LOCK, Microstate.USER_LOCK),
    (Reason.USER_FAULT, Microstate.DATA_FAULT), (Reason.KERNEL_FAULT, Microstate.KERNEL_FAULT),
    (Reason.STOPPED, Microstate.STOPPED)])
def test_a_blocked_thread_waits_for_its_reason(reason: Reason, state: Microstate) -> None:
    watch = Watch(1)
    spans = watch.feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, reason, IP)])
    assert spans == [(0, state, 217, 317, 48)]
    assert watch.waiting.n_guessed == (reason == Reason.USER_FAULT)


@pytest.mark.parametrize("reason", Reason)
def test_a_preempted_thread_waits_for_a_cpu_whatever_it_did(reason: Reason) -> None:
    spans = Watch(1).feed([(5, 0, IN), (100, 0, PREEMPTED), (317, 0, IN)], [(99, 0, 48, reason, IP)])
    assert spans == [(0, Microstate.WAIT_CPU, 217, 317, 48)]


def test_a_new_thread_waits_for_a_cpu() -> None:
    assert Watch(1).feed([(5, 0, BORN), (100, 0, IN)]) == [(0, Microstate.WAIT_CPU, 95, 100, 0)]


def test_what_is_not_known_has_no_stack() -> None:
    assert Watch(1).feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)]) == [(0, Microstate.SLEEP, 217, 317, 0)]


def test_a_departure_belongs_to_its_own_thread_and_switch() -> None:
    watch = Watch(2)
    spans = watch.feed(
        [(5, 0, IN), (6, 1, IN), (100, 0, BLOCKED), (110, 1, BLOCKED), (200, 0, IN), (210, 1, IN), (300, 0, BLOCKED),
         (400, 0, IN)],
        [(99, 0, 16, Reason.LOCK, IP), (109, 1, 32, Reason.SLEEP, IP), (299, 0, 48, Reason.STOPPED, IP)])
    assert spans == [(0, Microstate.USER_LOCK, 100, 200, 16), (1, Microstate.SLEEP, 100, 210, 32),
                     (0, Microstate.STOPPED, 100, 400, 48)]


def test_a_period_over_two_batches_keeps_its_reason() -> None:
    watch = Watch(2)
    assert watch.feed([(5, 0, IN), (5, 1, IN), (100, 0, BLOCKED)], [(99, 0, 16, Reason.LOCK, IP)]) == []
    assert watch.feed([(150, 1, PREEMPTED)], [(149, 1, 32, Reason.UNKNOWN, IP)]) == []
    assert watch.feed([(200, 0, IN), (317, 1, IN)]) == [
        (0, Microstate.USER_LOCK, 100, 200, 16), (1, Microstate.WAIT_CPU, 167, 317, 32)]


@pytest.mark.parametrize(("address", "in_kernel", "reason", "state"), [
    (ON_CODE_PAGE, False, Reason.USER_FAULT, Microstate.TEXT_FAULT),
    (ON_OTHER_PAGE, False, Reason.USER_FAULT, Microstate.DATA_FAULT),
    (ON_CODE_PAGE, False, Reason.UNKNOWN, Microstate.TEXT_FAULT),
    (ON_OTHER_PAGE, False, Reason.UNKNOWN, Microstate.DATA_FAULT),
    (ON_OTHER_PAGE, True, Reason.UNKNOWN, Microstate.KERNEL_FAULT),
    (ON_OTHER_PAGE, True, Reason.KERNEL_FAULT, Microstate.KERNEL_FAULT),
    (ON_OTHER_PAGE, False, Reason.SLEEP, Microstate.SLEEP),
    (ON_OTHER_PAGE, False, Reason.LOCK, Microstate.USER_LOCK)])
@pytest.mark.parametrize("fault_ns", [98, 318], ids=["begun", "completed"])
def test_a_fault_of_the_same_instruction_tells_whose_page_it_was(
        address: int, in_kernel: bool, reason: Reason, state: Microstate, fault_ns: int) -> None:
    watch = Watch(1)
    spans = watch.feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, reason, IP)],
                       [(fault_ns, 0, address, IP, in_kernel)])
    assert spans == [(0, state, 217, 317, 48)]
    assert watch.waiting.n_guessed == 0


def test_a_fault_of_another_instruction_or_thread_tells_nothing() -> None:
    watch = Watch(2)
    spans = watch.feed([(5, 0, IN), (5, 1, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, Reason.USER_FAULT, IP)],
                       [(98, 0, IP, IP + 4, False), (318, 1, IP, IP, False)])
    assert spans == [(0, Microstate.DATA_FAULT, 217, 317, 48)]
    assert watch.waiting.n_guessed == 1  # a guess, and counted as one


# --- waiting for a CPU behind the wake-up ---------------------------------------------------------


@pytest.mark.parametrize(("run_delay", "expected"), [
    ({}, [(0, Microstate.SLEEP, 217, 317, 48)]),
    ({0: 0}, [(0, Microstate.SLEEP, 217, 317, 48)]),
    ({0: 17}, [(0, Microstate.SLEEP, 200, 317, 48), (0, Microstate.WAIT_CPU, 17, 317, 48)]),
    ({0: 217}, [(0, Microstate.SLEEP, 0, 317, 48), (0, Microstate.WAIT_CPU, 217, 317, 48)]),
    ({0: 999}, [(0, Microstate.SLEEP, 0, 317, 48), (0, Microstate.WAIT_CPU, 217, 317, 48)])])
def test_run_delay_is_the_wait_behind_the_wake_up(run_delay: dict[int, int], expected: list[Span]) -> None:
    spans = Watch(1).feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, Reason.SLEEP, IP)],
                          run_delay=run_delay)
    assert [span for span in spans if span[2]] == [span for span in expected if span[2]]


def test_run_delay_that_preemption_explains_is_not_counted_twice() -> None:
    spans = Watch(1).feed(
        [(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN), (400, 0, PREEMPTED), (450, 0, IN)],
        [(99, 0, 48, Reason.LOCK, IP), (399, 0, 64, Reason.UNKNOWN, IP)], run_delay={0: 61})
    assert spans == [(0, Microstate.USER_LOCK, 206, 317, 48), (0, Microstate.WAIT_CPU, 11, 317, 48),
                     (0, Microstate.WAIT_CPU, 50, 450, 64)]


@pytest.mark.parametrize(("woken_ns", "expected"), [
    (300, [(0, Microstate.SLEEP, 200, 317, 48), (0, Microstate.WAIT_CPU, 17, 317, 48)]),
    (100, [(0, Microstate.WAIT_CPU, 217, 317, 48)]),
    (317, [(0, Microstate.SLEEP, 217, 317, 48)]),
    (99, [(0, Microstate.SLEEP, 217, 317, 48)]),  # another sleep's
    (318, [(0, Microstate.SLEEP, 217, 317, 48)])])
@pytest.mark.parametrize("early", [False, True], ids=["with its period", "in a batch before"])
def test_a_wake_up_is_the_end_of_the_sleep(woken_ns: int, expected: list[Span], early: bool) -> None:
    watch = Watch(1)
    wake_ups = [(woken_ns, 0)]
    watch.feed([(5, 0, IN), (100, 0, BLOCKED)], [(99, 0, 48, Reason.SLEEP, IP)], wake_ups=wake_ups if early else [])
    spans = watch.feed([(317, 0, IN)], wake_ups=[] if early else wake_ups)
    assert [span for span in spans if span[2]] == expected


def test_a_wake_up_is_its_own_threads() -> None:
    spans = Watch(2).feed(
        [(5, 0, IN), (6, 1, IN), (100, 0, BLOCKED), (101, 1, BLOCKED), (317, 0, IN), (331, 1, IN), (400, 0, PREEMPTED),
         (419, 0, IN)],
        [(99, 0, 48, Reason.LOCK, IP), (100, 1, 64, Reason.SLEEP, IP), (399, 0, 80, Reason.UNKNOWN, IP)],
        wake_ups=[(300, 0), (311, 1), (410, 0)])
    assert spans == [(0, Microstate.USER_LOCK, 200, 317, 48), (0, Microstate.WAIT_CPU, 17, 317, 48),
                     (1, Microstate.SLEEP, 210, 331, 64), (1, Microstate.WAIT_CPU, 20, 331, 64),
                     (0, Microstate.WAIT_CPU, 19, 419, 80)]


# --- threads that still wait ----------------------------------------------------------------------


def test_those_that_still_wait_have_waited_so_far() -> None:
    watch = Watch(4)
    watch.feed([(5, 0, IN), (6, 1, IN), (7, 2, IN), (100, 0, BLOCKED), (150, 1, PREEMPTED), (170, 2, BLOCKED)],
               [(99, 0, 48, Reason.LOCK, IP), (149, 1, 64, Reason.UNKNOWN, IP), (169, 2, 80, Reason.USER_FAULT, IP)],
               [(168, 2, ON_CODE_PAGE, IP, False)])
    slots = np.array([0, 1, 2])
    spans, ready = watch.waiting.still_waiting(slots, watch.clocks.kind[slots], watch.clocks.since_ns[slots], 1_000)
    assert listed(spans) == [(0, Microstate.USER_LOCK, 900, 1000, 48), (1, Microstate.WAIT_CPU, 850, 1000, 64),
                             (2, Microstate.TEXT_FAULT, 830, 1000, 80)]
    assert ready.tolist() == [False, True, False]


def test_those_that_were_woken_wait_for_a_cpu_from_then_on() -> None:
    watch = Watch(2)
    watch.feed([(5, 0, IN), (6, 1, IN), (100, 0, BLOCKED), (101, 1, BLOCKED)],
               [(99, 0, 48, Reason.LOCK, IP), (100, 1, 64, Reason.SLEEP, IP)], wake_ups=[(50, 1)])
    watch.feed([], wake_ups=[(300, 0)])
    slots = np.array([0, 1])
    spans, ready = watch.waiting.still_waiting(slots, watch.clocks.kind[slots], watch.clocks.since_ns[slots], 1_000)
    assert listed(spans) == [(0, Microstate.USER_LOCK, 200, 1000, 48), (0, Microstate.WAIT_CPU, 700, 1000, 48),
                             (1, Microstate.SLEEP, 899, 1000, 64)]
    assert ready.tolist() == [True, False]


def test_what_was_waited_so_far_is_not_waited_again() -> None:
    """Without records of wake-ups, waits of which only the sum is known are put behind the sleeps."""
    watch = Watch(1)
    watch.feed([(5, 0, IN), (100, 0, PREEMPTED)], [(99, 0, 48, Reason.UNKNOWN, IP)])
    slots = np.array([0])
    watch.waiting.still_waiting(slots, watch.clocks.kind[slots], watch.clocks.since_ns[slots], 600)
    watch.clocks.since_ns[slots] = 600
    spans = watch.feed([(700, 0, IN), (800, 0, BLOCKED), (1_000, 0, IN)], [(799, 0, 64, Reason.SLEEP, IP)],
                       run_delay={0: 600})
    assert spans == [(0, Microstate.WAIT_CPU, 100, 700, 48), (0, Microstate.SLEEP, 200, 1_000, 64)]


# --- laws -----------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Microstate), st.integers(0, 4 * INTERVAL)), max_size=60)


def spans_of(rows: Sequence[tuple[int, Microstate, int]]) -> Spans:
    n = len(rows)
    return Spans(column(rows, 0, np.int64), column(rows, 1, np.int64), column(rows, 2, np.int64),
                 np.arange(n, dtype=np.int64), np.arange(1, n + 1, dtype=np.uint64), np.zeros(n, np.int32),
                 np.arange(n, dtype=np.int64) - column(rows, 2, np.int64))


def due(waiting: Waiting, rows: Sequence[tuple[int, Microstate, int]], uid: int = 16) -> Counter[tuple[int, int]]:
    """Ticks by slot and state that these spans bring about."""
    spans = spans_of(rows)
    spans.uid[:] = uid
    paid, ticks = waiting.ticks(spans)
    assert len(paid.slot) == len(ticks)
    assert (ticks > 0).all()
    assert (paid.uid % 16 == 0).all()
    found: Counter[tuple[int, int]] = Counter()
    for slot, state, n in zip(paid.slot.tolist(), paid.state.tolist(), ticks.tolist(), strict=True):
        found[slot, state] += n
    return found


@given(SPANS, st.integers(1, 3 * INTERVAL), st.lists(st.integers(0, 60), max_size=5))
def test_ticks_of_a_thread_and_state_are_its_time_in_any_batches(
        rows: list[tuple[int, Microstate, int]], interval_ns: int, bounds: list[int]) -> None:
    waiting = Waiting(interval_ns)
    ticks: Counter[tuple[int, int]] = Counter()
    at = 0
    for number, bound in enumerate([*sorted(bounds), len(rows)]):
        ticks += due(waiting, rows[at:bound], uid=16 * (number % 3 + 1))
        at = max(at, bound)
    for slot in range(5):
        left, _ = waiting.take_account(slot)
        for state in Microstate:
            exact = sum(length for who, what, length in rows if (who, what) == (slot, state))
            assert 0 <= exact - ticks[slot, state] * interval_ns < interval_ns
            assert left[state] == exact - ticks[slot, state] * interval_ns


def test_each_place_of_a_thread_gets_what_is_its_own() -> None:
    """Ten places with less than an interval each time, in one thread: none takes the ticks of another."""
    waiting, ticks = Waiting(INTERVAL), Counter[int]()
    for _ in range(211):
        spans = spans_of([(0, Microstate.SLEEP, 300 * (place + 1)) for place in range(10)])
        paid, earned = waiting.ticks(spans)
        for uid, n in zip(paid.uid.tolist(), earned.tolist(), strict=True):
            ticks[uid] += n
    for place in range(10):
        assert ticks[place + 1] * INTERVAL == pytest.approx(211 * 300 * (place + 1), abs=INTERVAL)


@given(st.data())
def test_every_nanosecond_off_cpu_is_in_one_state(data: st.DataObject) -> None:
    """Whatever the kernel says of run_delay, and however the life is cut into batches."""
    watch, length, counted = Watch(3), 0, 0
    time = 0
    for _ in range(data.draw(st.integers(1, 5))):
        edges, left = [], []
        for slot in range(3):
            for _ in range(data.draw(st.integers(0, 3))):
                cut = data.draw(st.sampled_from([BLOCKED, PREEMPTED]))
                ran, waited = data.draw(st.integers(1, 999)), data.draw(st.integers(0, 99_999))
                left.append((time + ran, slot, 16, data.draw(st.sampled_from(Reason)), IP))
                edges += [(time, slot, IN), (time + ran, slot, cut), (time + ran + waited, slot, IN)]
                time += ran + waited + 1
                length += waited
        delays = data.draw(st.dictionaries(st.integers(0, 2), st.integers(0, 199_999)))
        wake_ups = data.draw(st.lists(st.tuples(st.integers(0, time), st.integers(0, 2)), max_size=9))
        edges.sort(key=lambda edge: edge[0])
        spans = watch.feed(edges, sorted(left), run_delay=delays, wake_ups=sorted(wake_ups))
        assert all(span[2] >= 0 for span in spans)
        counted += sum(span[2] for span in spans)
    assert counted == length
    assert watch.waiting.n_guessed >= 0


def test_a_thread_that_ends_takes_its_account_along() -> None:
    waiting = Waiting(INTERVAL)
    waiting.ticks(spans_of([(2, Microstate.SLEEP, 12_000), (2, Microstate.USER_LOCK, 5_003), (1, Microstate.SLEEP, 7)]))
    left, stacks = waiting.take_account(2)
    assert {Microstate(i): (int(ns), int(stacks[i])) for i, ns in enumerate(left) if ns} == {
        Microstate.SLEEP: (12_000 - INTERVAL, 1), Microstate.USER_LOCK: (5_003, 2)}
    assert not waiting.take_account(2)[0].any()
    assert waiting.take_account(1)[0][Microstate.SLEEP] == 7


def test_there_is_room_for_any_number_of_threads() -> None:
    waiting = Waiting(INTERVAL)
    waiting.grow(1009)
    found = due(waiting, [(slot, Microstate.SLEEP, 3 * INTERVAL) for slot in range(1009)])
    assert found == {(slot, Microstate.SLEEP): 3 for slot in range(1009)}
