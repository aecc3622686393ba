"""Processes, threads and images: who a tid or pid was at a time."""

from __future__ import annotations

from itertools import count
from random import Random

import numpy as np
import pytest

from collector.events import Change, Edge, Executed, Exited, Forked, Renamed
from collector.processes.model import Model
from collector.processes.space import Mapping

LIBRARY = Mapping(0x1000, 0x2000, 0, b"/lib/a.so", 3, 0)


def model_of(pid: int = 100, time_ns: int = 10) -> Model:
    """A founder with its first thread."""
    numbers = count()
    model = Model(lambda found: next(numbers))
    model.new_thread(model.new_process(pid, time_ns), pid, time_ns, Edge.BORN)
    return model


def slots(model: Model, *who: tuple[int, int, int]) -> list[int]:
    """Slots of (tid, pid, time)."""
    tid, pid, time = (np.array([row[i] for row in who], np.int64) for i in range(3))
    found: list[int] = model.slots(tid, pid, time).tolist()
    return found


def cuts(model: Model) -> list[tuple[int, int, Edge]]:
    """The edges since the last call, as (time, slot, cut)."""
    taken = model.take_cuts()
    return list(zip(taken.time_ns, taken.slot, taken.edge, strict=True))


def test_threads_begin_and_end() -> None:
    model = model_of()
    model.forked(Forked(20, 100, 101, 100, 100))
    model.forked(Forked(30, 100, 102, 100, 101))
    model.exited(Exited(40, 100, 101))
    assert slots(model, (100, 100, 50), (101, 100, 35), (102, 100, 50)) == [0, 1, 2]
    assert cuts(model) == [(10, 0, Edge.BORN), (20, 1, Edge.BORN), (30, 2, Edge.BORN), (40, 1, Edge.ENDED)]
    assert cuts(model) == []
    assert [thread.alive for thread in model.threads.values()] == [True, False, True]
    assert model.processes[100].threads == {100: 0, 102: 2}


def test_a_thread_begins_with_the_name_of_the_one_that_made_it() -> None:
    model = model_of()
    first, = model.living()
    first.name = b"maker"
    model.forked(Forked(20, 100, 101, 100, 100))
    first.name = b"other"
    model.forked(Forked(30, 100, 102, 100, 101))
    model.forked(Forked(40, 103, 103, 100, 999))
    assert {thread.tid: thread.name for thread in model.living()} == {
        100: b"other", 101: b"maker", 102: b"maker", 103: b""}


def test_a_tid_used_again_is_another_thread() -> None:
    model = model_of()
    for start in (20, 40, 60):
        model.forked(Forked(start, 100, 101, 100, 100))
        model.exited(Exited(start + 10, 100, 101))
    assert slots(model, *((101, 100, time) for time in (20, 29, 40, 45, 60, 69))) == [1, 1, 2, 2, 3, 3]
    assert [model.slot_of(101, time) for time in (20, 45, 69)] == [1, 2, 3]


def test_a_tid_used_again_after_its_batch_is_forgotten() -> None:
    model = model_of()
    model.forked(Forked(20, 100, 101, 100, 100))
    model.exited(Exited(30, 100, 101))
    model.forget_before(35)
    assert model.slot_of(101, 36) is None
    model.forked(Forked(40, 100, 101, 100, 100))
    assert slots(model, (101, 100, 41)) == [2]


def test_a_child_has_its_parents_memory_and_its_own() -> None:
    model = model_of()
    founder = model.processes[100]
    founder.space.map(LIBRARY)
    model.forked(Forked(20, 200, 200, 100, 100))
    child = model.processes[200]
    assert (child.parent, child.space.mappings) == (founder, [LIBRARY])
    assert child.space.number != founder.space.number
    assert child.image.number != founder.image.number
    assert slots(model, (200, 200, 25)) == [1]


