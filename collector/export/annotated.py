"""Source and instructions as text, as the Performance Analyzer's er_print prints them::

       Excl. Total   Incl. Total
       CPU           CPU
        sec.      %   sec.      %
                                            <Function: odd>
       0.      0.    0.      0.         12. double odd(int n)          the number of the line, its text
    ## 0.229  22.85  0.229  22.85       15.     for (int i = 0; ...    ## marks what is hot
       0.035   3.49  0.035   3.49           [15]     117d:  cmp    %eax,%edi
"""

from __future__ import annotations

from collections.abc import Iterator

from collector.export.text import Layout, printable
from collector.report.documents import LINE, Annotated

_HOT, _COLD = "## ", "   "
_NUMBER_WIDTH = 9


def annotated_lines(document: Annotated) -> Iterator[str]:
    """The document, line by line."""
    yield from (f"*** Warning: {note}" for note in document.notes)
    yield from (*document.titles, "")
    columns, labels = document.columns[:-1], document.columns[-1].labels
    layout = Layout(columns)
    layout.fit()
    yield from (f"{_COLD}{line}".rstrip() for line in layout.heading())
    cells = list(layout.rows()) if columns else [""] * len(document)
    width = max(map(len, cells), default=0)
    rows = zip(cells, labels, document.kinds, document.numbers.tolist(), document.has_code.tolist(), document.roles,
               strict=True)
    for cell, label, kind, line, has_code, role in rows:
        before = f"{line:>{_NUMBER_WIDTH}}. " if kind == LINE else " " * (_NUMBER_WIDTH + 2)
        values = cell.ljust(width) if has_code else " " * width
        yield f"{_HOT if role == 'hot' else _COLD}{values}{before}{printable(label)}"

