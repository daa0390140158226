"""Shares of a size that are given as floats."""

import math

import numpy as np
import pytest

from jaxgnn._fractions import exact_fraction
from jaxgnn.datasets import split_edges
from jaxgnn.datasets.records.node_dataset import SPLITS
from jaxgnn.datasets.records.splits import stratified_split

CASES = [
    (math.floor, 0.29, 100, 29),
    (math.floor, np.float64(0.57), 100, 57),
    (math.floor, np.float32(0.29), 100, 29),
    (math.ceil, 0.6, 25, 15),
    (math.ceil, 1 / 3, 9, 3),
    (math.ceil, 1 - 0.7, 10, 3),
    (math.floor, 0.1 + 0.7, 10, 8),
    (math.ceil, 0.07, 100, 7),
    (math.ceil, 1e-9, 1, 1),
    (round, 0.1 + 0.2, 15, 4),  # 4.5, to the even one
    (round, 0.7, 5, 4),
    (math.floor, 1, 7, 7),
]


@pytest.mark.parametrize("rounded, share, size, expected", CASES)
def test_a_share_of_a_size_is_that_of_the_number_that_is_meant(rounded, share, size, expected):
    assert rounded(exact_fraction(share) * size) == expected


def test_parts_of_classes_and_of_pairs_have_their_decimal_share():
    parts = stratified_split(np.zeros(15, np.int32), (0.1, 0.2, 0.7), seed=0)
    assert [parts[name].size for name in SPLITS] == [2, 2, 11]  # cut at 1.5 and 4.5, as round does
    ring = np.arange(90)
    split = split_edges(ring, (ring + 1) % 90, 90, validation=0.35, test=0.1, supervision=None)
    assert split.validation.supervision.shape[1] == 32  # 31.5, and less as a float