def test_exec_begins_an_image_in_an_empty_space() -> None:
    model = model_of()
    process = model.processes[100]
    process.space.map(LIBRARY)
    first = process.image
    changed, old = model.executed(Executed(50, 100, 100, b"prog"))
    assert (changed, old, old.end_ns) == (process, first, 50)
    assert (process.image.comm, process.space.mappings) == (b"prog", [])
    index, epochs = model.epochs(np.array([100, 100, 100]), np.array([49, 50, 51]))
    assert [epochs[i].image for i in index] == [first, process.image, process.image]
    assert [epochs[i].space.mappings for i in index] == [[LIBRARY], [], []]


def test_exec_by_any_thread_ends_all_and_goes_on_as_the_leader() -> None:
    model = model_of()
    model.forked(Forked(20, 100, 101, 100, 100))
    model.forked(Forked(21, 100, 102, 100, 101))
    cuts(model)
    model.executed(Executed(50, 100, 100, b"prog"))
    # A slot's time belongs to one image: the leader goes on at a new one, running.
    assert sorted(cuts(model)) == [(50, 0, Edge.ENDED), (50, 1, Edge.ENDED), (50, 2, Edge.ENDED), (50, 3, Edge.IN)]
    assert model.processes[100].threads == {100: 3}
    assert [thread.image.number for thread in model.threads.values()] == [0, 0, 0, 1]
    assert slots(model, (100, 100, 49), (100, 100, 50), (101, 100, 49)) == [0, 3, 1]
    assert model.n_threads == 3


@pytest.mark.parametrize(("ends", "caller"), [((100, 101), 2), ((101, 102), 0), ((101,), None), ((), None)])
def test_whoever_calls_exec_is_the_only_one_that_lives(ends: tuple[int, ...], caller: int | None) -> None:
    model = model_of()
    model.forked(Forked(20, 100, 101, 100, 100))
    model.forked(Forked(21, 100, 102, 100, 100))
    for tid in ends:
        model.exited(Exited(40, 100, tid))
    assert model.caller(Executed(50, 100, 100, b"prog")) == caller


def test_who_calls_exec_without_having_been_heard_of_has_no_slot() -> None:
    assert model_of().caller(Executed(50, 200, 200, b"prog")) is None


def test_epochs_are_kept_until_no_sample_can_come() -> None:
    model = model_of()
    for time in (50, 60, 70):
        model.executed(Executed(time, 100, 100, b"prog"))
    times = np.array([45, 55, 65, 75])
    index, epochs = model.epochs(np.full(4, 100), times)
    numbers = [epochs[i].image.number for i in index]
    assert numbers == [0, 1, 2, 3]
    model.forget_before(62)
    assert [epoch.time_ns for epoch in model.processes[100].epochs] == [60, 70]
    index, epochs = model.epochs(np.full(2, 100), np.array([65, 75]))
    assert [epochs[i].image.number for i in index] == [2, 3]


def test_a_process_ends_with_its_last_thread() -> None:
    model = model_of()
    model.forked(Forked(20, 100, 101, 100, 100))
    model.exited(Exited(30, 100, 100))
    assert model.processes[100].image.end_ns is None
    model.exited(Exited(40, 100, 101))
    assert model.processes[100].image.end_ns == 40
    model.forget_before(41)
    assert 100 not in model.processes


def test_a_generation_keeps_its_parents_and_none_before_those() -> None:
    model = model_of()
    for pid in range(101, 131):
        model.forked(Forked(10 * pid, pid, pid, pid - 1, pid - 1))
        model.exited(Exited(10 * pid + 1, pid - 1, pid - 1))
        model.forget_before(10 * pid + 2)
    (process,) = model.processes.values()
    assert process.parent is not None
    assert (process.parent.pid, process.parent.parent) == (129, None)


def test_a_pid_used_again_within_a_batch_is_two_processes() -> None:
    model = model_of()
    model.forked(Forked(20, 200, 200, 100, 100))
    first = model.processes[200].image
    model.exited(Exited(30, 200, 200))
    model.forked(Forked(40, 200, 200, 100, 100))
    index, epochs = model.epochs(np.array([200, 200]), np.array([25, 45]))
    assert [epochs[i].image for i in index] == [first, model.processes[200].image]
    assert slots(model, (200, 200, 25), (200, 200, 45)) == [1, 2]
    model.forget_before(50)
    assert model.processes[200].threads == {200: 2}


