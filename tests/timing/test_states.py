"""What threads wait for: every reason as a table, and the laws of accounts, ticks and settling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.events import Edge, Reason, Source
from collector.timing.states import Delays, Departures, Microstate, PageFaults, Spans, States
from collector.timing.timeline import NO_MOMENTS, Timeline, edges_of, moments_of

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
    """Timeline and states of a few threads, fed batch by batch."""

    def __init__(self, n_threads: int) -> None:
        self.timeline, self.states = Timeline(), States()
        self.timeline.grow(n_threads)
        self.states.grow(n_threads)

    def feed(self, edges: Sequence[tuple[int, int, Edge]], departures: Sequence[Departure] = (),
             faults: Sequence[Fault] = (), run_delay: dict[int, int] | None = None,
             wake_ups: Sequence[tuple[int, int]] = ()) -> list[Span]:
        """One batch, wake-ups as (time, slot); what it closed, by time."""
        given = edges_of(column(edges, 1, np.int64), column(edges, 0, np.int64), column(edges, 2, np.int8))
        periods = self.timeline.advance(self.timeline.in_order(given)).off_cpu()
        grown = run_delay or {}
        delays = Delays(np.array(list(grown), np.int64), np.array(list(grown.values()), np.int64))
        woken = moments_of(column(wake_ups, 1, np.int64), column(wake_ups, 0, np.int64))
        return listed(self.states.spans(periods, self.timeline.edges, departures_of(departures), faults_of(faults),
                                        woken, delays))

    def so_far(self, slots: Sequence[int], now_ns: int) -> tuple[list[Span], list[bool]]:
        """Of threads that still wait: what they have waited, and which of them only wait for a CPU now."""
        spans, woken = self.states.so_far(self.timeline.tell(np.array(slots), now_ns))
        return listed(spans), woken.tolist()


def listed(spans: Spans) -> list[Span]:
    rows = zip(spans.slot.tolist(), map(Microstate, spans.state.tolist()), spans.length_ns.tolist(),
               spans.end_ns.tolist(), spans.uid.tolist(), strict=True)
    return sorted(rows, key=lambda row: (row[3], row[0], row[1] == Microstate.WAIT_CPU))


# --- reasons --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "state"), [
    (Reason.UNKNOWN, Microstate.SLEEP), (Reason.SLEEP, Microstate.SLEEP), (Reason.LOCK, Microstate.USER_LOCK),
    (Reason.USER_FAULT, Microstate.DATA_FAULT), (Reason.KERNEL_FAULT, Microstate.KERNEL_FAULT),
    (Reason.STOPPED, Microstate.STOPPED), (Reason.HOST_FAULT, Microstate.DATA_FAULT)])
def test_a_blocked_thread_waits_for_its_reason(reason: Reason, state: Microstate) -> None:
    watch = Watch(1)
    spans = watch.feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, reason, IP)])
    assert spans == [(0, state, 217, 317, 48)]
    assert watch.states.n_guessed == (reason == Reason.USER_FAULT)
    assert watch.states.n_from_host == (reason == Reason.HOST_FAULT)


@pytest.mark.parametrize("reason", Reason)
def test_a_preempted_thread_waits_for_a_cpu_whatever_it_did(reason: Reason) -> None:
    spans = Watch(1).feed([(5, 0, IN), (100, 0, PREEMPTED), (317, 0, IN)], [(99, 0, 48, reason, IP)])
    assert spans == [(0, Microstate.WAIT_CPU, 217, 317, 48)]


def test_a_new_thread_waits_for_a_cpu() -> None:
    assert Watch(1).feed([(5, 0, BORN), (100, 0, IN)]) == [(0, Microstate.WAIT_CPU, 95, 100, 0)]


def test_what_is_not_known_has_no_stack() -> None:
    assert Watch(1).feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)]) == [(0, Microstate.SLEEP, 217, 317, 0)]


@pytest.mark.parametrize(("told", "missing", "expected"), [
    (Reason.SLEEP, (IP, False), [Microstate.SLEEP] * 3), (Reason.LOCK, (IP, False), [Microstate.USER_LOCK] * 3),
    (Reason.STOPPED, (IP, False), [Microstate.SLEEP] * 3),
    (Reason.USER_FAULT, (IP, False), [Microstate.SLEEP, Microstate.TEXT_FAULT, Microstate.SLEEP]),
    (Reason.USER_FAULT, (ON_OTHER_PAGE, False), [Microstate.SLEEP, Microstate.DATA_FAULT, Microstate.SLEEP]),
    (Reason.KERNEL_FAULT, (ON_OTHER_PAGE, True), [Microstate.SLEEP, Microstate.KERNEL_FAULT, Microstate.SLEEP])])
@pytest.mark.parametrize("batches", [1, 2, 4])
def test_an_untold_departure_is_the_usual_one(told: Reason, missing: tuple[int, bool], expected: list[Microstate],
                                              batches: int) -> None:
    """One is told of four; a page was missing in the run before the third, and its record tells which one."""
    watch = Watch(1)
    address, in_kernel = missing
    edges = [(5, 0, IN)] + [row for at_ns in (100, 300, 500, 700)
                            for row in ((at_ns, 0, BLOCKED), (at_ns + 100, 0, IN))]
    departures = [(99, 0, 48, told, IP)]
    faults = [(at_ns, 0, address, IP, in_kernel) for at_ns in (97, 455)]
    spans = []
    for begin_ns in range(0, 900, 900 // batches):
        now = range(begin_ns, begin_ns + 900 // batches)
        spans += watch.feed(*([row for row in rows if row[0] in now] for rows in (edges, departures, faults)))
    assert [span[1] for span in spans[1:]] == expected
    assert watch.states.n_guessed == 0


def test_a_departure_belongs_to_its_own_thread_and_switch() -> None:
    watch = Watch(2)
    spans = watch.feed(
        [(5, 0, IN), (6, 1, IN), (100, 0, BLOCKED), (110, 1, BLOCKED), (200, 0, IN), (210, 1, IN), (300, 0, BLOCKED),
         (400, 0, IN)],
        [(99, 0, 16, Reason.LOCK, IP), (109, 1, 32, Reason.SLEEP, IP), (299, 0, 48, Reason.STOPPED, IP)])
    assert spans == [(0, Microstate.USER_LOCK, 100, 200, 16), (1, Microstate.SLEEP, 100, 210, 32),
                     (0, Microstate.STOPPED, 100, 400, 48)]


def test_an_untold_departure_is_for_the_reason_of_the_one_before() -> None:
    """Whatever comes in the same batch: that of a thread's next one counts where nothing came before."""
    watch = Watch(2)
    edges = [(begin + at, slot, edge) for begin in range(0, 500, 100) for slot in (0, 1)
             for at, edge in ((5, IN), (10, BLOCKED))]
    told = [(109, 0, 16, Reason.SLEEP, IP), (209, 1, 32, Reason.LOCK, IP), (309, 0, 48, Reason.LOCK, IP)]
    spans = watch.feed(sorted(edges), told)
    states = [[state for slot, state, *_ in spans if slot == which] for which in (0, 1)]
    assert states == [[Microstate.SLEEP] * 3 + [Microstate.USER_LOCK], [Microstate.USER_LOCK] * 4]
    assert watch.feed([(505, 0, IN), (510, 0, BLOCKED), (515, 0, IN)])[1:] == [(0, Microstate.USER_LOCK, 5, 515, 0)]


