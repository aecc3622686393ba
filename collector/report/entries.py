"""Stacks in which load objects show their entries alone. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collector.report.profile import Weighted, merge_equal


def entries_only(stacks: Weighted, is_api: npt.NDArray[np.bool_]) -> Weighted:
    """The stacks from the root to the first call into such a load object, which is their leaf then.

    ``is_api`` (n objects): functions of these load objects. What is called from there, of other load objects, too,
    counts as the entry's own. What stands at the root was called by nobody.
    """
    rows = stacks.rows
    at = np.flatnonzero(is_api[stacks.objects][:-1] & (rows[1:] == rows[:-1]))
    inner = np.full(len(stacks), -1, np.int64)
    inner[rows[at]] = at  # frames are stored leaf first: the last of a stack is nearest the root
    keep = np.arange(len(rows)) >= inner[rows]
    kept = np.append(0, np.cumsum(keep))
    return merge_equal(replace(stacks, offsets=kept[stacks.offsets].astype(np.int64), objects=stacks.objects[keep]))
