"""The language: what an expression selects, against the same condition on one span after the other; its errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.aggregate.columns import Coded
from collector.aggregate.fold import Buckets
from collector.aggregate.keyed import Keyed
from collector.aggregate.language import compile_expression
from collector.aggregate.ready import READY
from collector.aggregate.scales import LLQuantize, LQuantize
from collector.aggregate.syntax import FUNCTIONS, KEYS, STATES, VALUES
from collector.errors import ExpressionError, UsageError

NAMES = ("redis-server", "sh", "")
STACKS = ((0x10, 0x20, 0x30), (0x10,), ())

# Rows of (start, length, state, pid, tid, cpu, name, stack, run): what the columns below have.
Row = tuple[int, int, int, int, int, int, int, int, int]
ROWS = st.lists(st.tuples(
    st.integers(0, 100), st.integers(0, 5), st.integers(0, 10), st.integers(1, 3), st.integers(1, 3),
    st.integers(-1, 1), st.integers(0, 2), st.integers(-1, 2), st.integers(-1, 3)), max_size=12)


def columns_of(rows: list[Row]) -> dict[str, Any]:
    start, length, state, pid, tid, cpu, name, stack, run = np.array(rows, dtype=np.int64).reshape(-1, 9).T
    names = Coded(name, NAMES)
    return {"start_ns": start, "end_ns": start + length, "state": state.astype(np.uint8), "pid": pid.astype(np.int32),
            "tid": tid, "cpu": cpu, "execname": names, "comm": Coded(name, [text.encode() for text in NAMES]),
            "ustack": Coded(stack, STACKS, ()), "usym": Coded(stack, ("a", "b", "c"), "?"), "run_ns": run,
            "waker": names, "syscall": names, "wakertid": tid}


LASTS = {"oncpu": [0, 1, 2, 10], "offcpu": range(3, 10), "fault": range(3, 6), "lock": [6], "sleep": [7],
         "waitcpu": [8], "stopped": [9]}


def value_of(name: str, row: Row) -> int | None:
    """The value of one span, or None."""
    if name == "1":
        return 1
    if name in ("runlength", "switches"):
        return None if row[8] < 0 else row[8] if name == "runlength" else 1
    return row[1] if row[2] in LASTS[name] else None


def names_of(row: Row) -> dict[str, Any]:
    """What the names of a condition are for one span."""
    return {"pid": row[3], "tid": row[4], "cpu": row[5], "state": row[2], "execname": NAMES[row[6]],
            "comm": NAMES[row[6]], "usym": ("a", "b", "c", "?")[row[7]],
            **{name: value_of(name, row) or 0 for name in VALUES if name != "1"}}


def selected(expression: str, rows: list[Row]) -> list[tuple[Any, ...]]:
    """(key..., value) of each span that the expression takes."""
    query = compile_expression(expression)
    columns = {name: column for name, column in columns_of(rows).items() if name in query.needs}
    keys, values = query.select(columns)
    return list(zip(*(key.tolist() for key in keys), values.tolist(), strict=True))


@pytest.mark.parametrize("value", VALUES)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_a_value_is_there_for_the_spans_that_have_it(value: str, rows: list[Row]) -> None:
    expected = [(row[4], value_of(value, row)) for row in rows if value_of(value, row) is not None]
    assert selected(f"x[tid] = sum({value})", rows) == expected


NUMBER = st.sampled_from(["pid", "tid", "cpu", "state", *[value for value in VALUES if value != "1"]])
TIME = NUMBER.filter(lambda name: name != "state")  # a state is compared with a state's number alone
SIGN = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
COMPARISON = st.one_of(
    st.builds("{} {} {}".format, NUMBER, SIGN, st.integers(-1, 9)),
    st.builds("{} {} {}".format, st.integers(-1, 9), SIGN, NUMBER),
    st.builds("{} {} {}".format, TIME, SIGN, TIME),
    st.builds('{} {} "{}"'.format, st.sampled_from(["execname", "comm"]), SIGN, st.sampled_from(NAMES)),
    st.builds('"{}" {} usym'.format, st.sampled_from("abc?"), SIGN),
    st.builds('state {} "{}"'.format, SIGN, st.sampled_from(STATES)))
CONDITION = st.recursive(COMPARISON, lambda inner: st.one_of(
    st.builds("{} && {}".format, inner, inner), st.builds("{} || {}".format, inner, inner),
    st.builds("({})".format, inner), st.builds("!({})".format, inner), st.builds("!!({})".format, inner)))


def as_python(condition: str) -> str:
    for state, name in enumerate(STATES):
        condition = condition.replace(f'"{name}"', str(state))
    for sign, word in (("&&", " and "), ("||", " or "), ("!(", " not ("), ("! not", " not not")):
        condition = condition.replace(sign, word)
    return condition.strip()


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, condition=CONDITION)
def test_a_condition_is_what_it_is_for_each_span(rows: list[Row], condition: str) -> None:
    python = compile(as_python(condition), "condition", "eval")
    expected = [(row[3], 1) for row in rows if eval(python, names_of(row))]
    assert selected(f"x[pid] = count() / {condition} /", rows) == expected


def test_keys_come_in_the_order_written() -> None:
    rows = [(0, 5, 6, 1, 2, -1, 0, 0, -1), (0, 7, 7, 1, 2, 0, 1, -1, -1)]
    assert selected("a[state, ustack(2), comm, cpu] = sum(offcpu)", rows) == [
        ("lock", (0x10, 0x20), b"redis-server", -1, 5), ("sleep", (), b"sh", 0, 7)]
    assert selected("a[ustack] = sum(lock)", rows) == [((0x10, 0x20, 0x30), 5)]


def test_plain_columns_of_strings_and_stacks_serve_too() -> None:
    columns = {"start_ns": np.array([0, 0]), "end_ns": np.array([3, 4]), "state": np.array([7, 7]),
               "execname": np.array([b"a", b"b"]), "usym": np.array(["f", "g"]),
               "ustack": np.array([[1, 2], [3, 0]], dtype=np.uint64)}
    query = compile_expression('a[ustack(1), usym] = sum(sleep) / execname == "b" && usym >= "g" /')
    aggregation = Keyed(query.fold)
    aggregation.add(*query.select(columns))
    assert {key: aggregation[key] for key in aggregation} == {((3,), "g"): 4}


@pytest.mark.parametrize(("expression", "needs"), [
    ("a = count()", {"start_ns", "end_ns", "state"}),
    ("a[execname] = sum(runlength)", {"execname", "run_ns"}),
    ('a[tid] = max(1) / switches == 1 || comm == "x" /', {"tid", "comm", "run_ns", "start_ns", "end_ns", "state"}),
    ("a[ustack(5)] = quantize(lock) / pid == tid /", {"ustack", "pid", "tid", "start_ns", "end_ns", "state"}),
])
def test_an_expression_says_which_columns_it_needs(expression: str, needs: set[str]) -> None:
    assert compile_expression(expression).needs == needs


@pytest.mark.parametrize(("expression", "fold", "n_arguments"), [
    ("a=count()", "count", 0), ("a = count(1)", "count", 0), ("@ = avg ( sleep )", "avg", 0),
    ("@x = stddev(oncpu)", "stddev", 0), ("a = variance(oncpu)", "variance", 0), ("a = min(1)", "min", 0),
    ("a = lquantize(lock, -10, 20)", LQuantize(-10, 30, 1), 2),
    ("a = lquantize(lock, 0, 10ms, 1ms)".replace("10ms, 1ms", "50us, 1us"), LQuantize(0, 50, 1000), 3),
    ("a = llquantize(lock, 10, 0x2, 9, 20)", LLQuantize(10, 2, 9, 20), 4),
])
def test_functions_and_their_arguments(expression: str, fold: str | LQuantize | LLQuantize, n_arguments: int) -> None:
    found = compile_expression(expression).fold
    assert (found.scale if isinstance(found, Buckets) and n_arguments else found.name) == fold


@pytest.mark.parametrize(("text", "number"), [
    ("5", 5), ("5ns", 5), ("5us", 5000), ("5ms", 5 * 10**6), ("5s", 5 * 10**9), ("2m", 120 * 10**9), ("-5", -5),
    ("0x10", 16), ("010", 10), ("0.5us", 500), ("1.25s", 1250 * 10**6), ("2.0", 2)])
def test_numbers_have_units(text: str, number: int) -> None:
    spans = [(0, length, 7, 1, 1, 0, 0, 0, -1) for length in (number - 1, number, number + 1)]
    assert len(selected(f"a = count() / sleep == {text} /", spans)) == 1


def test_a_value_has_another_unit() -> None:
    spans = [(7, length, state, 1, 1, 0, 0, 0, -1) for length, state in ((999, 7), (1000, 7), (2999, 7), (5000, 6))]
    assert selected("a[tid] = sum(sleep / 1us)", spans) == [(1, 0), (1, 1), (1, 2)]
    query = compile_expression("a = lquantize(sleep / 1ms, 0, 100, 10) / sleep > 5ms /")
    assert (query.value, query.divisor, query.fold) == ("sleep", 10**6, Buckets(LQuantize(0, 10, 10)))
    assert compile_expression("a = count()").divisor == 1


def test_a_string_may_have_escapes_and_either_quote() -> None:
    columns = {"start_ns": np.zeros(2, int), "end_ns": np.zeros(2, int), "state": np.zeros(2, int),
               "execname": Coded(np.array([0, 1]), ['a"b\\', "it's / not /"])}
    for text, n in ((r'"a\"b\\"', 1), ("\"it's / not /\"", 1), (r"'it\'s / not /'", 1), ('"x"', 0)):
        assert len(compile_expression(f"a = count() / execname == {text} /").select(columns)[1]) == n


# Expression, where the caret stands, what the line above says.
WRONG = (
    ("", "", "the end where the aggregation's name is expected"),
    ("5 = count()", "5", "5 where the aggregation's name"),
    ("a", "", "the end where = is expected"),
    ("a[pdi] = count()", "pdi", "unknown key pdi; did you mean 'pid'"),
    ("a[probeprov] = count()", "probeprov", "unknown key probeprov: pid, tid, cpu, state, execname"),
    ("a[stack] = count()", "stack", "unknown key stack: it is ustack here"),
    ("a <<< sleep", "<<< ", "it is NAME[KEYS] = FUNCTION(VALUE) here, not <<<"),
    ("a = @hist_log(sleep)", "@hist_log", "unknown function @hist_log: it is quantize here"),
    ("a = @sum(sleep)", "@sum", "unknown function @sum: it is sum here"),
    ("a[] = count()", "]", "] where a key is expected: pid"),
    ("a[pid tid] = count()", "tid", "tid where , or ] is expected"),
    ("a[sleep] = count()", "sleep", "unknown key sleep"),
    ("a[pid(3)] = count()", "pid", "only ustack and wakerstack have a depth"),
    ("a[ustack(0)] = count()", "0", "1 frame or more"),
    ("a[ustack(x)] = count()", "x", "how many frames"),
    ("a = quantise(sleep)", "quantise", "unknown function quantise; did you mean 'quantize'"),
    ("a = quantize", "", "the end where ( is expected"),
    ("a = quantize()", ")", ") where a value is expected: 1, oncpu"),
    ("a = sum(slep)", "slep", "unknown value slep; did you mean 'sleep'?"),
    ("a = sum(timestamp)", "timestamp", "unknown value timestamp: 1, oncpu"),
    ("a = p99(sleep)", "p99", "unknown function p99: count, sum"),
    ("a = sum(2)", "2", "unknown value 2"),
    ("a = sum(sleep, 3)", "3", "sum has no more arguments"),
    ("a = hist(sleep)", "hist", "unknown function hist: it is quantize here"),
    ("a = sum(sleep / 0)", "0", "divided by 1 or more"),
    ("a = sum(sleep / -1us)", "-1", "divided by 1 or more"),
    ("a = sum(sleep / pid)", "pid", "pid where a number, such as 1ms, is expected"),
    ("a = lquantize(sleep, 0, 1s, 100us)", "100us", "1 to 65535: a larger unit would do, as in lquantize(sleep / 1ms"),
    ("a = lquantize(sleep, 0, 10s)", "10s", "32-bit integer, 10000000000 is not: a larger unit would do"),
    ("a = lquantize(sleep, 3)", ")", "lquantize also needs upper"),
    ("a = lquantize(sleep, 3, 10, 1, 7)", "7", "lquantize has no more arguments"),
    ("a = lquantize(sleep, 3, pid)", "pid", "pid where the upper of lquantize, a number is expected"),
    ("a = lquantize(sleep, 30, 10)", "10", "the upper bound of lquantize must be above"),
    ("a = lquantize(sleep, 0, 10, 99)", "99", "larger than the range"),
    ("a = llquantize(sleep, 10, 0, 6, 25)", "25", "multiple of the factor"),
    ("a = llquantize(sleep, 10, 6, 0, 20)", "0, 20", "below the low one"),
    ("a = sum(sleep) pid == 3", "pid", "pid where the end or / CONDITION / is expected"),
    ("a = sum(sleep) / pid == 3", "", "the end where &&, || or the closing / is expected"),
    ("a = sum(sleep) / /", "/", "/ where a name, a number or a string is expected"),
    ("a = sum(sleep) / pid /", "/", "/ where a comparison, such as ==, is expected"),
    ("a = sum(sleep) / pid = 3 /", "= 3", "= is == here"),
    ("a = sum(sleep) / pid == 3 and tid == 4 /", "and", "and is && here"),
    ("a = sum(sleep) / pid == 3 | tid == 4 /", "| ", "| is || here"),
    ("a = sum(sleep) / not pid == 3 /", "not", "not is ! here"),
    ("a = sum(sleep) / pdi == 3 /", "pdi", "unknown name pdi; did you mean 'pid'"),
    ("a = sum(sleep) / ppid == 3 /", "ppid", "did you mean 'pid'"),
    ("a = sum(sleep) / pid == $target /", "$", "unexpected character '$'"),
    ("a = sum(sleep) / execname == redis-server /", "redis", 'a string stands in quotes, as in execname == "redis"'),
    ("a = sum(sleep) / state == sleep /", "sleep /", "a state is compared with a number or a name in quotes"),
    ("a = sum(sleep) / sleep > state /", "state", "a state is compared with a number or a name in quotes"),
    ("a = sum(sleep) / state == locked /", "locked", "a string stands in quotes"),
    ("a = sum(sleep) / sleep > 10 ms /", "ms", "a unit stands at its number"),
    ("a = sum(sleep) / sleep > 0.5ns /", "0.5ns", "not a whole number of nanoseconds"),
    ("a = sum(sleep) / pid == 0.5 /", "0.5", "not a whole number"),
    ("a = sum(sleep) / 3 == 4 /", "3", "one side of a comparison must be a name"),
    ("a = sum(sleep) / pid == \"3\" /", '"3"', "a number and a string cannot be compared"),
    ("a = sum(sleep) / execname == 3 /", "3 /", "a number and a string cannot be compared"),
    ("a = sum(sleep) / \"x\" == pid /", "pid", "a number and a string cannot be compared"),
    ("a = sum(sleep) / execname == comm /", "comm", "compared with a string"),
    ("a = sum(sleep) / state == \"locked\" /", '"locked"', "unknown state locked; did you mean 'lock'?"),
    ("a = sum(sleep) / ustack == 3 /", "ustack", "a stack cannot be compared"),
    ("a = sum(sleep) / wakerstack == 3 /", "wakerstack", "a stack cannot be compared"),
    ("a = sum(sleep) / (pid == 3 /", "/", "/ where &&, || or ) is expected"),
    ("a = sum(sleep) / pid == 3) /", ")", ") where &&, || or the closing / is expected"),
    ("a = sum(sleep) / pid == 3 / 4", "4", "4 where the end"),
    ("a = sum(sleep) / pid == 3x /", "x /", "unknown unit x: ns, us, ms, s, m"),
    ("a = sum(sleep) / pid == 99999999999999999999 /", "9999999999", "more than 64 bits"),
    (f"a = sum(sleep) / pid == {'9' * 5000} /", "9999999999", "more than 1000 digits"),
    (f"a = sum(sleep / 1.{'0' * 5000}ms)", "1.0000000000", "more than 1000 digits"),
    ("a = sum(sleep) / execname == \"x /", '"x', "a string without its closing quote"),
    ("a = sum(sleep) / state == \"waitcpu\" /", '"waitcpu"', "unknown state waitcpu: it is wait here"),
    ("a = sum(sleep); b = count()", "b", "one expression at a time: give --aggregate again"),
    ("a = sum(sleep) # why", "#", "unexpected character '#'"),
    ("a = sum(sleep) /" + "(" * 200, "", "parentheses"),
)


@pytest.mark.parametrize(("expression", "mistake", "reason"), WRONG)
def test_a_mistake_is_named_with_a_caret_under_it(expression: str, mistake: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_expression(expression)
    line, shown, caret = str(error.value).split("\n")
    assert reason in line
    assert shown == expression
    assert caret == " " * error.value.position + "^"
    if mistake:
        assert expression[error.value.position:].startswith(mistake)
    elif reason != "parentheses":
        assert error.value.position == len(expression)
    assert isinstance(error.value, UsageError) and error.value.exit_status == 2


def test_a_mistake_in_several_lines_is_shown_in_one() -> None:
    with pytest.raises(ExpressionError) as error:
        compile_expression('a =\n\tsum(1) / state == "a\nb\x1b" /')
    assert str(error.value).split("\n") == [
        f"unknown state a b : {', '.join(STATES)}", 'a =  sum(1) / state == "a b " /', " " * 23 + "^"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["a", "@", "[", "]", "(", ")", "=", "==", "/", "!", "&&", "||", ",", "1", "-3", "2ms",
                                 '"x"', "'", "sum", "lquantize", "sleep", "pid", "execname", "state", "ustack", " "])))
def test_no_text_raises_anything_else(parts: list[str]) -> None:
    text = "a = count() / " + " ".join(parts)
    for expression in (" ".join(parts), text):
        try:
            compile_expression(expression)
        except ExpressionError as err:
            assert 0 <= err.position <= len(expression)


EXPRESSIONS = st.builds(
    "{} = {} / {} /".format,
    st.sampled_from(["a", "@", "@rq[execname]", "b[tid, ustack(3)]", "c[usym, state, waker]"]),
    st.sampled_from(["count()", "sum(offcpu)", "quantize(waitcpu / 1us)", "lquantize(sleep, 0, 100, 10)",
                     "llquantize(lock, 10, 0, 6, 20)"]), CONDITION)
NOISE = st.text(st.characters(codec="utf-8"), max_size=3)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, st.data())
def test_no_damage_to_an_expression_raises_anything_else(expression: str, data: st.DataObject) -> None:
    """Each time a piece is cut out, another one put in its place, or what was there comes twice."""
    for _ in range(data.draw(st.integers(0, 4))):
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(expression))] * 2)))
        new = data.draw(st.one_of(NOISE, st.just(""), st.just(2 * expression[begin:end])))
        expression = expression[:begin] + new + expression[end:]
    try:
        assert compile_expression(expression).expression == expression
    except ExpressionError as err:
        assert 0 <= err.position <= len(expression)
        line, shown, caret = str(err).split("\n")
        assert line.isprintable() and shown.isprintable() and len(shown) == len(expression)
        assert caret == " " * err.position + "^"


@pytest.mark.parametrize(("elsewhere", "here"), [
    ("@rq[execname] = quantize(waitcpu);", "@rq[execname] = quantize(waitcpu)"),
    ("a[execname(), tid(), ustack()] = count()", "a[execname, tid, ustack] = count()"),
    ('a = count() / pid() == 3 && execname() == "x" /;', 'a = count() / pid == 3 && execname == "x" /'),
])
def test_other_spellings_are_the_same(elsewhere: str, here: str) -> None:
    one, other = compile_expression(elsewhere), compile_expression(here)
    assert (one.name, one.keys, one.fold, one.needs) == (other.name, other.keys, other.fold, other.needs)


def test_hundreds_of_conditions_are_no_problem() -> None:
    condition = " || ".join(f"pid == {pid}" for pid in range(2000))
    assert len(selected(f"a = count() / {condition} /", [(0, 1, 7, 3, 1, 0, 0, 0, -1)])) == 1


@pytest.mark.parametrize("name", READY)
def test_a_ready_made_expression_compiles_and_has_its_name(name: str) -> None:
    query = compile_expression(READY[name])
    assert query.name == name
    assert "\n" not in READY[name]
    spans = [(0, 20 * 10**6, state, 1, 2, 0, 0, 0, -1 if state else 5) for state in range(10)]
    assert 0 < len(selected(READY[name], spans)) < 10


def test_the_language_has_the_documented_words() -> None:
    assert set(KEYS) == {
        "pid", "tid", "execname", "comm", "cpu", "state", "syscall", "ustack", "usym", "umod", "ufunc", "waker",
        "wakertid", "wakerstack"}
    assert set(VALUES) == {
        "1", "oncpu", "offcpu", "waitcpu", "sleep", "lock", "fault", "stopped", "runlength", "switches"}
    assert set(FUNCTIONS) == {
        "count", "sum", "min", "max", "avg", "stddev", "variance", "quantize", "lquantize", "llquantize"}


def test_expressions_are_checked_without_numpy() -> None:
    code = """
import sys
from collector.aggregate.ready import READY
from collector.session.asked import parse, ready_lines
[parse(each) for each in READY.values()], ready_lines()
print(sorted({"numpy", "dataclasses"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