@pytest.mark.parametrize("n_before", [0, 1, 2, 4, 5])
def test_an_untold_departure_of_the_batch_before_is_for_the_reason_of_the_next_one(n_before: int) -> None:
    """Wherever batches are cut before the sleep is over, and told."""
    watch = Watch(1)
    edges = [(5, 0, IN), (10, 0, BLOCKED), (15, 0, IN), (20, 0, BLOCKED), (25, 0, IN)]
    told = [(19, 0, 16, Reason.LOCK, IP)]
    spans = watch.feed(edges[:n_before], told if n_before > 3 else ())
    spans += watch.feed(edges[n_before:], told if n_before <= 3 else ())
    assert spans == [(0, Microstate.USER_LOCK, 5, 15, 0), (0, Microstate.USER_LOCK, 5, 25, 16)]


@pytest.mark.parametrize("reason", [Reason.USER_FAULT, Reason.KERNEL_FAULT])
def test_a_fault_tells_nothing_of_an_untold_departure_before_it(reason: Reason) -> None:
    watch = Watch(1)
    spans = watch.feed([(5, 0, IN), (10, 0, BLOCKED), (15, 0, IN), (20, 0, BLOCKED), (25, 0, IN)],
                       [(19, 0, 16, reason, IP)], [(18, 0, ON_OTHER_PAGE, IP, reason == Reason.KERNEL_FAULT)])
    assert spans[0][1] == Microstate.SLEEP
    assert watch.states.n_guessed == 0


