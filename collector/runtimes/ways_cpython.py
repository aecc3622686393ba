"""By which callers threads of CPython came to each function, as looks at any of them have told. Pure.

A function that runs shortly is seldom met by a look at its own thread, but the threads of a program call alike, and the
callers of a function hardly change. So where no look at a thread agrees with a sample of it, the last way by which one
was seen to come to that function is told, as a guess: all of it but what the thread's own looks know is torn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from collector.runtimes.cpython import Activation, Chain

_WAYS_MAX = 8  # to one function


class Ways:
    """Of each code object the functions that it was carried out amid, of one activation."""

    def __init__(self) -> None:
        # By code object and the outermost one of the activation: the last such activation, and where in it each code
        # object is first, from the innermost function on. The latest entry is the last one.
        self._last: dict[int, dict[int, tuple[Activation, dict[int, int]]]] = {}

    def add(self, chain: Chain) -> None:
        """What a look has told."""
        for activation in chain:
            root = activation[-1].code
            places = {frame.code: place for place, frame in reversed(list(enumerate(activation)))}
            for code in places:
                ways = self._last.setdefault(code, {})
                ways.pop(root, None)
                ways[root] = activation, places
                if len(ways) > _WAYS_MAX:
                    del ways[next(iter(ways))]

    def forget(self, codes: Iterable[int]) -> None:
        """Nobody asks any more for code objects of these numbers."""
        for code in codes:
            self._last.pop(code, None)

    def to(self, codes: Collection[int], outermost: Activation) -> tuple[Activation, int] | None:
        """A way to one of some code objects, with as many of the others on it as there is, and how many of its
        functions are of those that are ``outermost``, innermost first: all of them, or where the inner ones lie on no
        way the outer ones. None: there is none. Of several the one that was seen last."""
        best, found = (0, 0), None
        for code in codes:
            for activation, places in reversed(self._last.get(code, {}).values()):
                begin = places[code]
                joints = ((i, places[frame.code]) for i, frame in enumerate(outermost)
                          if places.get(frame.code, -1) >= begin)
                i, end = next(joints, (len(outermost), len(activation)))
                score = sum(places.get(other, -1) >= begin for other in codes), len(outermost) - i
                if score > best and (score[1] or not outermost):
                    best, found = score, (activation[begin:end] + outermost[i:], score[1])
        return found
