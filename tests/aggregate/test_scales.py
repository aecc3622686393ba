"""Impossible arguments are refused by name; the encoded words are those of DTrace's header."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from collector.aggregate.bounds import ScaleError
from collector.aggregate.scales import HistLinear, LLQuantize, LQuantize, Quantize, Scale

REFUSED: tuple[tuple[Callable[[], Scale], int, str], ...] = (
    (lambda: LQuantize.between(0, 0), 1, "above the lower"),
    (lambda: LQuantize.between(1 << 31, 0), 0, "32-bit"),
    (lambda: LQuantize.between(0, 1 << 31), 1, "32-bit"),
    (lambda: LQuantize.between(0, 10, 0), 2, "1 to 65535"),
    (lambda: LQuantize.between(0, 10, 11), 2, "larger than the range"),
    (lambda: LQuantize.between(0, 65536), 2, "at most 65535 levels"),
    (lambda: LQuantize.from_word(0x0001_0000_0000_0000), 0, "encodes no"),
    (lambda: LLQuantize.of(1, 0, 6, 10), 0, "2 or more"),
    (lambda: LLQuantize.of(10, 3, 2, 10), 2, "below the low one"),
    (lambda: LLQuantize.of(10, 0, 18, 10), 2, "64 bits"),
    (lambda: LLQuantize.of(2, 0, 65535, 2), 2, "64 bits"),
    (lambda: LLQuantize.of(10, -1, 6, 10), 1, "0 to 65535"),
    (lambda: LLQuantize.of(10, 0, 6, 5), 3, "multiple of the factor"),
    (lambda: LLQuantize.of(10, 0, 6, 25), 3, "multiple of the factor"),
    (lambda: LLQuantize.of(10, 0, 6, 30), 3, "power of the factor"),
    (lambda: HistLinear(0, 10, 0), 2, "positive"),
    (lambda: HistLinear(10, 10, 1), 1, "above the low one"),
    (lambda: HistLinear(0, 126, 1), 2, "at most 126 buckets"),
)


@pytest.mark.parametrize(("make", "argument", "reason"), REFUSED)
def test_an_impossible_argument_is_refused_by_name(make: Callable[[], Scale], argument: int, reason: str) -> None:
    with pytest.raises(ScaleError, match=reason) as refusal:
        make()
    assert refusal.value.argument == argument


@pytest.mark.parametrize(("scale", "word"), [
    (LQuantize.between(-1, 5, 2), 0x0002_0003_FFFF_FFFF),
    (LQuantize.between(0, 65535, 1), 0x0001_FFFF_0000_0000),
    (LQuantize.between(-(1 << 31), 0, 65535), 0xFFFF_8000_8000_0000),
    (LLQuantize.of(10, 0, 6, 20), 0x000A_0000_0006_0014),
    (LLQuantize.of(2, 1, 61, 4), 0x0002_0001_003D_0004),
])
def test_arguments_are_encoded_as_in_the_header(scale: LQuantize | LLQuantize, word: int) -> None:
    assert scale.word == word
    assert type(scale).from_word(word) == scale


def test_the_buckets_of_quantize_have_the_values_of_the_header() -> None:
    """DTRACE_QUANTIZE_NBUCKETS, _ZEROBUCKET and _BUCKETVAL; each value is in its own bucket."""
    scale = Quantize()
    assert (scale.n_buckets, scale.zero) == (127, 63)
    values = [scale.lower(bucket) for bucket in range(127)]
    assert values == [*(-(1 << power) for power in range(62, -1, -1)), 0, *(1 << power for power in range(63))]
    assert scale.index(np.array(values)).tolist() == list(range(127))


@pytest.mark.parametrize(("factor", "magnitude", "steps", "n_buckets"), [
    (10, 1, 1000, 90), (10, 2, 1000, 900), (10, 3, 1000, 900), (2, 3, 64, 8), (10, 2, 100, 90)])
def test_more_steps_than_integers_are_a_bucket_for_each_integer(
        factor: int, magnitude: int, steps: int, n_buckets: int) -> None:
    """As DTrace's kernel part has it; steps - steps / factor buckets wherever so many steps are possible."""
    scale = LLQuantize.of(factor, magnitude, magnitude, steps)
    assert scale.n_buckets == n_buckets + 2
    widths = set(np.diff(scale.edges).tolist())
    assert widths == {max(1, factor ** (magnitude + 1) // steps)}


def test_the_largest_linear_histogram_is_allowed() -> None:
    assert HistLinear(0, 125, 1).n_buckets == 128


@pytest.mark.parametrize("arguments", [
    (2, 0, 40, 2), (2, 3, 50, 64), (10, 0, 6, 10), (10, 3, 9, 20), (10, 0, 15, 1000), (10, 0, 17, 10), (3, 1, 7, 27),
    (100, 1, 4, 100), (7, 0, 0, 7), (60, 0, 3, 60), (5, 2, 2, 5), (9, 2, 2, 9)])
def test_llquantize_finds_the_bucket_of_every_edge(arguments: tuple[int, int, int, int]) -> None:
    """As a search does, in cells or not: at each edge and beside it, at powers of two, anywhere."""
    scale = LLQuantize.of(*arguments)
    powers = np.int64(1) << np.arange(62)
    anywhere = np.random.default_rng(5).integers(-10, int(scale.edges[-1]) + 10, 5000)
    ends = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, -1, 0])
    values = np.concatenate([scale.edges, scale.edges - 1, scale.edges + 1, powers, powers - 1, anywhere, ends])
    assert scale.index(values).tolist() == np.searchsorted(scale.edges, values, side="right").tolist()
