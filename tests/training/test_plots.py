"""Plots: the file is a picture with curves in it, without pyplot's global state."""

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from jaxgnn.training import plot_curves


def rows(seed: int, steps: int = 200):
    noise = np.random.default_rng(seed).normal(size=steps) * 0.02
    history = []
    for step in range(1, steps + 1):
        row = {"step": step, "loss": float(np.exp(-step / 50) + noise[step - 1])}
        if step % 20 == 0:
            row |= {"validation accuracy": 1 - row["loss"], "test accuracy": 0.9 - row["loss"]}
        history.append(row)
    return history


def colours(path) -> int:
    """How many colours the picture has besides greys."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
    coloured = pixels[np.ptp(pixels, axis=1) > 60]
    assert len(coloured) > 500
    return len(np.unique(coloured, axis=0))


def test_curves_of_one_run_and_of_several_are_drawn(tmp_path):
    plot_curves({"run": rows(0)}, tmp_path / "one.png")
    plot_curves({f"k = {k}": rows(k) for k in (8, 16, 32)}, tmp_path / "three.png")
    assert colours(tmp_path / "one.png") > 2
    assert colours(tmp_path / "three.png") > colours(tmp_path / "one.png")


def test_a_panel_holds_the_fields_that_end_in_the_same_word(tmp_path):
    def width(fields):
        plot_curves({"run": rows(0)}, tmp_path / "curves.png", fields=fields)
        with Image.open(tmp_path / "curves.png") as image:
            return image.width

    one = width(["loss"])
    assert width(["validation accuracy", "test accuracy"]) == one
    assert width(["loss", "test accuracy"]) == 2 * one


def test_what_is_not_finite_is_counted_in_the_label(tmp_path):
    history = rows(0, steps=40)
    history[19]["validation accuracy"] = float("nan")
    history[3]["loss"] = float("inf")
    labels = []
    figure_saved = Figure.savefig

    def look(figure, *args, **options):
        labels.extend(t.get_text() for axes in figure.axes for t in axes.get_legend().texts)
        figure_saved(figure, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", look)
        plot_curves({"run": history}, tmp_path / "curves.png")
    assert labels == [
        "loss (1 of 40 not finite)",
        "validation accuracy (1 of 2 not finite)",
        "test accuracy",
    ]


def test_an_unknown_field_and_an_empty_history_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no \['f1'\] in the histories; they have \['loss'"):
        plot_curves({"run": rows(0)}, tmp_path / "curves.png", fields=["f1"])
    with pytest.raises(ValueError, match="row 2 of 'run' has no step: "):
        plot_curves({"run": [{"step": 1, "loss": 1.0}, {"loss": 2.0}]}, tmp_path / "curves.png")
    with pytest.raises(ValueError, match="no fields in the histories"):
        plot_curves({"run": []}, tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_pyplot_is_not_imported(tmp_path):
    plot_curves({"run": rows(0)}, tmp_path / "curves.png")
    assert "matplotlib.pyplot" not in sys.modules
