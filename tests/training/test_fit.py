"""The loop: it learns, compiles once, asks little of the device, and says what goes wrong."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn.training import LoopConfig, RunFolder, fit, jit_apply, read_rows
from jaxgnn.training._step import make_step, split_model, start_state

from .tiny_run import LOOP, Classifier, Config, digest, loss_fn, make_data, train


@pytest.mark.lowers
def test_training_lowers_the_loss_and_learns_the_task():
    config = Config(learning_rate=0.02, loop=dataclasses.replace(LOOP, steps=120))
    result = train(None, config)
    losses = [row["loss"] for row in result.history]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    assert result.history[-1]["test accuracy"] > 0.85
    assert result.compile_seconds > 0
    assert result.ms_per_step is not None and result.ms_per_step > 0


def test_history_has_one_row_a_step_and_evaluations_where_due():
    result = train(None, Config())
    assert [row["step"] for row in result.history] == list(range(1, 19))
    evaluated = [row["step"] for row in result.history if "test accuracy" in row]
    assert evaluated == [4, 8, 12, 16, 18]
    assert all({"loss", "accuracy"} <= row.keys() for row in result.history)


def test_values_do_not_depend_on_how_often_the_device_is_read():
    often = Config(loop=dataclasses.replace(LOOP, log_every=1))
    assert train(None, often).history == train(None, Config()).history


def test_best_model_is_that_of_the_best_evaluation():
    result = train(None, Config())
    rows = [row for row in result.history if "validation accuracy" in row]
    best = max(rows, key=lambda row: row["validation accuracy"])
    assert result.best is not None and result.best.step == best["step"]
    assert result.best.metrics == {
        name: best[name] for name in ("validation accuracy", "test accuracy")
    }
    up_to_best = dataclasses.replace(LOOP, steps=result.best.step)
    assert digest(result.best_model) == digest(train(None, Config(loop=up_to_best)).model)


def test_best_can_be_the_smallest_and_is_never_nan():
    values = iter([float("nan"), 3.0, 1.0, 1.0, 2.0])
    loop = LoopConfig(steps=5, eval_every=1, select="validation loss", select_mode="min")
    result = train(
        None, Config(loop=loop), evaluate=lambda model: {"validation loss": next(values)}
    )
    assert result.best is not None and result.best.step == 3


@pytest.mark.costly
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_metric_that_is_not_finite_is_never_the_best(bad, mode):
    loop = LoopConfig(steps=2, eval_every=1, select="validation f1", select_mode=mode)
    result = train(None, Config(loop=loop), evaluate=lambda model: {"validation f1": bad})
    assert result.best is None and result.best_model is None
    values = iter([bad, 0.0])
    result = train(None, Config(loop=loop), evaluate=lambda model: {"validation f1": next(values)})
    assert result.best is not None and result.best.step == 2


def test_a_model_that_is_nan_is_no_best_model_though_its_metric_is_finite():
    # The loss is finite up to step 3, whose update is not.
    def loss(model, step, rngs):
        return 0.01 * jnp.sqrt(jnp.where(step == 3, 0.0, 1.0) * model.weight[...]), {}

    def evaluate(model):
        # As classes would be counted: the largest of NaNs is the first.
        return {"hits": 1 + float(jnp.isnan(model.weight[...]))}

    config = LoopConfig(steps=3, eval_every=1, select="hits")
    with pytest.raises(FloatingPointError, match="after step 3; there is no checkpoint"):
        _fit_simple(loss, evaluate=evaluate, config=config)


def test_loss_is_traced_once_although_parameters_start_weakly_typed():
    traces = []

    def counted(model, batch, rngs):
        traces.append(1)
        return loss_fn(model, batch, rngs)

    train(None, Config(), loss=counted)
    assert len(traces) == 1


def test_loss_is_traced_once_a_static_value_and_evaluation_gets_the_value():
    traced, evaluated = [], []

    def scheduled(model, batch, rngs, k):
        traced.append(k)
        return model.weight[...] * k, {}

    def evaluate(model, k):
        evaluated.append(k)
        return {"validation accuracy": 0.5}

    schedule = [1, 1, 2, 2, 1, 3]
    _fit_simple(
        scheduled,
        config=LoopConfig(steps=6, eval_every=1),
        evaluate=evaluate,
        static=lambda step: schedule[step - 1],
    )
    assert traced == [1, 2, 3]
    assert evaluated == schedule


def test_loss_may_set_a_static_attribute_for_its_own_call():
    class Power(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(jnp.array(2.0))
            self.power = 1

    def loss(model, batch, rngs, power):
        model.power = power
        return model.weight[...] ** model.power, {}

    result = fit(
        Power(),
        optax.sgd(0.0),
        loss,
        lambda step: (),
        config=LoopConfig(steps=3),
        static=lambda step: step,
        progress=False,
    )
    assert [row["loss"] for row in result.history] == [2.0, 4.0, 8.0]
    assert result.model.power == 1


def test_evaluation_is_traced_once_while_parameters_change():
    traces = []

    @jit_apply
    def predict(model, x, *, add):
        traces.append(1)
        return model(x) + add

    x = make_data(8, seed=0)["x"]
    train(
        None,
        Config(loop=LoopConfig(steps=6, eval_every=1)),
        evaluate=lambda model: {"mean": predict(model, x, add=1).mean()},
    )
    assert len(traces) == 1


def test_evaluation_sees_the_model_in_evaluation_mode_and_training_does_not():
    modes = []

    def loss(model, batch, rngs):
        modes.append(model.dropout.deterministic)
        return loss_fn(model, batch, rngs)

    def evaluate(model):
        modes.append(model.dropout.deterministic)
        return {"validation accuracy": 0.0}

    train(None, Config(loop=LoopConfig(steps=2)), loss=loss, evaluate=evaluate)
    assert modes == [False, True]


def test_batch_is_an_argument_and_not_a_constant_of_the_program():
    graphdef, arrays = split_model(Classifier(4, rngs=nnx.Rngs(0)))
    optimizer = optax.sgd(0.1)
    step = make_step(graphdef, optimizer, loss_fn, seed=0)
    batch = make_data(50_000, seed=0)
    text = step.lower(start_state(arrays, optimizer), batch, ()).as_text()
    assert "tensor<50000x2xf32>" in text.split("{", 3)[-1]
    # 50 000 rows written out as a constant would take hundreds of kilobytes.
    assert len(text) < 100_000


def test_a_batch_on_the_device_is_not_transferred_again():
    batch = make_data(64, seed=0)

    def batches(step):
        if step == 3:
            jax.config.update("jax_transfer_guard_host_to_device", "disallow")
        return batch

    config = LoopConfig(steps=10, log_every=4)
    model = Classifier(4, rngs=nnx.Rngs(0))
    try:
        result = fit(model, optax.adam(0.1), loss_fn, batches, config=config, progress=False)
    finally:
        jax.config.update("jax_transfer_guard_host_to_device", "allow")
    assert len(result.history) == 10


def test_donation_spares_the_given_model_and_the_results():
    model = Classifier(16, rngs=nnx.Rngs(0))
    before = digest(model)
    result = train(None, Config(), model=model)
    assert digest(model) == before != digest(result.model)
    assert digest(result.model) != digest(result.best_model)


def test_dropout_differs_from_step_to_step_and_repeats_with_the_seed():
    def loss(model, batch, rngs):
        return model.weight[...], {"drawn": rngs.dropout.uniform()}

    def drawn(seed):
        model = SimpleModel()
        config = LoopConfig(steps=8, seed=seed)
        result = fit(model, optax.sgd(0.1), loss, lambda step: (), config=config, progress=False)
        return [row["drawn"] for row in result.history]

    assert len(set(drawn(0))) == 8
    assert drawn(0) == drawn(0)
    assert not set(drawn(0)) & set(drawn(1))


class SimpleModel(nnx.Module):
    def __init__(self, shape=()):
        self.weight = nnx.Param(jnp.ones(shape))


def _fit_simple(loss, **options: Any):
    defaults: dict[str, Any] = {"config": LoopConfig(steps=20, log_every=7), "progress": False}
    return fit(
        SimpleModel(), optax.sgd(1.0), loss, lambda step: jnp.float32(step), **defaults | options
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_loss_names_the_step_and_the_last_checkpoint(tmp_path, bad):
    run = RunFolder(tmp_path / "run", Config())
    config = LoopConfig(steps=20, log_every=7, checkpoint_every=4)
    with pytest.raises(FloatingPointError, match=r"step 10; last checkpoint: .*checkpoints/8$"):
        _fit_simple(
            lambda model, step, rngs: (jnp.where(step == 10, bad, 0 * model.weight[...]), {}),
            run=run,
            config=config,
        )
    assert [row["step"] for row in run.read_metrics()] == list(range(1, 10))


def test_non_finite_parameters_are_not_saved(tmp_path):
    # The loss is finite up to step 4, whose update is not.
    def loss(model, step, rngs):
        return 0.01 * jnp.sqrt(jnp.where(step == 4, 0.0, 1.0) * model.weight[...]), {}

    run = RunFolder(tmp_path / "run", Config())
    config = LoopConfig(steps=8, checkpoint_every=2)
    with pytest.raises(FloatingPointError, match=r"after step 4; last checkpoint: .*/2$"):
        _fit_simple(loss, run=run, config=config)


def test_non_finite_loss_without_a_run_says_that_there_is_no_checkpoint():
    with pytest.raises(FloatingPointError, match="step 1; there is no checkpoint"):
        _fit_simple(lambda model, step, rngs: (model.weight[...] * jnp.nan, {}))


def test_what_loss_fn_returns_is_checked():
    with pytest.raises(ValueError, match=r"loss_fn's rows: expected a scalar, got \(3,\)"):
        _fit_simple(lambda model, step, rngs: (model.weight[...], {"rows": jnp.ones(3)}))
    with pytest.raises(ValueError, match="reserved name step"):
        _fit_simple(lambda model, step, rngs: (model.weight[...], {"step": step}))


def test_a_model_that_grows_new_state_is_refused_by_name():
    def loss(model, step, rngs):
        model.seen = nnx.BatchStat(step)
        return model.weight[...], {}

    with pytest.raises(ValueError, match=r"model\.other\.seen from absent into float32\[\]"):
        _fit_simple(loss)


def test_metric_names_are_checked():
    def loss(model, step, rngs):
        return model.weight[...], {"accuracy": step}

    with pytest.raises(ValueError, match=r"both return \['accuracy'\]"):
        _fit_simple(loss, evaluate=lambda model: {"accuracy": 1.0})
    config = LoopConfig(steps=1, select="validation f1")
    with pytest.raises(ValueError, match="'validation f1', evaluate returned"):
        _fit_simple(loss, evaluate=lambda model: {"validation": 1.0}, config=config)
    with pytest.raises(ValueError, match="there is no evaluate"):
        _fit_simple(loss, config=config)


@pytest.mark.parametrize(
    "field", ["steps", "eval_every", "checkpoint_every", "log_every", "keep_checkpoints"]
)
def test_loop_config_refuses_negative_intervals(field):
    arguments: dict[str, Any] = {"steps": 1, field: -1}
    with pytest.raises(ValueError, match=rf"LoopConfig\.{field}: expected at least"):
        LoopConfig(**arguments)


def test_timing_goes_to_its_own_file(tmp_path):
    run = RunFolder(tmp_path / "run", Config())
    train(run, Config())
    timing = read_rows(run.timing_path)
    assert timing[0].keys() == {"step", "compile_seconds"}
    assert sum(row["steps"] for row in timing[1:]) == 17
    assert all(row["ms_per_step"] > 0 for row in timing[1:])
    names = {name for row in run.read_metrics() for name in row}
    assert names == {"step", "loss", "accuracy", "validation accuracy", "test accuracy"}


def test_each_row_of_the_log_is_handed_on_once_and_in_order(tmp_path):
    run = RunFolder(tmp_path / "run", Config())
    rows: list[dict[str, float]] = []

    def on_row(row):
        # It is in the file by then, and a callback that spoils its copy does no harm.
        assert row in run.read_metrics()
        rows.append(dict(row))
        row.clear()

    result = train(run, Config(), on_row=on_row)
    assert rows == result.history == run.read_metrics()
    assert train(run, Config(), on_row=pytest.fail).finished


def test_rows_before_a_broken_loss_are_handed_on():
    steps = []

    def loss(model, step, rngs):
        return model.weight[...] * jnp.where(step == 5, jnp.nan, 1.0), {}

    with pytest.raises(FloatingPointError, match="at step 5"):
        _fit_simple(loss, on_row=lambda row: steps.append(row["step"]))
    assert steps == [1, 2, 3, 4]


def test_the_summary_has_the_best_evaluation_and_the_most_memory_of_all_starts(tmp_path):
    run = RunFolder(tmp_path / "run", Config())
    result = train(run, Config())
    assert result.best is not None
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["select"] == "validation accuracy"
    assert summary["best"] == {"step": result.best.step, "metrics": result.best.metrics}
    # This process has JAX in it, and is no larger than a machine.
    assert 50 << 20 < summary["peak_host_bytes"] < 1 << 45
    assert "peak_device_bytes" in summary
    run.write_json("summary.json", summary | {"peak_host_bytes": 1 << 50})
    train(run, Config())
    assert json.loads((run.path / "summary.json").read_text()) == summary | {
        "peak_host_bytes": 1 << 50
    }


def test_progress_off_a_terminal_is_a_few_plain_lines(capsys):
    train(None, Config(), progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "compiling …",
        "step 1/18",
        "compiling the evaluation …",
        "step 18/18",
    ]
    assert lines[-1].startswith("step 18/18: loss ") and lines[-1].endswith("ms/step")


def test_progress_on_a_terminal_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr("jaxgnn.training.progress.sys", SimpleNamespace(stderr=_Terminal()))
    train(None, Config(), progress=True)
    text = capsys.readouterr().err
    assert "18/18" in text and "validation accuracy" in text


class _Terminal:
    def isatty(self):
        return True
