"""Which instructions call, learnt from the places that words lead to: with the code of the standard library."""

from __future__ import annotations

import argparse
import dis
import json.decoder
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType

import numpy as np
import pytest

from collector.runtimes.callers_cpython import NO_INSTRUCTION, UNIT, Callers

CALLS = "CALL", "CALL_FUNCTION_EX", "IMPORT_NAME", "FOR_ITER"

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="theirs have other names")


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes_of(one)


@pytest.fixture(scope="module")
def places() -> tuple[list[bytes], list[int], list[int]]:
    """Of some modules the bytecode of all functions, and what stands before places behind calls, and before any."""
    texts, before_calls, before_any = [], [], []
    draw = random.Random(7)
    for module in (argparse, json.decoder, random, subprocess, textwrap):
        with open(module.__file__ or "", encoding="utf-8") as file:
            code = compile(file.read(), "a module", "exec")
        for one in codes_of(code):
            text = one.co_code
            texts.append(text)
            before_calls += [text[each.offset] for each in dis.get_instructions(one) if each.opname in CALLS]
            before_any += [text[UNIT * draw.randrange(len(text) // UNIT)] for _ in range(3)]
    draw.shuffle(before_calls)
    return texts, before_calls, before_any


@pytest.mark.parametrize("n_stray", [0, 30])  # places that old words lead to, of 130
def test_calls_are_told_from_other_places(places: tuple[list[bytes], list[int], list[int]], n_stray: int) -> None:
    texts, before_calls, before_any = places
    callers = Callers()
    for text in texts:
        callers.add_code(text)
    callers.add_places(np.array(before_calls[:100] + before_any[:n_stray], np.int64))
    assert callers.may_call(np.array(before_calls[100:], np.int64)).mean() > 0.9
    assert callers.may_call(np.array(before_any[n_stray:], np.int64)).mean() < 0.25


def test_what_cannot_be_told_is_believed(places: tuple[list[bytes], list[int], list[int]]) -> None:
    texts, before_calls, before_any = places
    callers = Callers()
    for text in texts:
        callers.add_code(text)
    callers.add_places(np.array(before_calls[:19], np.int64))
    assert callers.may_call(np.array(before_any, np.int64)).all()  # of so few nothing is learnt
    callers.add_places(np.array([*before_calls[19:60], *[NO_INSTRUCTION] * 1000], np.int64))
    assert callers.may_call(np.array([NO_INSTRUCTION, *before_any], np.int64)).tolist()[0]
    assert not callers.may_call(np.array(before_any, np.int64)).all()


@pytest.mark.parametrize("n_places", [20, 50, 200, 1000])
def test_an_instruction_is_hardly_ever_told_not_to_call_by_chance(n_places: int) -> None:
    """One that is two of a hundred of the code, and one of ten that call."""
    drawn = np.random.default_rng(1)
    rare, other, n_wrong = 10, 20, 0
    for _ in range(300):
        callers = Callers()
        callers.add_code(bytes([rare, 0] * 200 + [other, 0] * 9800))
        callers.add_places(np.where(drawn.random(n_places) < 0.1, rare, other))
        n_wrong += not callers.may_call(np.array([rare]))[0]
    assert n_wrong <= 15
