"""Memory that is not there as a whole: what there is of it, page by page. Pure, over a ``read`` handed in.

A read gives all of a stretch or nothing. A stretch that goes beyond where memory begins or ends, or over a hole in it,
is read again, each page of it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Read = Callable[[Sequence[int], Sequence[int]], list[bytes]]
Stretch = tuple[int, int]  # begin, end

_PAGE = 1 << 12


def parts_of(read: Read, stretches: Sequence[Stretch], edge: int | None = None) -> list[list[tuple[int, bytes]]]:
    """What is there of each stretch, ascending, as (address, content), without a hole in one. ``edge``: of one whose
    first page (0), or last one (-1), is not there, nothing else is looked at."""
    found = [[(begin, content)] if content else [] for (begin, _), content in zip(
        stretches, _contents(read, stretches), strict=True)]
    in_pages = [(parts, cut(*stretch, _PAGE)) for parts, stretch in zip(found, stretches, strict=True) if not parts]
    in_pages = [one for one in in_pages if len(one[1]) > 1]
    if edge is not None:
        edges = _contents(read, [pages[edge] for _, pages in in_pages])
        in_pages = [one for one, content in zip(in_pages, edges, strict=True) if content]
    pages = [(parts, page) for parts, its in in_pages for page in its]
    for (parts, (begin, _)), content in zip(pages, _contents(read, [page for _, page in pages]), strict=True):
        if parts and content and _end(parts[-1]) == begin:
            parts[-1] = parts[-1][0], parts[-1][1] + content
        elif content:
            parts.append((begin, content))
    return found


def first_of(read: Read, stretches: Sequence[Stretch]) -> list[bytes]:
    """What is there of each stretch from its begin on, up to the first hole."""
    return [parts[0][1] if parts and parts[0][0] == begin else b""
            for parts, (begin, _) in zip(parts_of(read, stretches, 0), stretches, strict=True)]


def last_of(read: Read, stretches: Sequence[Stretch]) -> list[bytes]:
    """The same up to its end, from behind the last hole on."""
    return [parts[-1][1] if parts and _end(parts[-1]) == end else b""
            for parts, (_, end) in zip(parts_of(read, stretches, -1), stretches, strict=True)]


def cut(begin: int, end: int, size: int) -> list[Stretch]:
    """The parts of a stretch of memory between multiples of a size."""
    inner = range(begin // size * size + size, end, size)
    return list(zip([begin, *inner], [*inner, end], strict=True))


def _contents(read: Read, stretches: Sequence[Stretch]) -> list[bytes]:
    return read([begin for begin, _ in stretches], [end - begin for begin, end in stretches]) if stretches else []


def _end(part: tuple[int, bytes]) -> int:
    return part[0] + len(part[1])
