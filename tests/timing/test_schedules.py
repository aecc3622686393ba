"""Schedules of known truth all the way to states: ledger, timeline and states together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.events import Array, Edge, Reason, Source
from collector.timing.ledger import LONGEST_TICK_NS, Ledger, ReadAccounts, Seen
from collector.timing.states import Delays, Microstate, PageFaults, Spans, States
from collector.timing.timeline import Timeline
from tests.timing.scheduler import BLOCKED, MS, RUN, STATE_BUGS, WAIT, Plan, Witness, Work, plans

INTERVAL_NS = 10_007_000
TOLERANCE_NS = INTERVAL_NS + LONGEST_TICK_NS  # an interval, and how old an account may be
LAGS = st.integers(0, 15_000)
EXAMPLES = settings(max_examples=60, deadline=None)
_NONE = np.zeros(0, np.int64)
_NO_FAULTS = PageFaults(_NONE, _NONE, _NONE.astype(np.uint64), _NONE.astype(np.uint64), _NONE.astype(bool))
ON_CPU = -1


@dataclass
class Told:
    """What came out, by thread: (start, end, state or ON_CPU, source)."""

    witness: Witness
    stretches: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)

    def add(self, slot: Array, start_ns: Array, end_ns: Array, state: Array, source: Array) -> None:
        for number, *stretch in zip(*(column.tolist() for column in (slot, start_ns, end_ns, state, source)),
                                    strict=True):
            self.stretches.setdefault(number, []).append(tuple(stretch))

    def add_spans(self, spans: Spans) -> None:
        self.add(spans.slot, spans.end_ns - spans.length_ns, spans.end_ns, spans.state, spans.source)

    def sums_ns(self, number: int) -> Counter[int]:
        sums: Counter[int] = Counter()
        for start_ns, end_ns, state, _ in self.stretches.get(number, []):
            sums[state] += end_ns - start_ns
        return sums


def told(plan: Plan) -> Told:
    """Plays a plan to states; what goes on at its end is told up to there."""
    witness, timeline, ledger, states = Witness(plan), Timeline(), Ledger(plan.n_cpus), States()
    n = len(plan.works)
    timeline.grow(n)
    states.grow(n)
    ledger.begin(ReadAccounts(np.arange(n), np.array([work.born_ns for work in plan.works]), *np.zeros((2, n), int)))
    outcome, delay_ns = Told(witness), np.zeros(n, np.int64)
    for batch in witness.batches():
        read = witness.read(batch, np.flatnonzero(timeline.clocks.kind == Edge.IN).tolist())
        seen = Seen(batch.since_ns, batch.until_ns, is_blind=batch.blind, is_lossy=witness.n_lost > 0)
        woken = witness.wakeups(batch)
        periods = timeline.advance(ledger.reconciled(batch.edges, read, timeline, seen, woken))
        runs = periods.take(periods.kind == Edge.IN)
        outcome.add(runs.slot, runs.start_ns, runs.end_ns, np.full(len(runs.slot), ON_CPU), runs.source)
        delays = Delays(read.slot, read.delay_ns - delay_ns[read.slot])
        delay_ns[read.slot] = read.delay_ns
        outcome.add_spans(states.spans(periods.off_cpu(), timeline.edges, witness.departures(batch), _NO_FAULTS,
                                       woken, delays))
    clocks = timeline.clocks
    slots = np.flatnonzero(clocks.kind != Edge.UNKNOWN)
    open_ = slots[clocks.kind[slots] == Edge.IN]
    outcome.add(open_, clocks.since_ns[open_], np.full(len(open_), plan.length_ns), np.full(len(open_), ON_CPU),
                clocks.source[open_])
    outcome.add_spans(states.so_far(timeline.tell(slots, plan.length_ns))[0])
    return outcome


# --- the checks -----------------------------------------------------------------------------------


def assert_stretches_follow_each_other(outcome: Told) -> None:
    """From a thread's birth on, without holes, overlaps, or steps back."""
    for number, stretches in outcome.stretches.items():
        at_ns = outcome.witness.plan.works[number].born_ns
        for start_ns, end_ns, _, _ in sorted(one for one in stretches if one[0] != one[1]):
            assert start_ns == at_ns < end_ns
            at_ns = end_ns


def assert_states_are_true(outcome: Told, tolerance_ns: int, reasons: Sequence[Reason] = ()) -> None:
    """Running, waiting and being blocked, for ``reasons`` each for itself, of all threads that live to the end; of the
    others too, if their last accounts are told."""
    witness = outcome.witness
    for number, thread in enumerate(witness.threads):
        is_told = thread.end_ns is None or witness.plan.last_accounts
        if not is_told or thread.work.born_ns >= witness.plan.length_ns:
            continue
        sums, truth = outcome.sums_ns(number), witness.sums_ns(number, witness.plan.length_ns)
        blocked = {Reason.SLEEP: sums[Microstate.SLEEP], Reason.LOCK: sums[Microstate.USER_LOCK]}
        assert abs(sums[ON_CPU] - truth[RUN]) <= tolerance_ns
        assert abs(sums[Microstate.WAIT_CPU] - truth[WAIT]) <= tolerance_ns
        assert abs(sum(blocked.values()) - truth[BLOCKED]) <= tolerance_ns
        for reason in reasons:
            assert abs(blocked[reason] - witness.blocked_ns(number, reason)) <= tolerance_ns


