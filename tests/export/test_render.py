"""One document in every form: the same rows, the same numbers, hostile names as data."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser

import numpy as np
import pytest

from collector.errors import UsageError
from collector.export.render import checked_mode, rendered
from collector.report.documents import Column, Document, Lines, Listing, Table, Tree, Unit
from collector.report.metrics import MICROSTATES, parse_view
from collector.report.tables import Labels, Rows, table

NAMES = [b"<Total>", b'a "b", <c>', b"two\nlines"]


def functions() -> Table:
    """Three rows with shares."""
    view = parse_view("e.%totalcpu:i.total:name", MICROSTATES)
    rows = Rows(np.arange(3), np.array([[10_007, 20_014, 0], [10_007, 0, 0], [0, 20_014, 0]]),
                np.array([[100.0, 0, 0], [100.0, 0, 0], [0, 0, 0]]))
    return table("functions", ("Functions",), rows, view, Labels.of_names(NAMES, 0), ["odd"])


def tree() -> Tree:
    """The same rows, one below the other."""
    flat = functions()
    return Tree("calltree", flat.titles, flat.columns, depths=np.arange(3))


def calls() -> Table:
    """The same rows in two blocks."""
    flat = functions()
    return Table("callers-callees", flat.titles, flat.columns, (), ["self", "caller", "self"], 0, np.array([0, 1, 3]))


def listing() -> Listing:
    """Numbers and names."""
    return Listing("list", (), (Column("id", "ID", Unit.COUNT, np.array([1, 22])),
                                Column.of_names("name", "Name", [b"x", b"y z"])))


def test_text_marks_the_function_itself() -> None:
    found = list(rendered(calls(), "text"))
    assert [line[-1 - len("<Total>"):] for line in found if "<Total>" in line] == ["*<Total>"]
    assert list(rendered(listing(), "text")) == ["ID Name ", "== ==== ", " 1 x ", "22 y z "]


def test_csv_is_read_back() -> None:
    rows = list(csv.reader(rendered(functions(), "csv")))
    assert rows == [["Exclusive Total CPU Time (s)", "Exclusive Total CPU Time (%)",
                     "Inclusive Total Thread Time (s)", "Name"],
                    ["0.010007", "100.0", "0.020014", "<Total>"], ["0.010007", "100.0", "0.0", 'a "b", <c>'],
                    ["0.0", "0.0", "0.020014", "two\\nlines"]]
    assert [row[0] for row in csv.reader(rendered(tree(), "csv"))] == ["Depth", "0", "1", "2"]
    assert [row[:2] for row in csv.reader(rendered(calls(), "csv", False))] == [
        [], ["Block", "Role"], ["1", "self"], ["2", "caller"], ["2", "self"]]


def test_json_is_a_line_with_typed_columns() -> None:
    (line,) = rendered(functions(), "json")
    found = json.loads(line)
    assert [(column["key"], column["unit"], column["sorted"]) for column in found["columns"]] == [
        ("e.totalcpu", "s", True), ("e%totalcpu", "%", True), ("i.total", "s", False), ("name", "", False)]
    assert found["rows"][0] == {"e.totalcpu": 0.010007, "e%totalcpu": 100.0, "i.total": 0.020014, "name": "<Total>"}
    assert found["notes"] == ["odd"]
    assert [row["depth"] for row in json.loads(next(rendered(tree(), "json")))["rows"]] == [0, 1, 2]
    assert [(row["block"], row["role"]) for row in json.loads(next(rendered(calls(), "json")))["rows"]] == [
        (1, "self"), (2, "caller"), (2, "self")]


class Cells(HTMLParser):
    """The texts of a page's cells, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


@pytest.mark.parametrize("document", [functions(), tree()], ids=["table", "tree"])
def test_html_has_the_same_cells(document: Document) -> None:
    page = Cells()
    page.feed("\n".join(rendered(document, "html")))
    assert page.rows[1:] == [["0.010", "100.00", "0.020", "<Total>"], ["0.010", "100.00", "0.", 'a "b", <c>'],
                             ["0.", "0.00", "0.020", "two\\nlines"]]


def test_only_the_first_of_a_file_has_a_head() -> None:
    assert next(rendered(functions(), "html")).startswith("<!DOCTYPE")
    assert not any("<style>" in line for line in rendered(functions(), "html", False))


@pytest.mark.parametrize("document", [functions(), tree(), calls(), listing(), Lines("header", ["a", "b"])],
                         ids=["table", "tree", "calls", "listing", "lines"])
@pytest.mark.parametrize("mode", ["text", "csv", "html", "json", ";"])
def test_a_limit_holds_in_every_form(document: Document, mode: str) -> None:
    whole = list(rendered(document, mode))
    assert whole
    if isinstance(document, Table):
        from dataclasses import replace

        assert len("".join(rendered(replace(document, limit=1), mode))) < len("".join(whole))


def test_modes() -> None:
    assert checked_mode(";") == ";"
    for wrong in ("", "pdf", "\n", ";;"):
        with pytest.raises(UsageError, match="csv, html, json"):
            checked_mode(wrong)