def test_a_thread_whose_birth_was_lost_has_a_slot_nevertheless() -> None:
    model = model_of()
    assert slots(model, (777, 100, 33), (777, 100, 44), (888, 800, 55)) == [1, 1, 2]
    assert model.processes[100].threads == {100: 0, 777: 1}
    assert 800 in model.processes
    assert cuts(model)[1:] == [(33, 1, Edge.UNKNOWN), (55, 2, Edge.UNKNOWN)]


def test_the_end_of_somebody_unknown_is_nothing() -> None:
    model = model_of()
    assert model.exited(Exited(30, 100, 999)) is None
    assert model.slot_of(999, 30) is None


def test_the_end_of_somebody_unknown_is_that_of_one_whose_records_come_late() -> None:
    model = model_of()
    model.exited(Exited(70, 100, 107))
    assert slots(model, (107, 100, 60)) == [1]
    assert cuts(model)[1:] == [(60, 1, Edge.UNKNOWN), (70, 1, Edge.ENDED)]
    assert not model.threads[1].alive
    model.exited(Exited(71, 100, 107))  # told twice
    assert cuts(model) == []
    model.forget_before(80)
    assert slots(model, (107, 100, 90)) == [2]  # in another batch it is another one
    assert cuts(model) == [(90, 2, Edge.UNKNOWN)]


def test_a_process_of_whose_only_thread_the_end_alone_was_told_is_over() -> None:
    model = model_of()
    model.exited(Exited(70, 107, 107))
    assert slots(model, (107, 107, 60)) == [1]
    assert model.processes[107].image.end_ns == 70
    model.forget_before(80)
    assert list(model.processes) == [100]


def test_ours_are_known_from_others() -> None:
    model = model_of()
    model.forked(Forked(20, 100, 101, 100, 100))
    assert model.known(np.array([101, 999, 100, 101])).tolist() == [True, False, True, True]
    assert model.known(np.zeros(0, np.int64)).tolist() == []


def test_who_is_born_ends_whoever_had_its_number() -> None:
    """The ends of 105 with its thread 107 were lost, and that of thread 103."""
    model = model_of()
    for change in (Forked(20, 100, 103, 100, 100), Forked(21, 105, 105, 100, 100), Forked(22, 105, 107, 105, 105)):
        model.forked(change)
    cuts(model)
    told = []
    for change in model.come_and_go([Forked(50, 100, 103, 100, 100), Forked(60, 105, 105, 100, 100)], lambda _: None):
        told.append(change)
        one_by_one(model, change)
    assert told == [Exited(60, 105, 107), Forked(60, 105, 105, 100, 100)]  # the others had others beside them
    assert cuts(model) == [(50, 1, Edge.ENDED), (50, 4, Edge.BORN), (60, 2, Edge.ENDED), (60, 3, Edge.ENDED),
                           (60, 5, Edge.BORN)]
    model.forget_before(70)
    assert slots(model, (103, 100, 80), (105, 105, 80)) == [4, 5]
    assert [list(model.processes[pid].threads.values()) for pid in (100, 105)] == [[0, 4], [5]]
    assert [each.slot for each in model.threads.values() if each.alive] == [0, 4, 5]


def test_who_executes_ends_a_thread_that_had_its_number() -> None:
    """The end of thread 101 was lost, and the fork of a process of that number; which ends, as does a thread of 100."""
    model = model_of()
    for change in model.with_lost_ends([Forked(20, 100, 101, 100, 100), Executed(30, 101, 101, b"other"),
                                        Executed(40, 101, 101, b"third")]):
        one_by_one(model, change)
    model.forget_before(50)
    model.forget([slot for slot, thread in model.threads.items() if not thread.alive])
    assert cuts(model)[1:] == [(20, 1, Edge.BORN), (30, 1, Edge.ENDED), (30, 2, Edge.IN), (40, 2, Edge.ENDED),
                               (40, 3, Edge.IN)]
    assert (slots(model, (101, 101, 60)), {thread.tid for thread in model.living()}) == ([3], {100, 101})
    for change in model.with_lost_ends([Exited(70, 101, 101)]):
        one_by_one(model, change)
    model.forget_before(80)
    model.forget([3])
    for change in model.with_lost_ends([Forked(90, 100, 101, 100, 100)]):
        one_by_one(model, change)
    assert (slots(model, (101, 100, 95)), model.processes.keys()) == ([4], {100})


