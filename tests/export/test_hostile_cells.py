"""What cells must not become: quotes that end a value, tags, thousands of a ratio."""

from __future__ import annotations

import csv
import json

import numpy as np

from collector.export.render import rendered
from collector.report.documents import Column, Lines, Table, Unit

NAME = b'operator"" _x;<b>'
TABLE = Table("functions", ("Functions",), (
    Column("cpi", "Cycles", Unit.RATIO, np.array([1500]), ("Cycles",), detail=("Cycles", "")),
    Column.of_names("name", "Name", [NAME])))


def test_a_mark_between_values_leaves_quotes_within_them_whole() -> None:
    last = list(rendered(TABLE, ";"))[-1]
    assert next(csv.reader([last], delimiter=";"))[-1] == NAME.decode()


def test_ratios_are_numbers() -> None:
    assert json.loads(next(iter(rendered(TABLE, "json"))))["rows"] == [{"cpi": 1.5, "name": NAME.decode()}]


def test_lines_on_a_page_are_no_tags() -> None:
    page = "\n".join(rendered(Lines("header", ["<script>&"]), "html"))
    assert "&lt;script&gt;&amp;" in page
    assert "<script>" not in page
