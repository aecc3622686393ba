"""``--aggregate``: what is asked for, checked against what a recording can tell. Standard library only: the target
waits.

    spans tell      pid, tid, cpu, execname, comm, state, and the stack; of a run the stacks of its clock samples;
                    where the engine is told to, who woke the thread, and in which system call it left its CPU
    they do not     whether time on a CPU was user, system or trap CPU:
                    the profile has that

Functions are named when the experiment is read, so they may be keys, and not conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from collector.aggregate.ready import READY
from collector.aggregate.syntax import (
    FUNCTIONS,
    KEYS,
    STACKS,
    STATES,
    VALUES,
    WHOLE_STACKS,
    Comparison,
    Condition,
    Joined,
    Negated,
    Parsed,
    named_in,
    parse,
)
from collector.errors import ExpressionError, UsageError
from collector.suggestions import meant

# What is only told if it is asked for, or else not one by one, by the names that ask for it.
_EXTRA = {"waker": "waker", "wakertid": "waker", "wakerstack": "waker", "syscall": "syscall", "waitcpu": "waits",
          "offcpu": "waits", "state": "waits"}
_RUN_VALUES = ("runlength", "switches")
_ON_CPU_STATES = STATES[:3]
_GLUE = "\xa0"  # where no line is to break


def expression_of(asked: str) -> str:
    """The expression that ``asked`` is, or is the ready name of. UsageError."""
    if not asked.strip():
        raise UsageError("--aggregate: give an expression, or the name of a ready one; --aggregate help prints them")
    if asked.isidentifier() and asked not in READY:
        raise UsageError(f"--aggregate {asked}: there is no ready one of that name{meant(asked, READY) or ';'} "
                         "--aggregate help prints them")
    parsed = parse(READY.get(asked, asked))
    _check_keys(parsed)
    _check_condition(parsed, parsed.condition)
    return parsed.expression


def with_another(expressions: tuple[str, ...], asked: str) -> tuple[str, ...]:
    """One more; their names differ. UsageError."""
    more = expression_of(asked)
    name = parse(more).name.lstrip("@")
    if any(parse(each).name.lstrip("@") == name for each in expressions):
        raise UsageError(f"--aggregate: there are two of the name {name}")
    return (*expressions, more)


def asked_of(expressions: tuple[str, ...]) -> frozenset[str]:
    """What expressions ask for that engines need not tell: ``waker``, ``syscall``; or not one by one: ``waits`` for a
    CPU."""
    trees = [parse(expression) for expression in expressions]
    names = {name for tree in trees for name in (tree.value.text, *(key.name for key in tree.keys),
                                                 *(name.text for name in named_in(tree.condition)))}
    return frozenset(_EXTRA[name] for name in names if name in _EXTRA)


def ready_lines() -> list[str]:
    """The ready expressions that a recording can tell, a line each."""
    lines = []
    for name, expression in READY.items():
        try:
            lines.append(expression_of(name))
        except ExpressionError:
            continue
        assert expression.startswith(name)
    return lines


def help_lines() -> list[str]:
    """What can be asked for: the words of the language, and the ready expressions."""
    functions = [_signature(name) for name in FUNCTIONS]
    keys = [f"{name} {name}(N)" if name in WHOLE_STACKS else name for name in KEYS]
    return ["NAME[KEYS] = FUNCTION(VALUE, ARGUMENTS) / CONDITION /",
            *_wrapped("keys", keys), *_wrapped("values", VALUES), *_wrapped("functions", functions),
            "", *_MEANING,
            "", "Ready ones, by their names alone:", *ready_lines()]


_MEANING = (
    "Every stretch of time in which a thread is in one state gives one value, its length in nanoseconds;",
    "VALUE / 1us is in microseconds. 1 counts stretches of all kinds; switches counts those that end a run.",
    "  oncpu      on a CPU                        runlength  a run, until the CPU is left",
    "  offcpu     not on a CPU, in all: waitcpu   could run, waits for a CPU",
    "                                   sleep     in a call that waits        lock     for a lock",
    "                                   fault     for a page                  stopped  by a signal",
    "ustack: the call stack, ustack(N): N frames of it; usym or ufunc: its function; umod: its load object.",
    "waker, wakertid, wakerstack: who ended the wait (root). syscall: the call that a thread waits in (root).",
    'A condition compares: / execname == "redis-server" && (state == "lock" || sleep > 10ms) /',
)


def _signature(name: str) -> str:
    """As it is written, what may be left out in brackets."""
    if name == "count":
        return "count()"
    function = FUNCTIONS[name]
    least = len(function.arguments) - function.optional
    more = "".join(f"[, {argument}]" for argument in function.arguments[least:])
    return f"{name}({', '.join(['value', *function.arguments[:least]])}{more})"


def _wrapped(title: str, words: Sequence[str]) -> list[str]:
    from textwrap import wrap  # which no recording needs

    lines = wrap(" ".join(word.replace(" ", _GLUE) for word in words), 100,
                 initial_indent=f"  {title:<11}", subsequent_indent=" " * 13)
    return [line.replace(_GLUE, " ") for line in lines]


def _check_keys(parsed: Parsed) -> None:
    for key in parsed.keys:
        if key.name in STACKS and parsed.value.text in _RUN_VALUES:
            _refuse(parsed, "a run may have several stacks, or none: oncpu is the time of runs by their stacks",
                    key.position)


def _check_condition(parsed: Parsed, condition: Condition | None) -> None:
    for name in named_in(condition):
        if name.text in STACKS:
            _refuse(parsed, f"{name.text} is known when the experiment is read: it can be a key, not a condition",
                    name.position)
    _check_states(parsed, condition)


def _check_states(parsed: Parsed, condition: Condition | None) -> None:
    """A condition that is never met would look like an answer."""
    match condition:
        case Joined(_, terms):
            for term in terms:
                _check_states(parsed, term)
        case Negated(term):
            _check_states(parsed, term)
        case Comparison(left, _, right) if left.type == "state" and right.name is None \
                and right.literal in range(len(_ON_CPU_STATES)):
            _refuse(parsed, f'a recording does not tell {", ".join(_ON_CPU_STATES)} apart: the state is "oncpu"',
                    right.token.position)


def _refuse(parsed: Parsed, reason: str, position: int) -> None:
    raise ExpressionError(reason, parsed.expression, position)