def assert_sources_are_right(outcome: Told) -> None:
    """Whatever is told as recorded has happened like that: at no time of it did the thread do anything else."""
    plan, lag_ns = outcome.witness.plan, 21_000  # of a record, and what a run may be told to have begun earlier
    doing = {RUN: {ON_CPU}, WAIT: {int(Microstate.WAIT_CPU)},
             BLOCKED: {int(Microstate.SLEEP), int(Microstate.USER_LOCK)}}
    for number, stretches in outcome.stretches.items():
        recorded = [(start, end, state) for start, end, state, source in stretches if source == Source.RECORDED]
        for one in outcome.witness.threads[number].told:
            for start_ns, end_ns, state in recorded:
                both_ns = min(end_ns, one.end_ns, plan.length_ns) - max(start_ns, one.start_ns)
                assert both_ns <= lag_ns or state in doing[one.what]


# --- schedules ------------------------------------------------------------------------------------


@EXAMPLES
@given(plans(lag_ns=LAGS))
def test_what_is_recorded_whole_has_its_states_and_places(plan: Plan) -> None:
    outcome = told(plan)
    assert_stretches_follow_each_other(outcome)
    assert_states_are_true(outcome, 2 * LONGEST_TICK_NS, (Reason.SLEEP, Reason.LOCK))
    assert_sources_are_right(outcome)


@EXAMPLES
@given(plans(lag_ns=LAGS, unwoken=st.floats(0, 1)))
def test_without_wake_ups_the_accounts_tell_of_waits(plan: Plan) -> None:
    outcome = told(plan)
    assert_stretches_follow_each_other(outcome)
    assert_states_are_true(outcome, TOLERANCE_NS)


@EXAMPLES
@given(plans(lag_ns=LAGS, lost=st.floats(0, 0.3)))
def test_lost_records_leave_no_holes(plan: Plan) -> None:
    """How long threads ran the accounts tell all the same. What they did else is as good as the records are."""
    outcome = told(plan)
    assert_stretches_follow_each_other(outcome)
    for number, thread in enumerate(outcome.witness.threads):
        if thread.end_ns is None and thread.work.born_ns < plan.length_ns:
            truth_ns = outcome.witness.sums_ns(number, plan.length_ns)[RUN]
            assert abs(outcome.sums_ns(number)[ON_CPU] - truth_ns) <= TOLERANCE_NS


@EXAMPLES
@given(plans(stolen=st.floats(0, 1)))
def test_stolen_time_spoils_no_sum(plan: Plan) -> None:
    outcome = told(plan)
    assert_stretches_follow_each_other(outcome)
    assert_states_are_true(outcome, TOLERANCE_NS, (Reason.SLEEP, Reason.LOCK))


@EXAMPLES
@given(plans(blind_ns=st.tuples(st.integers(1, 400 * MS), st.integers(401 * MS, 990 * MS)), lag_ns=3_000))
def test_without_records_the_accounts_tell_of_states(plan: Plan) -> None:
    outcome = told(plan)
    assert_stretches_follow_each_other(outcome)
    assert_states_are_true(outcome, TOLERANCE_NS + plan.lag_ns)  # a late switch-in is that of a longer wait


@EXAMPLES
@given(plans(stolen=st.floats(0, 1), last_accounts=True))
def test_last_accounts_tell_what_was_stolen_from_threads_that_end(plan: Plan) -> None:
    outcome = told(plan)
    assert_stretches_follow_each_other(outcome)
    assert_states_are_true(outcome, TOLERANCE_NS)


@EXAMPLES
@given(plans(blind_ns=st.tuples(st.integers(1, 400 * MS), st.integers(401 * MS, 990 * MS)), lag_ns=3_000,
             last_accounts=True))
def test_last_accounts_tell_of_threads_that_end_without_records(plan: Plan) -> None:
    outcome = told(plan)
    assert_stretches_follow_each_other(outcome)
    assert_states_are_true(outcome, TOLERANCE_NS + plan.lag_ns)


@pytest.mark.parametrize("last_accounts", [False, True])
def test_what_is_stolen_from_a_thread_that_ends_only_its_last_account_tells(last_accounts: bool) -> None:
    """Without it, what was stolen behind the account before is told as run."""
    plan = Plan((Work(0, ((331 * MS, 7 * MS), (97 * MS, MS)), True),), batch_ns=500 * MS, stolen=1.0,
                last_accounts=last_accounts)
    outcome = told(plan)
    more_ns = outcome.sums_ns(0)[ON_CPU] - outcome.witness.sums_ns(0, plan.length_ns)[RUN]
    assert (abs(more_ns) <= LONGEST_TICK_NS) is last_accounts


@pytest.mark.parametrize("bug", STATE_BUGS)
def test_the_checks_find_lying_witnesses_of_states(bug: str) -> None:
    works = tuple(Work(n * MS, ((13 * MS, (7 + 20 * (n % 2)) * MS),) * 12, False) for n in range(5))
    plan = Plan(works, unwoken=1.0 if bug.startswith("delays") else 0.0)
    assert_states_are_true(told(plan), TOLERANCE_NS)
    with pytest.raises(AssertionError):
        assert_states_are_true(told(Plan(works, unwoken=plan.unwoken, bug=bug)), TOLERANCE_NS,
                               () if plan.unwoken else (Reason.SLEEP, Reason.LOCK))
