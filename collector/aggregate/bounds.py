"""Which arguments scales take. Without numpy: an expression is checked before the target starts."""

from __future__ import annotations

from collector.errors import AggregationError

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
UINT16_MAX, UINT32_MAX = (1 << 16) - 1, (1 << 32) - 1

_LARGER_UNIT = "a larger unit would do, as in lquantize(sleep / 1ms, 0, 100, 10)"


class ScaleError(AggregationError):
    """A scale's argument is impossible; ``argument`` is its number, counted from 0 behind the value."""

    def __init__(self, argument: int, reason: str) -> None:
        super().__init__(reason)
        self.argument = argument


def lquantize_levels(lower: int, upper: int, step: int = 1) -> int:
    """How many levels ``lquantize(value, lower, upper, step)`` has; one that ``upper`` would cut is left out, as in
    DTrace. ScaleError."""
    for number, bound in enumerate((lower, upper)):
        if not -(1 << 31) <= bound < 1 << 31:
            raise ScaleError(number, f"a bound of lquantize is a 32-bit integer, {bound} is not: {_LARGER_UNIT}")
    if upper <= lower:
        raise ScaleError(1, f"the upper bound of lquantize must be above the lower one, {lower}")
    if not 1 <= step <= UINT16_MAX:
        raise ScaleError(2, f"the step of lquantize is 1 to {UINT16_MAX}{f': {_LARGER_UNIT}' if step > 0 else ''}")
    levels = (upper - lower) // step
    if levels == 0:
        raise ScaleError(2, f"the step of lquantize is larger than the range, {upper - lower}")
    if levels > UINT16_MAX:
        raise ScaleError(2, f"lquantize has at most {UINT16_MAX} levels, not {levels}: a larger step would do")
    return levels


def check_llquantize(factor: int, low: int, high: int, steps: int) -> None:
    """Whether ``llquantize(value, factor, low, high, steps)`` is possible, by the rules of DTrace's compiler.
    ScaleError."""
    for number, argument in enumerate((factor, low, high, steps)):
        if not 0 <= argument <= UINT16_MAX:
            raise ScaleError(number, f"an argument of llquantize is 0 to {UINT16_MAX}")
    if factor < 2:
        raise ScaleError(0, "the factor of llquantize is 2 or more")
    if high < low:
        raise ScaleError(2, f"the high magnitude of llquantize must not be below the low one, {low}")
    if high > 63 or factor ** (high + 1) > INT64_MAX:
        raise ScaleError(2, f"{factor}^({high} + 1) does not fit into 64 bits")
    if steps < factor or steps % factor:
        raise ScaleError(3, f"the steps of llquantize must be a multiple of the factor, {factor}")
    power = factor
    while power < steps:
        power *= factor
    if power % steps:
        raise ScaleError(3, f"the steps of llquantize must evenly divide a power of the factor, {factor}")
