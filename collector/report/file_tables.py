"""Input and output by file, as a table."""

from __future__ import annotations

import numpy as np

from collector.clock import NS_PER_US
from collector.report import kinds
from collector.report.build import DataSet
from collector.report.documents import Table, Unit
from collector.report.documents import Column as TableColumn
from collector.report.metrics import EXCLUSIVE, Column
from collector.report.traces import ERROR_NS, OTHER_NS, READ_NS, WRITE_NS, files


def file_table(data: DataSet, name: str, by_channel: bool, limit: int = 0) -> Table:
    """The time that was spent on each file, or life of a descriptor; the total first."""
    found = files(data, by_channel)
    figures = np.vstack([found.total, found.figures])
    columns = []
    for number in (READ_NS, WRITE_NS, OTHER_NS, ERROR_NS):
        column = Column(kinds.IO_METRICS[number], EXCLUSIVE)
        time_us = figures[:, number] // NS_PER_US
        time_us[(time_us == 0) & (figures[:, number] > 0)] = 1  # shown as more than nothing
        columns.append(TableColumn(column.key("."), column.title, Unit.TIME, time_us, column.words, None, True,
                                   number == READ_NS, (), column.detail, column.key("%")))
    names = TableColumn.of_names("name", "Name", [b"<Total>", *found.names])
    return Table(name, (), (*columns, names), limit=limit)