def test_a_preempted_thread_tells_nothing_of_what_it_waits_for() -> None:
    spans = Watch(1).feed(
        [(5, 0, IN), (10, 0, BLOCKED), (15, 0, IN), (20, 0, PREEMPTED), (25, 0, IN), (30, 0, BLOCKED), (35, 0, IN)],
        [(9, 0, 16, Reason.LOCK, IP), (19, 0, 32, Reason.SLEEP, IP)])
    assert spans == [(0, Microstate.USER_LOCK, 5, 15, 16), (0, Microstate.WAIT_CPU, 5, 25, 32),
                     (0, Microstate.USER_LOCK, 5, 35, 0)]


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
    (ON_OTHER_PAGE, False, Reason.LOCK, Microstate.USER_LOCK),
    (IP, False, Reason.HOST_FAULT, Microstate.DATA_FAULT)])
@pytest.mark.parametrize("fault_ns", [98, 318], ids=["begun", "completed"])
def test_a_fault_of_the_same_instruction_tells_whose_page_it_was(
        address: int, in_kernel: bool, reason: Reason, state: Microstate, fault_ns: int) -> None:
    watch = Watch(1)
    spans = watch.feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, reason, IP)],
                       [(fault_ns, 0, address, IP, in_kernel)])
    assert spans == [(0, state, 217, 317, 48)]
    assert watch.states.n_guessed == 0


def test_a_fault_of_another_instruction_or_thread_tells_nothing() -> None:
    watch = Watch(2)
    spans = watch.feed([(5, 0, IN), (5, 1, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, Reason.USER_FAULT, IP)],
                       [(98, 0, IP, IP + 4, False), (318, 1, IP, IP, False)])
    assert spans == [(0, Microstate.DATA_FAULT, 217, 317, 48)]
    assert watch.states.n_guessed == 1  # a guess, and counted as one


# --- waiting for a CPU behind the wake-up ---------------------------------------------------------


@pytest.mark.parametrize(("run_delay", "expected"), [
    ({}, [(0, Microstate.SLEEP, 217, 317, 48)]),
    ({0: 0}, [(0, Microstate.SLEEP, 217, 317, 48)]),
    ({0: 17}, [(0, Microstate.SLEEP, 200, 300, 48), (0, Microstate.WAIT_CPU, 17, 317, 48)]),
    ({0: 217}, [(0, Microstate.SLEEP, 1, 101, 48), (0, Microstate.WAIT_CPU, 216, 317, 48)]),
    ({0: 999}, [(0, Microstate.SLEEP, 1, 101, 48), (0, Microstate.WAIT_CPU, 216, 317, 48)])])
def test_run_delay_is_the_wait_behind_the_wake_up(run_delay: dict[int, int], expected: list[Span]) -> None:
    assert expected == Watch(1).feed([(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, Reason.SLEEP, IP)],
                                     run_delay=run_delay)


def test_run_delay_that_preemption_explains_is_not_counted_twice() -> None:
    spans = Watch(1).feed(
        [(5, 0, IN), (100, 0, BLOCKED), (317, 0, IN), (400, 0, PREEMPTED), (450, 0, IN)],
        [(99, 0, 48, Reason.LOCK, IP), (399, 0, 64, Reason.UNKNOWN, IP)], run_delay={0: 61})
    assert spans == [(0, Microstate.USER_LOCK, 206, 306, 48), (0, Microstate.WAIT_CPU, 11, 317, 48),
                     (0, Microstate.WAIT_CPU, 50, 450, 64)]


