"""The last line of a recording, whole."""

from __future__ import annotations

import re
from collections import Counter

from collector.session.summary import Summary, cut_short
from collector.session.tally import Tally, of_unwinding
from collector.unwind.batch import Stop
from collector.unwind.table import Counters


def test_nothing_lost() -> None:
    summary = Summary("test.1.er", 1.2345, 0.5, 3, 0, 117, [])
    assert str(summary) == "test.1.er: 1.23 s, 0.50 s CPU, 3 threads, 117 samples, nothing lost"


def test_descendants_and_warnings() -> None:
    summary = Summary("/tmp/x.er", 60, 0, 1, 23, 0, ["7 leave records lost", "2 switch records are missing"])
    assert str(summary) == ("/tmp/x.er: 60.00 s, 0.00 s CPU, 1 thread, 23 descendants, 0 samples, "
                            "7 leave records lost; 2 switch records are missing")


def test_an_experiment_that_was_cut_short() -> None:
    assert cut_short("x.er", "profile: no space left", 117, 5, ["a warning"]) == (
        "x.er: profile: no space left, 117 samples, 5 packets were dropped; a warning")


def test_one_of_a_kind_is_in_the_singular() -> None:
    summary = Summary("x.er", 1, 0, 1, 1, 1, [])
    assert str(summary) == "x.er: 1.00 s, 0.00 s CPU, 1 thread, 1 descendant, 1 sample, nothing lost"
    assert cut_short("x.er", "full", 1, 1, []) == "x.er: full, 1 sample, 1 packet was dropped"
    tally = Tally(n_guessed_ends=1, n_estimated_ends=1, n_estimated_waits=1, n_gone=1, n_stacks=1, n_throttled=1,
                  n_unknown_sites=1, n_unaggregated=1, n_repaired=1, n_guessed_faults=1, n_host_faults=1,
                  losses=Counter(clock=1), stops=Counter({Stop.NO_RULE: 1}))
    counters = Counters(stacks_unproven=1, objects_damaged=1, fdes_damaged=1, expressions_unsupported=1)
    lines = (*tally.remarks(), *tally.warnings(), *of_unwinding(counters))
    assert len(lines) == 16
    for line in lines:
        assert not re.search(r"\b1 (\w+ )?(processes|threads|stacks|records|waits|values|times|objects)\b", line)
