"""Tables for the terminal and for reports, and confusion matrices of classifiers."""

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np
from jax.typing import ArrayLike

from jaxgnn._errors import bad_input

from .files import printable

Cell = str | int | float

# Texts that are right-aligned as numbers are: "81.5", "+0.3 [-0.2, +0.8]", "± 1.2", a dash.
_NUMERIC = re.compile(r"[-+±−]?\d|[-–—]?$")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report, which ``text`` aligns for a terminal.

    Attributes:
      title: Title of the table.
      columns: The headings.
      rows: The cells of each row, one for each column. Integers are shown in full, other numbers
        with four significant digits, and NaN as a dash; pass text for any other format.
      note: Further information, shown below the table.

    Raises:
      ValueError: The number of cells of a row is not that of the columns.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self):
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                place = f"row {number} of {self.title!r}"
                expected = f"{len(self.columns)} cells, one for each column"
                raise bad_input("Table", place, expected, f"{len(row)}: {row}")

    def cells(self) -> list[list[str]]:
        """The rows, each cell as the text that is shown."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def is_numeric(self) -> list[bool]:
        """For each column, whether its cells are numbers, or texts that begin with one.

        Texts of the first column are names, such as names of classes, and never numbers.
        """

        def is_number(cell: Cell, place: int) -> bool:
            return not isinstance(cell, str) or (place > 0 and _NUMERIC.match(cell) is not None)

        return [
            bool(self.rows) and all(is_number(row[place], place) for row in self.rows)
            for place in range(len(self.columns))
        ]

    def text(self) -> str:
        """The table as lines of text: the title, the headings, the rows, and the note."""
        lines = [list(map(printable, line)) for line in [self.columns, *self.cells()]]
        widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
        aligned = [
            [
                text.rjust(width) if numeric else text.ljust(width)
                for text, width, numeric in zip(line, widths, self.is_numeric(), strict=True)
            ]
            for line in lines
        ]
        aligned.insert(1, ["-" * width for width in widths])
        body = ["  ".join(line).rstrip() for line in aligned]
        return printable("\n".join(line for line in [self.title, *body, self.note] if line))


@dataclasses.dataclass(frozen=True, eq=False)
class Confusion:
    """Confusion matrix of a classifier: counts of pairs of classes, and scores of the classes.

    Attributes:
      labels: [n] integers, the classes of the examples. Examples with a label below zero are
        ignored.
      predictions: [n] integers, the classes that were predicted.
      class_names: A name for each class, in the order of the classes.

    Raises:
      ValueError: The shapes differ, a value is not an integer, a counted label or prediction is
        not a class, or no example is counted.
    """

    labels: ArrayLike
    predictions: ArrayLike
    class_names: Sequence[str]

    def __post_init__(self):
        labels = _classes("labels", self.labels)
        predictions = _classes("predictions", self.predictions)
        if labels.shape != predictions.shape:
            expected = f"of the labels' shape {labels.shape}"
            raise bad_input("Confusion", "predictions", expected, predictions.shape)
        counted = labels >= 0
        if not counted.any():
            raise bad_input("Confusion", "labels", "the class of at least one example", "none")
        classes = len(self.class_names)
        for name, values in {"labels": labels, "predictions": predictions}.items():
            wrong = counted & ((values < 0) | (values >= classes))
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                expected = f"below {classes}, the number of class_names"
                raise bad_input("Confusion", f"{name}[{place}]", expected, int(values[place]))

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """[classes, classes] int64: examples of the row's class predicted as the column's."""
        labels, predictions = np.asarray(self.labels), np.asarray(self.predictions)
        classes, counted = len(self.class_names), labels >= 0
        pairs = labels[counted].astype(np.int64) * classes + predictions[counted]
        return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)

    @property
    def accuracy(self) -> float:
        """The fraction of examples whose prediction is right."""
        return float(np.trace(self.matrix) / self.matrix.sum())

    @property
    def precision(self) -> np.ndarray:
        """[classes] float64: share of predictions of the class that are right; NaN without any."""
        return _ratio(np.diag(self.matrix), self.matrix.sum(0))

    @property
    def recall(self) -> np.ndarray:
        """[classes] float64: share of examples of the class predicted as it; NaN if it has none."""
        return _ratio(np.diag(self.matrix), self.matrix.sum(1))

    @property
    def f1(self) -> np.ndarray:
        """[classes] float64: the harmonic mean of both; NaN for a class that never occurs."""
        return _ratio(2 * np.diag(self.matrix), self.matrix.sum(0) + self.matrix.sum(1))

    def table(self) -> Table:
        """Precision, recall, F1 and number of examples of each class, in per cent, and the mean."""
        scores = 100 * np.stack([self.precision, self.recall, self.f1], axis=1)
        support = self.matrix.sum(1)
        rows = [
            (name, *map(_percent, row), int(count))
            for name, row, count in zip(self.class_names, scores, support, strict=True)
        ]
        # Classes with an undefined score are ignored in its mean.
        means = [float(column[~np.isnan(column)].mean()) for column in scores.T]
        return Table(
            title="Scores of each class, %",
            columns=("class", "precision", "recall", "F1", "examples"),
            rows=(*rows, ("mean of classes", *map(_percent, means), int(support.sum()))),
            note=f"Accuracy: {100 * self.accuracy:.1f} %. A dash: the class was never predicted, "
            "or has no examples.",
        )


def _classes(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise bad_input("Confusion", name, "integers [n]", f"{array.dtype} {list(array.shape)}")
    return array


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}"


def _text(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | int | np.integer):
        return str(cell)
    return "–" if np.isnan(cell) else f"{cell:.4g}"
