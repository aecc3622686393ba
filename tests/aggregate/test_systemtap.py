"""Aggregations as SystemTap prints them: the extractors that a state has, the largest key first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from collector.aggregate import fold
from collector.aggregate.dtrace import UserStack
from collector.aggregate.fold import Fold
from collector.aggregate.keyed import Key, Keyed
from collector.aggregate.systemtap import printed_statistics

VALUES = [2, 7, 9]


def printed(function: Fold, values: dict[Key, Sequence[int]]) -> str:
    keyed = Keyed(function)
    for key, numbers in values.items():
        state = function.empty()
        function.add(state, numbers)
        keyed.fold_in([key], state[np.newaxis])
    return printed_statistics("a", function, keyed.states())


@pytest.mark.parametrize(("function", "told"), [
    (fold.COUNT, "@count=3"),
    (fold.SUM, "@sum=18"),
    (fold.MIN, "@min=2"),
    (fold.MAX, "@max=9"),
    (fold.AVG, "@count=3 @sum=18 @avg=6"),
    # 134 / 3 is cut to 44; the sample's variance is (134 - 3 * 36) / 2.
    (fold.STDDEV, "@count=3 @sum=18 @avg=6 @variance=13 stddev=2"),
    (fold.VARIANCE, "@count=3 @sum=18 @avg=6 @variance=13"),
], ids=lambda each: each.name if isinstance(each, Fold) else "")
def test_a_state_tells_what_its_function_keeps(function: Fold, told: str) -> None:
    assert printed(function, {(): VALUES}) == f"a {told}\n"


def test_the_largest_comes_first_and_keys_are_as_in_a_script() -> None:
    stack = UserStack(0, (1, 2), (b"libc.so.6`read+0x1", b"a.out`main"))
    values = {(b"cat", 7): [5], (b'd"g\x1b\xff\n', -1): [50], (stack, 3): [-2], ("caf\u00e9", 1): [6]}
    assert printed(fold.SUM, values) == (
        'a["d\\"g\\x1b\\xff\\n",-1] @sum=50\n'
        'a["caf\u00e9",1] @sum=6\n'
        'a["cat",7] @sum=5\n'
        'a["libc.so.6`read+0x1 a.out`main",3] @sum=-2\n')


def test_a_quantize_is_a_hist_log() -> None:
    ruler, nothing = "-" * 50, f"{'0':>52}"
    both = printed(fold.QUANTIZE, {(1,): [9, 70, 64], (2,): [1000]})
    assert both.startswith(f"a[2] @count=1\nvalue |{ruler} count\n")
    assert printed(fold.QUANTIZE, {(): [9, 70, 64]}) == f"""\
a @count=3
value |{ruler} count
    2 |{nothing}
    4 |{nothing}
    8 |@{"1":>51}
   16 |{nothing}
   32 |{nothing}
   64 |@@{"2":>50}
  128 |{nothing}
  256 |{nothing}

"""


@pytest.mark.parametrize(("n", "n_marks"), [(1, 1), (50, 50), (51, 25), (75, 37), (100, 50), (101, 33)])
def test_the_longest_bar_has_fifty_marks_at_most(n: int, n_marks: int) -> None:
    """Each of which stands for as many values: what is less than that has none."""
    rows = printed(fold.QUANTIZE, {(): [8] * n + [1]}).splitlines()
    (longest,) = (row for row in rows if row.startswith("    8 |"))
    assert longest == f"    8 |{'@' * n_marks}{n:>{50 + 1 + len(str(n)) - n_marks}}"
    (least,) = (row for row in rows if row.startswith("    1 |"))
    assert least.count("@") == (n <= 50)


def test_what_systemtap_has_not_is_drawn_as_dtrace_draws_it() -> None:
    text = printed(fold.llquantize(10, 0, 1, 10), {(): [3]})
    assert text.startswith("a @count=1\n\n           value  ------------- Distribution")
