"""Prints one closing line, like pytest's, for several runs of it; arguments are their files of --junitxml."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

KINDS = {"failures": "failed", "errors": "errors", "skipped": "skipped"}


def closing_line(paths: list[Path]) -> str:
    """Such as ``= 2 failed, 2560 passed in 431.70s =``; failed ones first, as pytest has them."""
    counts: Counter[str] = Counter()
    seconds = 0.0
    for path in paths:
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            found = {told: int(suite.get(kind, "0")) for kind, told in KINDS.items()}
            counts.update(found | {"passed": int(suite.get("tests", "0")) - sum(found.values())})
            seconds += float(suite.get("time", "0"))
    order = ("failed", "passed", "skipped", "errors")
    told = ", ".join(f"{counts[kind]} {kind}" for kind in order if counts[kind]) or "no tests ran"
    return f" {told} in {seconds:.2f}s ".center(80, "=")


if __name__ == "__main__":
    print(closing_line([Path(name) for name in sys.argv[1:]]))
