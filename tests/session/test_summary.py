"""The last line of a recording, whole."""

from __future__ import annotations

from collector.session.summary import Summary, cut_short


def test_nothing_lost() -> None:
    summary = Summary("test.1.er", 1.2345, 0.5, 3, 0, 117, [])
    assert str(summary) == "test.1.er: 1.23 s, 0.50 s CPU, 3 threads, 117 samples, nothing lost"


def test_descendants_and_warnings() -> None:
    summary = Summary("/tmp/x.er", 60, 0, 1, 23, 0, ["7 leave records lost", "2 switch records are missing"])
    assert str(summary) == ("/tmp/x.er: 60.00 s, 0.00 s CPU, 1 threads, 23 descendants, 0 samples, "
                            "7 leave records lost; 2 switch records are missing")


def test_an_experiment_that_was_cut_short() -> None:
    assert cut_short("x.er", "profile: no space left", 5, ["a warning"]) == (
        "x.er: profile: no space left; 5 packets were dropped; a warning")