def test_what_is_forgotten_of_a_number_is_the_life_that_has_ended() -> None:
    """Another thread has it: how that could come was not told."""
    model = model_of()
    model.forked(Forked(20, 100, 101, 100, 100))
    model.executed(Executed(30, 101, 101, b"other"))
    model.exited(Exited(40, 101, 101))
    model.forget_before(50)
    assert slots(model, (101, 100, 60)) == [1]


def test_slots_of_nobody() -> None:
    assert slots(model_of()) == []
    index, epochs = model_of().epochs(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (index.tolist(), epochs) == ([], [])


def described(model: Model) -> tuple[object, ...]:
    """Everything that a model tells of threads."""
    threads = [(slot, each.tid, each.process.pid, each.start_ns, each.image.number, each.alive)
               for slot, each in model.threads.items()]
    of = [getattr(model.of, name)[:len(model.threads)].tolist() for name in ("image", "tid", "pid", "found_ns")]
    return (threads, of, cuts(model), model.n_threads, {pid: each.threads for pid, each in model.processes.items()},
            [model.slot_of(tid, time) for tid in range(95, 130) for time in range(0, 900, 7)])


def one_by_one(model: Model, change: Change) -> None:
    """What becomes of a change that is not one of many."""
    if isinstance(change, Forked):
        model.forked(change)
    elif isinstance(change, Exited):
        model.exited(change)
    elif isinstance(change, Executed):
        model.executed(change)


@pytest.mark.parametrize("seed", range(20))
def test_many_that_come_and_go_are_as_if_each_were_taken_by_itself(seed: int) -> None:
    """Among them are processes, execs, strangers, tids used again, and ends of leaders and last threads."""
    random = Random(seed)
    changes: list[Change] = []
    for time in range(20, 20 + 2 * 400, 2):
        pid, tid = random.choice((100, 100, 100, 105, 120)), random.randrange(95, 130)
        changes.append(random.choices((
            Forked(time, pid, tid, pid, pid), Exited(time, pid, tid), Forked(time, tid, tid, pid, pid),
            Executed(time, pid, pid, b"new"), Renamed(time, pid, tid, b"name")), (40, 40, 3, 1, 5))[0])
    some, all_at_once = model_of(), model_of()
    for change in some.with_lost_ends(changes):
        one_by_one(some, change)
    told: list[int] = []
    born = [change.tid for change in changes if isinstance(change, Forked) and change.pid == change.parent_pid]
    n_taken = len(changes)
    for change in all_at_once.come_and_go(changes, lambda threads: told.extend(each.tid for each in threads)):
        one_by_one(all_at_once, change)
        n_taken -= 1
    assert described(all_at_once) == described(some)
    assert len(told) > 20
    assert n_taken > len(told)  # ends, too
    assert set(told) <= set(born)


def test_births_are_told_before_what_comes_behind_them() -> None:
    """Those of one process together; and those that were found already, which are not new, are handed on."""
    model, said = model_of(), list[object]()
    model.new_process(200, 10)
    changes = [Forked(20, 100, 101, 100, 100), Forked(30, 100, 102, 100, 100), Exited(31, 100, 101),
               Forked(40, 100, 103, 100, 100), Renamed(50, 100, 103, b"x"), Forked(60, 100, 104, 100, 100),
               Forked(70, 200, 201, 200, 200)]
    for change in model.come_and_go(changes, lambda threads: said.append([each.tid for each in threads]), 30):
        said.append(change)
    assert said == [changes[0], [102], changes[2], [103], changes[4], [104], [201]]