@pytest.mark.parametrize(("woken_ns", "expected"), [
    (300, [(0, Microstate.SLEEP, 200, 300, 48), (0, Microstate.WAIT_CPU, 17, 317, 48)]),
    (100, [(0, Microstate.SLEEP, 1, 101, 48), (0, Microstate.WAIT_CPU, 216, 317, 48)]),
    (317, [(0, Microstate.SLEEP, 216, 316, 48), (0, Microstate.WAIT_CPU, 1, 317, 48)]),
    (99, [(0, Microstate.SLEEP, 1, 101, 48), (0, Microstate.WAIT_CPU, 216, 317, 48)]),  # as it was leaving
    (50, [(0, Microstate.SLEEP, 217, 317, 48)]),  # another sleep's
    (318, [(0, Microstate.SLEEP, 217, 317, 48)])])
@pytest.mark.parametrize("early", [False, True], ids=["with its period", "in a batch before"])
def test_a_wake_up_is_the_end_of_the_sleep(woken_ns: int, expected: list[Span], early: bool) -> None:
    watch = Watch(1)
    wake_ups = [(woken_ns, 0)]
    watch.feed([(5, 0, IN), (20, 0, BLOCKED), (60, 0, IN), (100, 0, BLOCKED)], [(99, 0, 48, Reason.SLEEP, IP)],
               wake_ups=wake_ups if early else [])
    assert watch.feed([(317, 0, IN)], wake_ups=[] if early else wake_ups) == expected


@pytest.mark.parametrize("reason", [Reason.SLEEP, Reason.LOCK])
def test_a_wake_up_ends_one_wait_only(reason: Reason) -> None:
    """Two short ones in a batch: the second was woken as it left its CPU, the third's wake-up is not known."""
    spans = Watch(1).feed([(5, 0, IN), (100, 0, BLOCKED), (200, 0, IN), (300, 0, BLOCKED), (400, 0, IN),
                           (500, 0, BLOCKED), (600, 0, IN)],
                          [(time_ns, 0, 48, reason, IP) for time_ns in (99, 299, 499)], wake_ups=[(298, 0), (150, 0)])
    state = Microstate.SLEEP if reason == Reason.SLEEP else Microstate.USER_LOCK
    assert spans == [(0, state, 50, 150, 48), (0, Microstate.WAIT_CPU, 50, 200, 48),
                     (0, state, 1, 301, 48), (0, Microstate.WAIT_CPU, 99, 400, 48), (0, state, 100, 600, 48)]


@pytest.mark.parametrize("n_told", [100, 99])  # fewer say nothing of others
def test_a_thread_of_which_no_witness_tells_waits_as_others_do(n_told: int) -> None:
    """Those are woken after three quarters of each absence; it has neither wake-ups nor an account."""
    watch = Watch(2)
    edges = [(at_ns + 1000 * turn, 0, edge) for turn in range(n_told + 1) for at_ns, edge in ((0, IN), (200, BLOCKED))]
    mute = [(10, 1, IN), (20, 1, BLOCKED), (420, 1, IN)]
    spans = watch.feed([*edges[:-1], *mute], wake_ups=[(800 + 1000 * turn, 0) for turn in range(n_told)])
    waited_ns = sum(length for slot, state, length, _, _ in spans if slot == 1 and state == Microstate.WAIT_CPU)
    assert waited_ns == (100 if n_told == 100 else 0)
    assert watch.states.n_estimated == (n_told == 100)


def test_who_sleeps_to_the_end_has_not_waited_for_a_cpu() -> None:
    watch = Watch(2)
    edges = [(at_ns + 1000 * turn, 0, edge) for turn in range(101) for at_ns, edge in ((0, IN), (200, BLOCKED))]
    watch.feed([*edges[:-1], (10, 1, IN), (20, 1, BLOCKED)], wake_ups=[(800 + 1000 * turn, 0) for turn in range(100)])
    spans = watch.feed([(200_000, 1, ENDED)])
    assert [(state, length) for slot, state, length, _, _ in spans if slot == 1] == [(Microstate.SLEEP, 199_980)]
    assert watch.states.n_estimated == 0


def test_who_has_an_account_is_not_estimated() -> None:
    watch = Watch(2)
    edges = [(time_ns + 1000 * turn, 0, edge) for turn in range(101) for time_ns, edge in ((0, IN), (200, BLOCKED))]
    woken = [(800 + 1000 * turn, 0) for turn in range(100)]
    spans = watch.feed([*edges[:-1], (10, 1, IN), (20, 1, BLOCKED), (420, 1, IN)], wake_ups=woken, run_delay={1: 17})
    assert [span[2] for span in spans if span[0] == 1 and span[1] == Microstate.WAIT_CPU] == [17]
    assert watch.states.n_estimated == 0


