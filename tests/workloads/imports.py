"""imports.py CHAINS [stay]: makes chains of modules, each of which imports the next one, and imports them one after the
other. Each module calls ``work``, through a C function, while it is imported, and has functions that nobody calls. The
code of a module is gone when it has been imported, and that of later ones' functions comes to be in its place. At the
end, as JSON, the CPU time of ``work``; who is to stay does so until its input ends.

For every CPython from 3.8 on.
"""

import json
import py_compile
import sys
import tempfile
from pathlib import Path

LINKS = 7
WORK = """
import time
told = [0.0]

def work(n):
    begin, s = time.thread_time(), 0
    for i in range(100000 + n):
        s += i * i
    told[0] += time.thread_time() - begin
    return s
"""


def source(chain, link):
    """A module's text: its functions are of all sizes."""
    lines = ["from imported_work import work", "total = 0"]
    for i in range(12):
        number = 7 * ((chain * 5 + link * 11 + i * 3) % 17)
        lines += [f"def never_{chain}_{link}_{i}(a, b):", *[f"    a = [a, b, {k}]" for k in range(number)],
                  "    return a"]
        if i == (chain + link) % 12:
            lines.append("total += sum(map(work, range(2)))")
            if link + 1 < LINKS:
                lines.append(f"import imported_{chain}_{link + 1}")
    return "\n".join(lines) + "\n"


def main(n_chains, stays):
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        Path(folder, "imported_work.py").write_text(WORK)
        for chain in range(n_chains):
            for link in range(LINKS):
                path = Path(folder, f"imported_{chain}_{link}.py")
                path.write_text(source(chain, link))
                py_compile.compile(str(path))
        for chain in range(n_chains):
            __import__(f"imported_{chain}_0")
    print(json.dumps({"work": sys.modules["imported_work"].told[0]}), flush=True)
    if stays:
        sys.stdin.read()


main(int(sys.argv[1]), len(sys.argv) > 2)
