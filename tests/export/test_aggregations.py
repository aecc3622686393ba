"""The bounds of buckets in the JSON document, against the scales' own choice of bucket for each value."""

from __future__ import annotations

import json

import numpy as np
import pytest

from collector.aggregate.dtrace import UserStack
from collector.aggregate.keyed import Keyed
from collector.aggregate.language import compile_expression
from collector.aggregate.scales import HistLog, LLQuantize, LQuantize, Quantize, Scale
from collector.errors import AggregationError
from collector.export.aggregations import bounds_of, document, table
from collector.export.delimited import csv_lines
from collector.report.aggregations import Merged


@pytest.mark.parametrize("scale", [Quantize(), LQuantize.between(-7, 50, 5), LLQuantize.of(10, 1, 3, 20)],
                         ids=lambda scale: scale.name)
def test_each_bucket_has_the_values_from_its_least_to_its_greatest(scale: Scale) -> None:
    bounds = bounds_of(scale)
    assert len(bounds) == scale.n_buckets
    for bucket, (low, high) in enumerate(bounds):
        ends = np.array([end for end in (low, high) if end is not None], dtype=np.int64)
        assert scale.index(ends).tolist() == [bucket] * len(ends)
        if high is not None:
            assert bounds[bucket + 1][0] == high + 1


def test_another_scale_is_refused() -> None:
    with pytest.raises(AggregationError, match="hist_log"):
        bounds_of(HistLog())


def test_the_document() -> None:
    query = compile_expression("@q[comm] = lquantize(sleep / 1us, 0, 10, 5)")
    recorded, synthetic = Keyed(query.fold), Keyed(query.fold)
    recorded.add([np.array([b"a", b"a", b"\xff"])], np.array([3, 12, 7]))
    (found,) = json.loads(document([Merged(query, recorded, synthetic, 3)]))["aggregations"]
    assert (found["name"], found["keys"], found["function"], found["value"], found["synthetic"]) == (
        "q", ["comm"], "lquantize", "sleep", [])
    assert (found["divisor"], found["dropped"]) == (1000, 3)
    assert found["recorded"] == [
        {"key": ["a"], "buckets": [{"min": 0, "max": 4, "count": 1}, {"min": 10, "max": None, "count": 1}]},
        {"key": ["\\xff"], "buckets": [{"min": 5, "max": 9, "count": 1}]}]


def test_the_table_has_a_row_for_each_key_and_each_bucket() -> None:
    buckets, sums = (compile_expression(text) for text in (
        "@q[comm] = lquantize(sleep / 1us, 0, 10, 5)", "s[tid, ustack] = sum(sleep)"))
    distributed, summed, none = Keyed(buckets.fold), Keyed(sums.fold), Keyed(sums.fold)
    distributed.add([np.array([b"a,b", b"a,b"])], np.array([3, 12]))
    distributed.add([np.array([b"\xff"])], np.array([7]))
    summed.fold_in([(7, UserStack(0, (1, 2), (b"libc.so.6`read", b"main")))], np.array([[-5]]).view(np.uint64))
    found = [Merged(buckets, distributed, Keyed(buckets.fold), 3), Merged(sums, none, summed)]
    assert list(csv_lines(table(found))) == [
        "Aggregation,Kind,Key 1,Key 2,Least,Greatest,Value",
        'q,recorded,"a,b",,0,4,1',
        'q,recorded,"a,b",,10,,1',
        "q,recorded,\\xff,,5,9,1",
        "s,synthetic,7,libc.so.6`read;main,,,-5",
        "q,dropped,,,,,3"]
    assert list(csv_lines(table([Merged(sums, none, none)]))) == [
        "Aggregation,Kind,Key 1,Key 2,Least,Greatest,Value"]