def test_a_share_of_run_delay_is_no_record() -> None:
    """One wake-up of two is known: the other wait's length is what is left, and so is that of the sleep before."""
    watch = Watch(1)
    edges = [(5, 0, IN), (100, 0, BLOCKED), (200, 0, IN), (300, 0, BLOCKED), (400, 0, IN)]
    periods = watch.timeline.advance(edges_of(column(edges, 1, np.int64), column(edges, 0, np.int64),
                                              column(edges, 2, np.int8))).off_cpu()
    spans = watch.states.spans(periods, watch.timeline.edges, departures_of([]), faults_of([]),
                               moments_of(np.array([0]), np.array([170])), Delays(np.array([0]), np.array([47])))
    assert list(zip(spans.state.tolist(), spans.end_ns.tolist(), spans.length_ns.tolist(), spans.source.tolist(),
                    strict=True)) == [
        (Microstate.SLEEP, 170, 70, Source.RECORDED), (Microstate.SLEEP, 383, 83, Source.ADJUSTED),
        (Microstate.WAIT_CPU, 200, 30, Source.RECORDED), (Microstate.WAIT_CPU, 400, 17, Source.SYNTHETIC)]


@pytest.mark.parametrize(("run_delay", "waits_ns"), [
    (30, [10, 10, 10]), (31, [10, 10, 10]), (61, [10, 25, 25]), (160, [10, 74, 75]), (195, [10, 89, 95]),
    (201, [10, 89, 99]), (999, [10, 89, 99])])
def test_what_a_short_sleep_has_no_room_for_was_waited_behind_longer_ones(run_delay: int, waits_ns: list[int]) -> None:
    """Beside others waits are long, also behind sleeps of microseconds: all that the account tells is told."""
    watch = Watch(2)
    spans = watch.feed([(5, 0, IN), (6, 1, IN), (50, 1, BLOCKED), (73, 1, IN), (100, 0, BLOCKED), (190, 0, IN),
                        (200, 0, BLOCKED), (211, 0, IN), (300, 0, BLOCKED), (400, 0, IN)], [],
                       run_delay={0: run_delay, 1: 9})
    waited_ns = sorted(length for slot, state, length, _, _ in spans if slot == 0 and state == Microstate.WAIT_CPU)
    assert sum(waited_ns) == pytest.approx(min(run_delay, 198), abs=2)  # of three, a nanosecond each is not shared
    assert waited_ns == pytest.approx(waits_ns, abs=1)
    assert [length for slot, state, length, _, _ in spans if (slot, state) == (1, Microstate.WAIT_CPU)] == [9]


def waited_behind(sleeps_ns: list[int], run_delay: int) -> list[int]:
    """How long each wait was, behind sleeps of a thread that end with them; 0 where there was none."""
    edges, time_ns = [(5, 0, IN)], 1000
    for slept_ns in sleeps_ns:
        edges += [(time_ns, 0, BLOCKED), (time_ns + slept_ns, 0, IN)]
        time_ns += slept_ns + 1000
    spans = Watch(1).feed(edges, run_delay={0: run_delay})
    waits_ns = {end_ns: length for _, state, length, end_ns, _ in spans if state == Microstate.WAIT_CPU}
    assert sum(state == Microstate.SLEEP for _, state, *_ in spans) == len(sleeps_ns)
    return [waits_ns.get(end_ns, 0) for end_ns, _, edge in edges[2::2] if edge == IN]


@pytest.mark.parametrize("n", [9, 10])  # fewer do not show that they are alike
def test_a_long_nap_among_short_ones_was_a_wait(n: int) -> None:
    naps_ns = [50_000 + 3 * at for at in range(n - 1)]
    waits_ns = waited_behind([*naps_ns, 5_000_000], run_delay=4_950_000)
    if n == 10:
        assert max(waits_ns[:-1]) < 100
        assert waits_ns[-1] == pytest.approx(4_950_000, abs=500)
    else:
        assert waits_ns == [each - 1 for each in naps_ns] + [pytest.approx(4_550_000, abs=500)]


