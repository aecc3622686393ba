"""Stacks that could not be read or were not taken, as the log of an experiment counts them."""

from __future__ import annotations

import re

from collector.experiment.reader import Experiment

# Messages of a program that others preempt all the time: not each wait has a stack.
PREEMPTED = (r"(?:\d+ leave records? lost: stacks of threads that left their CPU too often, told by their last known "
             r"stacks|\d+ waits? with only (?:its|their) leaf known)")
_UNREAD = re.compile(r"(\d+) stacks? (?:is|are) cut, of (?:a thread|threads) whose memory was not there: "
                     r"|(\d+) waits? with only (?:its|their) leaf known$")


def n_unread(experiment: Experiment) -> int:
    """How many there are: of waits of which the leaf alone is known, and of threads whose memory was not there."""
    return sum(int(found[1] or found[2]) for message in experiment.log.messages
               if (found := _UNREAD.match(message.text)))
