"""Several runs in one program: each is the run that the loop makes of its seed alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn.training import LoopConfig, fit, fit_many

LOOP = LoopConfig(steps=12, eval_every=4, log_every=5, select="validation accuracy")
SEEDS = (3, 4, 11)


class Net(nnx.Module):
    """Two layers with dropout, as in networks of nodes."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.first = nnx.Linear(5, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.3)
        self.last = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x, rngs=None):
        return self.last(self.dropout(jax.nn.relu(self.first(x)), rngs=rngs))


@dataclasses.dataclass(frozen=True)
class Data:
    """Points [60, 5], their classes, and the mask [runs, 60] of those that train in each run."""

    points: np.ndarray
    labels: np.ndarray
    train: np.ndarray


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 5)).astype(np.float32)
    labels = points[:, :3].argmax(axis=1).astype(np.int32)
    return Data(points, labels, rng.random((len(SEEDS), 60)) < 0.5)


def _loss(model, batch, rngs):
    (points, labels), train = batch
    losses = optax.softmax_cross_entropy_with_integer_labels(model(points, rngs=rngs), labels)
    counted = train.astype(jnp.float32)
    return jnp.sum(losses * counted) / jnp.sum(counted), {"largest": jnp.max(losses)}


def _score(data: Data, run: int, logits: np.ndarray) -> dict[str, float]:
    right = logits.argmax(axis=-1) == data.labels
    return {"validation accuracy": float(right[~data.train[run]].mean())}


def _many(data: Data, config: LoopConfig = LOOP, **options):
    arguments = {
        "models": [Net(8, nnx.Rngs(seed)) for seed in SEEDS],
        "own": jnp.asarray(data.train),
        "seeds": SEEDS,
        "score": lambda run, logits: _score(data, run, logits),
        **options,
    }
    models, own = arguments.pop("models"), arguments.pop("own")
    shared = jnp.asarray(data.points), jnp.asarray(data.labels)
    return fit_many(
        models,
        optax.adam(0.02),
        _loss,
        shared,
        own,
        config=config,
        predict=lambda model, shared: model(shared[0]),
        progress=False,
        **arguments,
    )


def test_each_run_is_the_one_that_its_seed_makes_alone(data):
    results = _many(data)
    shared = jnp.asarray(data.points), jnp.asarray(data.labels)
    for run, (seed, result) in enumerate(zip(SEEDS, results, strict=True)):
        batch = shared, jnp.asarray(data.train[run])
        alone = fit(
            Net(8, nnx.Rngs(seed)),
            optax.adam(0.02),
            _loss,
            lambda _, batch=batch: batch,
            config=dataclasses.replace(LOOP, seed=seed),
            evaluate=lambda model, run=run: _score(data, run, np.asarray(model(data.points))),
            progress=False,
        )
        assert [row.keys() for row in result.history] == [row.keys() for row in alone.history]
        for row, expected in zip(result.history, alone.history, strict=True):
            assert row == pytest.approx(expected, rel=1e-4)
        assert result.best is not None and alone.best is not None
        assert result.best.step == alone.best.step
        assert result.best.metrics == pytest.approx(alone.best.metrics)
        assert result.ms_per_step is not None and result.ms_per_step > 0


def test_a_loss_that_is_not_finite_names_its_seed_and_step(data):
    def broken(model, batch, rngs):
        loss, _ = _loss(model, batch, rngs)
        # The run whose first point does not train is that of the second seed.
        return jnp.where(batch[1][0], loss, jnp.nan), {}

    train = data.train.copy()
    train[:, 0] = (True, False, True)
    data = dataclasses.replace(data, train=train)
    with pytest.raises(FloatingPointError, match="seed 4 is nan at step 1"):
        fit_many(
            [Net(8, nnx.Rngs(seed)) for seed in SEEDS],
            optax.adam(0.02),
            broken,
            (jnp.asarray(data.points), jnp.asarray(data.labels)),
            jnp.asarray(train),
            seeds=SEEDS,
            config=LOOP,
            predict=lambda model, shared: model(shared[0]),
            score=lambda run, logits: _score(data, run, logits),
            progress=False,
        )


def test_what_does_not_fit_together_is_refused_by_name(data):
    with pytest.raises(ValueError, match="fit_many: own: expected a part for each of 3 seeds"):
        _many(data, own=jnp.asarray(data.train[:2]))
    widths = [Net(width, nnx.Rngs(0)) for width in (8, 8, 9)]
    with pytest.raises(ValueError, match=r"fit_many: models: .* model 2 differs from model 0"):
        _many(data, models=widths)
    with pytest.raises(ValueError, match=r"config.select is 'test accuracy', score gave"):
        _many(data, dataclasses.replace(LOOP, select="test accuracy"))
