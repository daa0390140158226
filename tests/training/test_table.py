"""Tables that align, and the numbers of a confusion matrix."""

import math

import numpy as np
import pytest
from sklearn import metrics

from jaxgnn.training import Confusion, Table


def test_a_table_is_aligned_text_with_numbers_flush_right():
    table = Table(
        "Test accuracy, %",
        ("method", "accuracy", "parameters", "remark"),
        (
            ("majority", 30.2199, 0, "no graph"),
            ("GCN", "81.50 ± 1.30 (10)", 23063, ""),
            ("diverged", math.nan, 1, "-"),
        ),
        note="Ten splits.",
    )
    assert table.text().splitlines() == [
        "Test accuracy, %",
        "method             accuracy  parameters  remark",
        "--------  -----------------  ----------  --------",
        "majority              30.22           0  no graph",
        "GCN       81.50 ± 1.30 (10)       23063",
        "diverged                  –           1  -",
        "Ten splits.",
    ]


def test_a_table_without_rows_still_has_its_headings():
    assert Table("", ("a", "bc"), ()).text() == "a  bc\n-  --"


def test_names_in_the_first_column_are_no_numbers_though_they_look_so():
    table = Table("", ("class", "hits"), (("0", 3), ("10", 4)))
    assert table.is_numeric() == [False, True]
    assert table.text().splitlines()[-2:] == ["0         3", "10        4"]


def test_a_row_of_another_length_is_named():
    with pytest.raises(ValueError, match=r"Table: row 2 of 'scores' must be 2 cells, .*, got 1: "):
        Table("scores", ("a", "b"), (("x", 1), ("y",)))


# Four of a (three found, one taken for b), two of b (one found, one taken for c), none of c,
# and one that has no label.
LABELS = [0, 0, 0, 0, 1, 1, -1]
PREDICTIONS = [0, 0, 1, 0, 1, 2, 0]


def test_scores_of_a_hand_made_confusion_matrix_are_right():
    confusion = Confusion(LABELS, PREDICTIONS, ["a", "b", "c", "d"])
    assert confusion.matrix.tolist() == [[3, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert confusion.accuracy == pytest.approx(4 / 6)
    np.testing.assert_allclose(confusion.precision, [1, 1 / 2, 0, np.nan])
    np.testing.assert_allclose(confusion.recall, [3 / 4, 1 / 2, np.nan, np.nan])
    np.testing.assert_allclose(confusion.f1, [6 / 7, 1 / 2, 0, np.nan])
    assert confusion.table().rows == (
        ("a", "100.0", "75.0", "85.7", 4),
        ("b", "50.0", "50.0", "50.0", 2),
        ("c", "0.0", "–", "0.0", 0),
        ("d", "–", "–", "–", 0),
        ("mean of classes", "50.0", "62.5", "45.2", 6),
    )


def test_scores_agree_with_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    labels, predictions = rng.integers(0, 5, (2, 400))
    confusion = Confusion(labels, predictions, list("abcde"))
    np.testing.assert_array_equal(confusion.matrix, metrics.confusion_matrix(labels, predictions))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(labels, predictions)
    np.testing.assert_allclose(confusion.precision, precision)
    np.testing.assert_allclose(confusion.recall, recall)
    np.testing.assert_allclose(confusion.f1, f1)


BAD_CONFUSIONS = {
    "a label beyond the classes": ([0, 2], [0, 0], r"labels\[1\] must be below 2, .*, got 2"),
    "a prediction below zero": ([0, 1], [-1, 0], r"predictions\[0\] must be below 2, .*, got -1"),
    "another length": ([0, 1], [0], r"predictions must be of the labels' shape \(2,\), got \(1,\)"),
    "fractions": ([0.5], [0], r"labels must be integers \[n\], got float64 \[1\]"),
    "no labels": ([-1, -1], [0, 0], "labels must be the class of at least one example, got none"),
    "nothing": (np.zeros(0, int), np.zeros(0, int), "labels must be the class of at least one"),
}


@pytest.mark.parametrize("case", BAD_CONFUSIONS)
def test_labels_and_predictions_that_are_no_classes_are_named(case):
    labels, predictions, message = BAD_CONFUSIONS[case]
    with pytest.raises(ValueError, match=f"Confusion: {message}"):
        Confusion(labels, predictions, ["a", "b"])
