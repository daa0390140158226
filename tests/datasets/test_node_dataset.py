"""`validate` finds every kind of inconsistency and says where it is."""

import dataclasses
import re

import numpy as np
import pytest

from . import formats

GOOD = formats.small_dataset()
MULTILABEL = formats.small_dataset(tasks=3)


def altered(array, position, value):
    changed = array.copy()
    changed[position] = value
    return changed


def ids(*values):
    return np.array(values, np.int32)


CASES = [
    ("senders", GOOD, altered(GOOD.senders, 4, 12), "node ids in [0, 12), got 12 at [4]"),
    ("receivers", GOOD, altered(GOOD.receivers, 2, -1), "node ids in [0, 12), got -1 at [2]"),
    ("receivers", GOOD, GOOD.receivers[1:], "as many as senders"),
    ("senders", GOOD, GOOD.senders.astype(np.int64), "1-d int32 array, got 1-d int64"),
    ("features", GOOD, altered(GOOD.features, (3, 1), np.nan), "got nan at [3, 1]"),
    ("features", GOOD, altered(GOOD.features, (3, 1), -np.inf), "got -inf at [3, 1]"),
    ("features", GOOD, GOOD.features[0], "2-d float32 array, got 1-d float32"),
    ("features", GOOD, GOOD.features.astype(np.float64), "got 2-d float64"),
    ("labels", GOOD, GOOD.labels[1:], "shape (12,), got shape (11,)"),
    ("labels", GOOD, altered(GOOD.labels, 5, 4), "class ids in [0, 4), got 4 at [5]"),
    ("labels", MULTILABEL, altered(MULTILABEL.labels, (5, 2), 0.5), "got 0.5 at [5, 2]"),
    ("labels", MULTILABEL, MULTILABEL.labels[:, 1:], "shape (12, 3), got shape (12, 2)"),
    ("labels", MULTILABEL, MULTILABEL.labels.astype(np.int32), "2-d float32"),
    ("train", GOOD, ids(), "at least one node, got none"),
    ("validation", GOOD, ids(3, 12), "node ids in [0, 12), got 12 at [1]"),
    ("test", GOOD, ids(2, 1), "sorted node ids without repeats, got 1 at [1]"),
    ("test", GOOD, ids(2, 2), "sorted node ids without repeats, got 2 at [1]"),
    ("class_names", GOOD, ("a", "b"), "as many as num_classes (4), got 2"),
    ("class_names", GOOD, ("a", "b", "c", "b"), "every name once, got b twice"),
    ("node_names", GOOD, np.arange(11), "as many as num_nodes (12), got 11"),
    ("node_names", GOOD, np.arange(12) // 2, "every name once, got 0 twice"),
    ("test", GOOD, GOOD.validation, f"outside validation, got node {GOOD.validation[0]} at [0]"),
]


@pytest.mark.parametrize("data", [GOOD, MULTILABEL])
def test_consistent_data_passes(data):
    data.validate()


@pytest.mark.parametrize(("field", "data", "value", "fragment"), CASES)
def test_first_fault_is_reported_with_its_position(field, data, value, fragment):
    broken = dataclasses.replace(data, **{field: value})
    with pytest.raises(ValueError, match=re.escape(fragment)) as caught:
        broken.validate({field: "some/file.npz"})
    assert f"small.{field} (from some/file.npz)" in str(caught.value)


def test_sizes_come_from_the_arrays():
    assert (GOOD.num_nodes, GOOD.num_edges) == (formats.NODES, GOOD.senders.size)
    assert not GOOD.multilabel
    assert MULTILABEL.multilabel