def test_waits_behind_sleeps_of_any_length_are_alike() -> None:
    """The longest sleep is no wait: what a thread waits for takes as long as it takes."""
    assert waited_behind([1_000 << at for at in range(13)], run_delay=1_300) == [100] * 13
    of_ten_timers_ns = [2_000_000, 3_000_000, 5_000_000, 7_000_000, 11_000_000, 13_000_000, 17_000_000, 19_000_000,
                        23_000_000, 29_000_000]
    assert waited_behind(of_ten_timers_ns, run_delay=10_000_000) == [1_000_000] * 10


NAPS_NS = [50_000 + (7_000 * at if at % 3 else 0) for at in range(12)]  # of 50 us each, and waits


@pytest.mark.parametrize(("sleeps_ns", "run_delay", "further_ns"), [
    (NAPS_NS, sum(NAPS_NS) - 12 * 50_000, {40_000: 0, 50_000: 0, 61_000: 11_000, 126_000: 76_000, 128_000: 0}),
    ([1_000 << at for at in range(13)], 1_300, {70: 69, 150: 100, 1_000_000: 100})])
def test_behind_its_last_account_a_thread_waits_as_before(sleeps_ns: list[int], run_delay: int,
                                                          further_ns: dict[int, int]) -> None:
    """What is longer than its sleeps, if they were alike, is a wait, unless it is longer than all before; else waits
    are as long as before."""
    watch, edges, time_ns = Watch(1), [(5, 0, IN)], 1000
    for slept_ns in sleeps_ns:
        edges += [(time_ns, 0, BLOCKED), (time_ns + slept_ns, 0, IN)]
        time_ns += slept_ns + 1000
    watch.feed(edges, run_delay={0: run_delay})
    edges = []
    for slept_ns in further_ns:
        edges += [(time_ns, 0, BLOCKED), (time_ns + slept_ns, 0, IN)]
        time_ns += slept_ns + 1000
    spans = watch.feed([*edges, (time_ns, 0, BLOCKED), (time_ns + 90_000, 0, ENDED)])
    waits_ns = {end_ns: length for _, state, length, end_ns, _ in spans if state == Microstate.WAIT_CPU}
    assert [waits_ns.get(end_ns, 0) for end_ns, _, _ in edges[1::2]] == pytest.approx(list(further_ns.values()), abs=2)
    assert time_ns + 90_000 not in waits_ns  # who does not run again has waited for nothing


def test_a_wake_up_is_its_own_threads() -> None:
    spans = Watch(2).feed(
        [(5, 0, IN), (6, 1, IN), (100, 0, BLOCKED), (101, 1, BLOCKED), (317, 0, IN), (331, 1, IN), (400, 0, PREEMPTED),
         (419, 0, IN)],
        [(99, 0, 48, Reason.LOCK, IP), (100, 1, 64, Reason.SLEEP, IP), (399, 0, 80, Reason.UNKNOWN, IP)],
        wake_ups=[(300, 0), (311, 1), (410, 0)])
    assert spans == [(0, Microstate.USER_LOCK, 200, 300, 48), (1, Microstate.SLEEP, 210, 311, 64),
                     (0, Microstate.WAIT_CPU, 17, 317, 48), (1, Microstate.WAIT_CPU, 20, 331, 64),
                     (0, Microstate.WAIT_CPU, 19, 419, 80)]


# --- threads that still wait ----------------------------------------------------------------------


def test_those_that_still_wait_have_waited_so_far() -> None:
    watch = Watch(4)
    watch.feed([(5, 0, IN), (6, 1, IN), (7, 2, IN), (100, 0, BLOCKED), (150, 1, PREEMPTED), (170, 2, BLOCKED)],
               [(99, 0, 48, Reason.LOCK, IP), (149, 1, 64, Reason.UNKNOWN, IP), (169, 2, 80, Reason.USER_FAULT, IP)],
               [(168, 2, ON_CODE_PAGE, IP, False)])
    spans, woken = watch.so_far([0, 1, 2], 1_000)
    assert spans == [(0, Microstate.USER_LOCK, 900, 1000, 48), (1, Microstate.WAIT_CPU, 850, 1000, 64),
                             (2, Microstate.TEXT_FAULT, 830, 1000, 80)]
    assert woken == [False, False, False]


