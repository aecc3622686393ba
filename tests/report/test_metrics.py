"""The language of -metrics and -sort; er_print's tests compare the same with gprofng."""

from __future__ import annotations

import pytest

from collector.errors import UsageError
from collector.report.metrics import MICROSTATES, NAME, default_view, parse_sort, parse_view, with_flavor


@pytest.mark.parametrize(("spec", "shown", "sort"), [
    ("e.user:i.%total:name", "e.user:i.%total:name", "e.user"),
    ("i.sleep", "i.sleep:name", "i.sleep"),
    ("ie.%wait", "i.%wait:e.%wait:name", "e.%wait"),
    ("e%user", "e%user:name", "e%user"),
    ("e.+%user", "e.%user:name", "e.%user"),
    ("e+user", "e.user:name", "e.user"),
    ("user", "e.user:i.user:name", "e.user"),
    (".user:i.sleep", "e.user:i.user:i.sleep:name", "e.user"),
    ("e!user:i.user", "i.user:name", "i.user"),
    ("name:e.user", "name:e.user", "e.user"),
    ("address:e.user:size", "address:e.user:size:name", "e.user"),
    ("!size:e.user", "e.user:name", "e.user"),
    ("e.user::i.sleep:", "e.user:i.sleep:name", "e.user"),
    ("name", "name", "name"),
])
def test_specifications_of_columns(spec: str, shown: str, sort: str) -> None:
    view = parse_view(spec, MICROSTATES)
    assert (view.command, view.sort_command) == (shown, sort)


@pytest.mark.parametrize("spec", ["", ":", "e.bogus", "eiuser", "a.user", "d.user", "e.User", "hwc",
                                  "i.user:i.user", "e!user"])
def test_specifications_that_make_no_sense(spec: str) -> None:
    with pytest.raises(UsageError):
        parse_view(spec, MICROSTATES)


def test_all_names_every_metric_once_in_both_flavors() -> None:
    view = parse_view("all", MICROSTATES)
    assert len(view.columns) == 2 * len(MICROSTATES) + 3
    assert view.sort_title == "Exclusive Total Thread Time"


@pytest.mark.parametrize(("spec", "sort", "title"), [
    ("name", "name", "Name"),
    ("-name", "-name", "-Name"),
    ("i.totalcpu", "i.%totalcpu", "Inclusive Total CPU Time"),
    ("-e.totalcpu", "-e.%totalcpu", "-Exclusive Total CPU Time"),
    ("e.user:i.any", "i.%totalcpu", "Inclusive Total CPU Time"),
    ("e!totalcpu:name", "name", "Name"),
])
def test_specifications_of_an_order(spec: str, sort: str, title: str) -> None:
    view = parse_sort(spec, default_view(MICROSTATES))
    assert (view.sort_command, view.sort_title) == (sort, title)


@pytest.mark.parametrize("spec", ["", "bogus", "totalcpu", "i.total", "e!totalcpu", "a.totalcpu", "address"])
def test_orders_by_what_is_not_shown(spec: str) -> None:
    with pytest.raises(UsageError):
        parse_sort(spec, default_view(MICROSTATES))


def test_other_tables_show_each_metric_once() -> None:
    view = parse_view("e.user:i.user:size:i.sleep:name", MICROSTATES)
    assert with_flavor(view, "a").command == "a.user:size:a.sleep:name"
    assert with_flavor(view, "e", (NAME,)).command == "e.user:e.sleep:name"
    assert with_flavor(parse_sort("i.sleep", view), "a").sort_command == "a.sleep"
