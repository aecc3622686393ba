"""Frames of code without call frame information: by frame pointers, and by what its instructions say. Pure.

Code built with frame pointers keeps a chain in the stack, each link two words::

    fp -> [fp of the caller] [return address]     ... higher addresses ...
                |
                +-> [fp of its caller] [return address]

A link is believed only if it lies at or above the stack pointer (so the chain rises), is aligned, lies in the copied
stack, and its return address follows a call instruction, is the trampoline that a signal handler returns to, or lies
in executable memory that has no file to look into.
A frame pointer of zero ends the chain, if nothing behind it in the stack follows a call: code built without frame
pointers has any value in the register, also zero.

Of a function that is known to make no frame the register points to a link of its caller's, or of one further out, so
that the chain leads past the caller: that is told by a word whose call has led to the function (``called_from``). If
there is none, the chain is believed unless the call before its return address has led elsewhere. Where no chain leads
on, one is searched for.

A leaf may not have its link yet or any more: then the instructions around the pc tell where the return address is
(``LeafHint``), or that a thread begins here, and at last a word at the stack pointer that follows a call is believed.
That word counts more than a link from which the chain does not lead on to a caller's: code that has another use for
the register may have an address of its own data in it, and nanoseconds of a time look like an address in a program.
A caller may have called before it makes its link: that, too, is told by the instructions there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from collector.arrays import indices
from collector.unwind.memory import Bools, Memory
from collector.unwind.rules import LeafHint

U64 = npt.NDArray[np.uint64]
Grades = npt.NDArray[np.int8]

# What a word is worth as a return address.
NOT_CODE, CODE, AFTER_CALL = 0, 1, 2

# How far a lost frame pointer is searched: frames of more than 64 KiB are rare, and chance hits grow with the distance.
SEARCH_WORDS = 8192
FRAME_WORDS = 512  # of a function that makes no frame for its frame pointer
_MAX_LINKS = 64
_ENDS, _BREAKS = -1, -2  # in place of a link: the chain ends well there, or cannot go on
# A frame pointer that far above another, or above a copy, still belongs to the same stack; above it, to none.
NEAR = np.uint64(1 << 23)


class Judge(Protocol):
    """What a search has to know about the code of one process."""

    def grade(self, words: U64) -> Grades:
        """What words (n,) are worth as return addresses."""

    def call_between(self, return_address: int, pc: int) -> int:
        """Whether the call before a return address has led to the function around a pc: 0 no, 1 perhaps, 2 yes."""

    def needs_fp(self, return_address: int) -> bool:
        """Whether the code that is returned to finds its frame by the frame pointer."""


class Step(NamedTuple):
    """The callers of n frames: CFA, return address and frame pointer, all u8 (n,); whether found; whether a thread
    begins here."""

    cfa: U64
    return_address: U64
    fp: U64
    ok: Bools
    is_root: Bools


class Found(NamedTuple):
    """A frame pointer found by search, and whether the chain from it is proven to its end."""

    fp: int
    is_proven: bool


def step(memory: Memory, sp: U64, fp: U64, is_leaf: Bools, hints: Sequence[LeafHint | None],
         grade: Callable[[U64], Grades]) -> Step:
    """The callers of n frames without call frame information. ``grade``: what words (n,) are worth as return addresses.

    ``hints`` (n,): what is known of some, above all of leaves.
    """
    word = np.uint64(memory.word_size)
    link, ok = memory.read(np.stack((fp, fp + word)))
    ok = ok[0] & ok[1] & (fp >= sp) & (grade(link[1]) != NOT_CODE)
    found = Step(fp + word + word, link[1], link[0], ok, np.zeros(len(fp), bool))
    if is_leaf.any() or any(hints):
        found = _hinted(memory, sp, fp, is_leaf, hints, grade, found)
    found.is_root[found.ok] = False
    return found


def _hinted(memory: Memory, sp: U64, fp: U64, is_leaf: Bools, hints: Sequence[LeafHint | None],
            grade: Callable[[U64], Grades], chained: Step) -> Step:
    """A hint of the instructions counts more than the chain, and for leaves the chain more than a word at sp."""
    word = np.uint64(memory.word_size)
    at = np.array([hint.return_word if hint else 0 for hint in hints], np.uint64) * word + sp
    fp_at = np.array([max(hint.fp_word, 0) if hint else 0 for hint in hints], np.uint64) * word + sp
    has_hint = np.array([hint is not None for hint in hints], bool)
    has_fp = np.array([hint is not None and hint.fp_word >= 0 for hint in hints], bool)
    may_begin = is_leaf & np.array([hint is not None and hint.may_begin for hint in hints], bool)
    value, ok = memory.read(np.stack((at, fp_at)))
    worth = grade(value[0])
    hinted = has_hint & ok[0] & (worth >= np.where(may_begin, AFTER_CALL, CODE)) & (~has_fp | ok[1])
    leads_on = (chained.fp > fp) & (chained.fp - fp < NEAR) & (chained.fp % word == 0)
    plain = is_leaf & ~(chained.ok & leads_on) & ok[0] & (worth == AFTER_CALL)
    here = hinted | plain
    return Step(np.where(here, at + word, chained.cfa), np.where(here, value[0], chained.return_address),
                np.where(hinted & has_fp, value[1], np.where(here, fp, chained.fp)), (chained.ok & ~may_begin) | here,
                may_begin)


def search(memory: Memory, sample: int, sp: int, pc: int, judge: Judge, n_words: int = SEARCH_WORDS) -> Found | None:
    """The frame pointer of a frame of which only sp and pc are known: the link in its stack that is most likely its
    own, among the first so many words.

    Stacks hold remains of older frames, so every word pair that can be a link is a candidate, and its chain is
    followed: each link has to rise, and each return address to follow a call that can have led into the function
    below. The chain ends well with a zero, at the end of the copy, or in a caller that does not use a frame pointer.
    The best candidate is one whose call leads into this very function, then one whose chain ends well, then the one
    with most such calls, then the lowest. It is proven if its chain ends well and a direct call in it is known to
    have led where we are.
    """
    words = memory.column(sample, sp, SEARCH_WORDS)
    if len(words) < 2:
        return None
    chains = _Chains(words, judge.grade(words[1:]) != NOT_CODE, sp, memory.word_size, judge)
    best, best_rank = -1, (False, False, -1)
    for k in indices(chains.is_code[:n_words]).tolist():
        rank = chains.rank(k, pc)
        if rank is not None and rank > best_rank:
            best, best_rank = k, rank
    return Found(sp + best * memory.word_size, best_rank[1] and best_rank[2] > 0) if best >= 0 else None


def called_from(memory: Memory, sample: int, sp: int, pc: int, judge: Judge, end: int | None) -> int | None:
    """Where the lowest of the words from sp on lies whose call is known to have led to the function around the pc.
    ``end``: where its frame ends at the latest, if that is known."""
    n_words = FRAME_WORDS if end is None else min(max(end - sp, 0) // memory.word_size, FRAME_WORDS)
    words = memory.column(sample, sp, n_words)
    return next((sp + k * memory.word_size for k in indices(judge.grade(words) == AFTER_CALL).tolist()
                 if judge.call_between(int(words[k]), pc) > 1), None)


def may_go_on(memory: Memory, sample: int, sp: int, judge: Judge) -> bool:
    """Whether there are words from sp on, near it, that follow a call."""
    return bool((judge.grade(memory.column(sample, sp, FRAME_WORDS)) == AFTER_CALL).any())


def returns_at_sp(memory: Memory, sample: int, sp: int, pc: int, judge: Judge) -> bool:
    """Whether the word at the stack pointer follows a call that may have led to the pc."""
    words = memory.column(sample, sp, 1)
    return bool(len(words) and judge.grade(words)[0] == AFTER_CALL and judge.call_between(int(words[0]), pc))


class _Chains:
    """The chains of links in one stack. Many lead through the same links: what is above one is found once.

    ``is_code`` (n - 1,): whether the word behind each of ``words`` (n,) may be a return address.
    """

    def __init__(self, words: U64, is_code: Bools, sp: int, size: int, judge: Judge) -> None:
        self.is_code = is_code
        self._words, self._sp, self._size, self._judge = words, sp, size, judge
        self._callers: dict[int, tuple[int, int]] = {}

    def rank(self, k: int, pc: int) -> tuple[bool, bool, int] | None:
        """Of the chain from a link on, which is that of the function around ``pc``: (whether the first call leads here
        for certain, whether the chain ends well, certain calls); None: no link."""
        call = self._judge.call_between(int(self._words[k + 1]), pc)
        if not call:
            return None
        is_first, certain = call > 1, 0
        for _ in range(_MAX_LINKS):
            if not call:
                return is_first, False, certain
            certain += call > 1
            found = self._callers.get(k)
            if found is None:
                found = self._callers[k] = self._caller(k)
            k, call = found
            if k < 0:
                return is_first, k == _ENDS, certain
        return is_first, True, certain

    def _caller(self, k: int) -> tuple[int, int]:
        """(the link above one, whether its call has led to the function that this one returns to). Without one,
        _ENDS or _BREAKS stands for it."""
        saved, return_address = int(self._words[k]), int(self._words[k + 1])
        if saved == 0 or not self._judge.needs_fp(return_address):
            return _ENDS, 0
        distance = saved - (self._sp + k * self._size)
        if distance <= 0 or distance % self._size:
            return _BREAKS, 0
        above = k + distance // self._size
        if above + 1 >= len(self._words):
            return _ENDS, 0
        is_link = self.is_code[above]
        return above, self._judge.call_between(int(self._words[above + 1]), return_address - 1) if is_link else 0
