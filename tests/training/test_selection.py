"""The best model and the end of training by a metric: which value is the best, and patience."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxgnn.training import LoopConfig, RunFolder, fit, fit_many


class Weight(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(jnp.zeros(()))


def _train(values: list[float], config: LoopConfig, **options: Any):
    """Trains with an evaluation after each step that has these values, counted by the weight."""

    def evaluate(model):
        name = "score" if config.select is None else config.select
        return {name: values[round(-float(model.weight[...])) - 1]}

    def loss(model, batch, rngs):
        return model.weight[...], {}

    options = {"evaluate": evaluate, "progress": False} | options
    return fit(Weight(), optax.sgd(1.0), loss, lambda step: (), config=config, **options)


@pytest.mark.parametrize(
    "name, step, extreme",
    [
        ("mse", 2, "smallest"),
        ("validation loss", 2, "smallest"),
        ("val_RMSE", 2, "smallest"),
        ("test error rate", 2, "smallest"),
        ("Hits@50", 3, "largest"),
        ("validation roc_auc", 3, "largest"),
        ("R2", 3, "largest"),
        ("top-1 accuracy", 3, "largest"),
    ],
)
def test_the_name_of_a_metric_decides_whether_the_smallest_is_the_best(name, step, extreme):
    result = _train([2.0, 1.0, 3.0], LoopConfig(steps=3, eval_every=1, select=name))
    assert result.best is not None and result.best.step == step
    assert result.selection is not None
    assert result.selection.startswith(f"step {step}, whose {name!r} of {[2, 1, 3][step - 1]} is")
    assert f"is the {extreme} of 3 evaluations ('" in result.selection


@pytest.mark.parametrize(
    "name", ["score", "validation", "neg_mean_squared_error", "negative loss", "accuracy loss", ""]
)
def test_a_name_that_does_not_show_its_mode_needs_one(name):
    with pytest.raises(
        ValueError, match=r"LoopConfig.select_mode: expected 'max' or 'min', as the"
    ):
        LoopConfig(steps=1, select=name)
    result = _train([2.0, 1.0], LoopConfig(2, eval_every=1, select=name, select_mode="min"))
    assert result.best is not None and result.best.step == 2
    assert result.selection is not None and "(select_mode is 'min')" in result.selection


def test_a_copy_with_another_metric_has_the_mode_of_its_name():
    config = LoopConfig(steps=1, select="accuracy")
    assert (config.mode, dataclasses.replace(config, select="mse").mode) == ("max", "min")


def test_results_say_why_no_model_was_selected():
    result = _train([float("nan")] * 2, LoopConfig(2, eval_every=1, select="mse"))
    assert result.selection == "no model: 'mse' was finite in none of 2 evaluations"
    assert _train([1.0], LoopConfig(1)).selection is None


def test_the_summary_and_the_configuration_have_the_mode(tmp_path):
    config = LoopConfig(2, eval_every=1, select="mse")

    @dataclasses.dataclass
    class Config:
        loop: LoopConfig = config

    run = RunFolder(tmp_path / "run", Config())
    result = _train([2.0, 1.0], config, run=run)
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["select_mode"], summary["selection"]) == ("min", result.selection)
    file = run.path / "config.json"
    saved = json.loads(file.read_text())
    assert saved["loop"]["select_mode"] == "min"
    # A run of a version without patience can be resumed; one with another mode can not.
    del saved["loop"]["patience"]
    file.write_text(json.dumps(saved))
    assert _train([2.0, 1.0], config, run=RunFolder(run.path, Config())).finished
    saved["loop"]["select_mode"] = "max"
    file.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=r'loop.select_mode: "max" before, "min" now'):
        RunFolder(run.path, Config())


VALUES = [3.0, 2.0, 2.5, 1.0, 1.5, 1.0, 4.0, 0.5, 0.1, 0.1]


def test_patience_ends_a_run_after_evaluations_without_a_better_one():
    config = LoopConfig(10, eval_every=1, select="mse", patience=3)
    result = _train(VALUES, config)
    assert (len(result.history), result.finished, result.stopped_early) == (7, True, True)
    assert result.best is not None and result.best.step == 4
    patient = _train(VALUES, dataclasses.replace(config, patience=4))
    assert (len(patient.history), patient.stopped_early) == (10, False)
    assert patient.finished and patient.best is not None and patient.best.step == 9
    # NaN is not better, and the last step is no early end.
    nan = [1.0, float("nan"), float("nan")]
    result = _train(nan, LoopConfig(3, eval_every=1, select="mse", patience=2))
    assert (len(result.history), result.finished, result.stopped_early) == (3, True, False)


class Cut(Exception):
    """The end of a process."""


@pytest.mark.parametrize("cuts", [[6], [7], [3, 5, 6, 7]], ids=str)
def test_evaluations_without_a_better_one_are_counted_across_resumes(tmp_path, cuts):
    config = LoopConfig(10, eval_every=1, checkpoint_every=1, select="mse", patience=3)
    expected = _train(VALUES, config)

    def start(**options):
        run = RunFolder(tmp_path / "run", config)
        return _train(VALUES, config, run=run, **options)

    def cut_before(last):
        def on_row(row):
            if row["step"] == last:
                raise Cut

        return on_row

    for step in cuts:
        with pytest.raises(Cut):
            start(on_row=cut_before(step))
    result = start()
    assert result.history == expected.history and result.best == expected.best
    assert (result.stopped_early, result.selection) == (True, expected.selection)
    again = start(on_row=pytest.fail)  # no step, since the run is complete
    assert (again.finished, again.stopped_early, again.history) == (True, True, expected.history)


def test_more_patience_resumes_a_run_that_ended_early(tmp_path):
    config = LoopConfig(10, eval_every=1, select="mse", patience=3)
    assert _train(VALUES, config, run=RunFolder(tmp_path / "run", config)).stopped_early
    config = dataclasses.replace(config, patience=4)
    run = RunFolder(tmp_path / "run", config, may_change=["patience"])
    result = _train(VALUES, config, run=run)
    assert len(result.history) == 10 and result.best is not None and result.best.step == 9


@pytest.mark.parametrize("patience", [0, -1, 1.5, True, "3"])
def test_patience_must_be_a_count(patience: Any):
    with pytest.raises(ValueError, match=r"LoopConfig.patience: expected None or at least 1"):
        LoopConfig(3, select="mse", patience=patience)


def test_patience_needs_a_metric_and_one_run():
    with pytest.raises(ValueError, match=r"LoopConfig.patience: expected select to name"):
        LoopConfig(3, patience=2)
    config = LoopConfig(3, select="mse", patience=2)
    options: Any = {"seeds": [0], "config": config, "predict": len, "score": len}
    with pytest.raises(ValueError, match=r"fit_many: config.patience must be None, got 2"):
        fit_many([Weight()], optax.sgd(1.0), len, (), jnp.zeros(1), **options)
