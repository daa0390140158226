"""Plots: the file is a picture with curves in it, without pyplot's global state."""

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from jaxgnn.training import plot_curves
from jaxgnn.training.plots import colour, colours


def rows(seed: int, steps: int = 200):
    noise = np.random.default_rng(seed).normal(size=steps) * 0.02
    history = []
    for step in range(1, steps + 1):
        row = {"step": step, "loss": float(np.exp(-step / 50) + noise[step - 1])}
        if step % 20 == 0:
            row |= {"validation accuracy": 1 - row["loss"], "test accuracy": 0.9 - row["loss"]}
        history.append(row)
    return history


def coloured_shades(path) -> int:
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
    assert coloured_shades(tmp_path / "one.png") > 2
    assert coloured_shades(tmp_path / "three.png") > coloured_shades(tmp_path / "one.png")


def test_a_panel_holds_the_fields_that_end_in_the_same_word(tmp_path):
    def width(fields):
        plot_curves({"run": rows(0)}, tmp_path / "curves.png", fields=fields)
        with Image.open(tmp_path / "curves.png") as image:
            return image.width

    one = width(["loss"])
    assert width(["validation accuracy", "test accuracy"]) == one
    assert width(["loss", "test accuracy"]) == 2 * one


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draws, and returns the figure instead of its file alone."""
    figures = []
    save = Figure.savefig

    def remember(figure, *args, **options):
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", remember)

    def draw(histories, **options):
        plot_curves(histories, tmp_path / "curves.png", **options)
        return figures[-1]

    return draw


def texts(legend) -> list[str]:
    return [text.get_text() for text in legend.texts]


def curve(axes, place: int) -> np.ndarray:
    """[points, 2] of a line that is not one of dots."""
    lines = [line for line in axes.lines if line.get_linestyle() != "None"]
    return np.array(lines[place].get_xydata())


def dots(axes) -> list[list[float]]:
    """[x, y] of each dot at a best step."""
    marked = [line for line in axes.lines if line.get_linestyle() == "None"]
    return [[float(x), float(y)] for line in marked for x, y in line.get_xydata()]


def test_what_is_not_finite_is_counted_in_the_legend(draw):
    history = rows(0, steps=40)
    history[19]["validation accuracy"] = float("nan")
    history[3]["loss"] = float("inf")
    loss, accuracy = draw({"run": history}).axes
    assert texts(loss.get_legend()) == ["loss (1 of 40 not finite)"]
    assert texts(accuracy.get_legend()) == [
        "validation accuracy (1 of 2 not finite)",
        "test accuracy",
    ]
    loss, accuracy = draw({"run": history, "other": rows(1, steps=40)}).axes
    assert texts(loss.get_legend()) == ["run: loss (1 of 40 not finite)"]
    assert texts(accuracy.get_legend()) == [
        "validation accuracy",
        "test accuracy",
        "run: validation accuracy (1 of 2 not finite)",
    ]


def test_legends_are_outside_of_the_panels(draw):
    many = {f"k = {k}": rows(k) for k in range(7)}
    long = {f"model gcn, activation maxk, k {k}, hidden features 256": rows(k) for k in range(3)}
    for histories in ({"run": [rows(0), rows(1)]}, many, long):
        figure = draw(histories)
        figure.draw_without_rendering()
        panels = [axes.get_window_extent() for axes in figure.axes]
        boxes = [axes.get_legend().get_window_extent() for axes in figure.axes if axes.get_legend()]
        boxes += [legend.get_window_extent() for legend in figure.legends]
        assert boxes
        assert not any(panel.overlaps(box) for panel in panels for box in boxes)
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


def test_several_seeds_are_their_mean_in_a_band_of_one_standard_deviation(draw):
    values = [[3.0, 1.0, 7.0], [1.0, 2.0], [2.0, float("nan"), 9.0]]
    histories = [
        [{"step": step, "score": value} for step, value in enumerate(seed, start=1)]
        for seed in values
    ]
    figure = draw({"three": histories, "one": histories[0]})
    (axes,) = figure.axes
    np.testing.assert_allclose(curve(axes, 0), [[1, 2], [2, 1.5], [3, 8]])
    np.testing.assert_allclose(curve(axes, 1), [[1, 3], [2, 1], [3, 7]])
    (band,) = axes.collections
    corners = {(float(x), round(float(y), 6)) for x, y in band.get_paths()[0].vertices}
    spread = [1.0, 0.5**0.5, 2**0.5]
    assert corners == {
        (step, round(mean + sign * deviation, 6))
        for step, mean, deviation in zip((1.0, 2.0, 3.0), (2, 1.5, 8), spread, strict=True)
        for sign in (-1, 1)
    }
    assert texts(figure.legends[0]) == ["three (mean ± std of 3 seeds)", "one"]
    assert texts(axes.get_legend()) == ["three: score (1 of 8 not finite)"]


def test_numbers_near_the_largest_and_bytes_that_are_no_utf8_are_drawn(draw):
    largest = [[{"step": 1, "loss": loss}, {"step": 2, "loss": -loss}] for loss in (1e300, 1.6e300)]
    figure = draw({"caf\udce9": largest, "b": largest[:1]}, title="caf\udce9")
    (curve, _), (band, *_) = figure.axes[0].lines[:2], figure.axes[0].collections
    np.testing.assert_allclose(curve.get_ydata(), [1.3e300, -1.3e300])
    assert np.isfinite(band.get_paths()[0].vertices).all()
    assert figure.get_suptitle() == r"caf\xe9"


def test_the_best_step_is_marked_where_a_curve_has_it(draw):
    history = rows(0, steps=40)
    loss, accuracy = draw({"run": history}, best={"run": 20}, axis_labels={"step": "epoch"}).axes
    row = history[19]
    assert dots(loss) == [[20, row["loss"]]]
    assert dots(accuracy) == [[20, row["validation accuracy"]], [20, row["test accuracy"]]]
    assert texts(loss.get_legend())[-1] == "best, epoch 20"
    # Between two evaluations there is no accuracy to mark.
    loss, accuracy = draw({"run": history}, best={"run": 7}).axes
    assert len(dots(loss)) == 1 and dots(accuracy) == []
    assert texts(accuracy.get_legend()) == ["validation accuracy", "test accuracy"]


def test_the_best_steps_of_several_seeds_are_all_marked(draw):
    (axes,) = draw(
        {"a": [rows(0), rows(1)], "b": rows(2)}, fields=["loss"], best={"a": [3, 9]}
    ).axes
    assert [x for x, _ in dots(axes)] == [3, 9]
    assert texts(axes.get_legend()) == ["best step"]


def test_a_loss_that_falls_far_has_a_logarithmic_axis_and_nothing_else_has(draw):
    def scale(field, *values):
        history = [{"step": step, field: value} for step, value in enumerate(values, start=1)]
        return draw({"run": history}).axes[0].get_yscale()

    assert scale("validation loss", 2.0, float("inf"), 0.19) == "log"
    assert scale("loss", 2.0, 0.2) == "linear"
    assert scale("loss", 2.0, 0.0) == "linear"
    assert scale("loss", 2.0, -0.1) == "linear"
    assert scale("loss", float("nan")) == "linear"
    assert scale("accuracy", 1.0, 0.01) == "linear"


def test_titles_and_axes_say_what_is_drawn_in_which_unit(draw):
    labels = {"step": "epoch", "loss": "loss, nats"}
    figure = draw({"run": rows(0)}, title="digits, GCN, 1 seed", axis_labels=labels)
    assert figure.get_suptitle() == "digits, GCN, 1 seed"
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss, nats", "accuracy"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"epoch"}


def test_an_implementation_has_one_colour_whatever_is_drawn_beside_it(draw):
    alone = colours(["a run", "xla", "pallas"])
    assert len(set(alone.values())) == 3
    ours_and_others = ("xla", "pallas", "ffi", "scipy", "torch", "PyG", "liger")
    assert len(set(map(colour, ours_and_others))) == len(ours_and_others)
    for label in ("xla", "pallas", "ffi", "scipy", "torch"):
        (axes,) = draw({"other": rows(0), label: rows(1)}, fields=["loss"]).axes
        assert axes.lines[1].get_color() == colour(label) == colour(label.upper())
        assert axes.lines[0].get_color() != colour(label)


def test_labels_of_one_picture_have_colours_of_their_own_in_a_stable_order():
    labels = ["xla", *(f"k = {k}" for k in range(9))]
    assert len(set(colours(labels).values())) == 10
    assert colours(labels[:3]).items() <= colours(labels).items()
    assert len(set(colours([f"run {n}" for n in range(25)]).values())) == 10
    assert colour("k = 3") == colour("k = 3") != ""


def test_a_line_below_another_is_wider_so_that_it_stays_in_sight(draw):
    (axes,) = draw({name: rows(0) for name in "abc"}, fields=["loss"]).axes
    widths = [line.get_linewidth() for line in axes.lines if line.get_linestyle() != "None"]
    assert sorted(widths, reverse=True) == widths and len(set(widths)) == 3


def test_a_best_step_of_no_history_is_refused(draw):
    with pytest.raises(ValueError, match=r"best must be by labels among \['run'\], got 'other'"):
        draw({"run": rows(0)}, best={"other": 3})
    with pytest.raises(ValueError, match=r"best\['run'\] must be a step for each of the 2 hist"):
        draw({"run": [rows(0), rows(1)]}, best={"run": 3})


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