def test_those_that_were_woken_wait_for_a_cpu_from_then_on() -> None:
    watch = Watch(2)
    watch.feed([(5, 0, IN), (6, 1, IN), (20, 1, BLOCKED), (60, 1, IN), (100, 0, BLOCKED), (101, 1, BLOCKED)],
               [(99, 0, 48, Reason.LOCK, IP), (100, 1, 64, Reason.SLEEP, IP)], wake_ups=[(50, 1)])
    watch.feed([], wake_ups=[(300, 0)])
    spans, woken = watch.so_far([0, 1], 1_000)
    assert spans == [(0, Microstate.USER_LOCK, 200, 300, 48), (0, Microstate.WAIT_CPU, 700, 1000, 48),
                             (1, Microstate.SLEEP, 899, 1000, 64)]
    assert woken == [True, False]


def test_who_was_woken_before_it_left_its_cpu_may_sleep_since() -> None:
    """It was woken on its way, went on, and left for another sleep within some microseconds; or it was woken while its
    departure was being stamped. What it was shows when the period is over."""
    watch = Watch(2)
    watch.feed([(5, 0, IN), (6, 1, IN), (100_000, 0, BLOCKED), (100_000, 1, BLOCKED)],
               [(99_000, 0, 48, Reason.LOCK, IP), (99_000, 1, 64, Reason.SLEEP, IP)],
               wake_ups=[(97_000, 0), (97_000, 1)])
    spans, woken = watch.so_far([0, 1], 900_000)
    assert spans == [(0, Microstate.USER_LOCK, 800_000, 900_000, 48), (1, Microstate.SLEEP, 800_000, 900_000, 64)]
    assert woken == [False, False]
    assert watch.feed([(950_000, 0, IN)], wake_ups=[(940_000, 0)]) == [
        (0, Microstate.USER_LOCK, 40_000, 940_000, 48), (0, Microstate.WAIT_CPU, 10_000, 950_000, 48)]
    # Of the other one the account says that it has waited.
    assert watch.feed([(950_000, 1, IN)], run_delay={1: 50_000})[-1] == (
        1, Microstate.WAIT_CPU, 49_999, 950_000, 64)


def test_what_was_waited_so_far_is_not_waited_again() -> None:
    """Without records of wake-ups, waits of which only the sum is known are put behind the sleeps."""
    watch = Watch(1)
    watch.feed([(5, 0, IN), (100, 0, PREEMPTED)], [(99, 0, 48, Reason.UNKNOWN, IP)])
    watch.so_far([0], 600)
    spans = watch.feed([(700, 0, IN), (800, 0, BLOCKED), (1_000, 0, IN)], [(799, 0, 64, Reason.SLEEP, IP)],
                       run_delay={0: 600})
    assert spans == [(0, Microstate.WAIT_CPU, 100, 700, 48), (0, Microstate.SLEEP, 200, 1_000, 64)]


def test_a_sleep_that_is_told_in_parts_keeps_its_beginning() -> None:
    watch = Watch(1)
    watch.feed([(5, 0, IN), (100, 0, BLOCKED)], [(99, 0, 48, Reason.SLEEP, IP)])
    assert watch.so_far([0], 600)[0] == [(0, Microstate.SLEEP, 500, 600, 48)]
    periods = watch.timeline.advance(edges_of(np.array([0]), np.array([700]), np.array([IN])))
    assert (periods.begun_ns.tolist(), periods.start_ns.tolist(), periods.end_ns.tolist()) == ([100], [600], [700])


def test_steal_time_is_no_part_of_run_delay() -> None:
    watch = Watch(1)
    watch.feed([(5, 0, IN)])
    cut = edges_of(np.zeros(2, np.int64), np.array([50, 80]), np.array([PREEMPTED, IN]), source=Source.ADJUSTED)
    periods = watch.timeline.advance(cut).off_cpu()
    none = departures_of([])
    watch.states.spans(periods, cut, none, faults_of([]), NO_MOMENTS,
                       Delays(*(np.zeros(0, np.int64),) * 2))
    spans = watch.feed([(100, 0, BLOCKED), (317, 0, IN)], [(99, 0, 48, Reason.SLEEP, IP)], run_delay={0: 17})
    assert spans == [(0, Microstate.SLEEP, 200, 300, 48), (0, Microstate.WAIT_CPU, 17, 317, 48)]


# --- laws -----------------------------------------------------------------------------------------


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
    assert watch.states.n_guessed >= 0
