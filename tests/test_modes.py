"""Models in training mode, as ``fit`` returns them: evaluated in evaluation mode, and unchanged."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import CSRGraph, models, nn, ops
from jaxgnn._modes import in_evaluation_mode
from jaxgnn.explain import edge_scores
from jaxgnn.graph import GraphBatch
from jaxgnn.interop import ase_calculator, jax_md_energy
from tests.training.tiny_run import digest

GRAPH = CSRGraph.from_edges([0, 1, 2, 3, 1], [1, 2, 3, 0, 0], 4)
X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)


class Network(nnx.Module):
    """Batch norm and both kinds of dropout: all that a mode changes."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = nn.GATConv(3, 4, dropout=0.5, rngs=rngs)
        self.norm, self.flax_norm = nn.BatchNorm(4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.train()

    def __call__(self, graph, x):
        return self.dropout(self.flax_norm(self.norm(self.conv(graph, x))))

    def embed(self, graph, x):
        return self(graph, x)[:, :2]


class Springs(nnx.Module):
    """Energies of structures, with batch norm and dropout."""

    def __init__(self):
        self.norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, batch):
        lengths = models.atomic_edges(batch).distances[:, None]
        energies = ops.aggregate(batch.graph, (lengths - 1.0) ** 2 / 4, "sum")
        return nn.pool(self.dropout(self.norm(energies)), batch, "sum")[:, 0]


class SchNet(models.SchNet):
    """A potential with dropout."""

    def __init__(self):
        super().__init__(2, 4, cutoff=3.0, num_interactions=1, num_gaussians=4, rngs=nnx.Rngs(0))
        self.dropped = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def _energies_of_atoms(self, graph, species, edges):
        return self.dropped(super()._energies_of_atoms(graph, species, edges))


def _relational():
    options = {"features": 4, "embedding_features": 4, "edge_dropout": 0.5}
    return models.RecurrentRelationalNetwork(**options, rngs=nnx.Rngs(0))


def _positions():
    return np.array([[0.0, 0, 0], [0, 0, 1.5], [0, 1.7, 0.4]], np.float32)


def _batch():
    return GraphBatch.from_graphs([models.atomic_sample(_positions(), [0, 1, 0], 3.0)])


def _forces_of_ase(model):
    ase = pytest.importorskip("ase", reason="reason: ase is not installed")
    atoms = ase.Atoms(["Si", "C", "Si"], _positions().astype(float))
    atoms.calc = ase_calculator(model, ["Si", "C"], cutoff=3.0)
    return atoms.get_forces()


def _energy_of_jax_md(model):
    from types import SimpleNamespace

    near = SimpleNamespace(idx=jnp.array([[1, 2], [0, 2], [0, 1]]), format=None)
    near.format = SimpleNamespace(name="Dense")
    return jax_md_energy(model, lambda a, b: a - b, [0, 1, 0])(_positions(), neighbor=near)


def _exported(model):
    return jaxgnn.load_exported(jaxgnn.export(model, GRAPH, X))(GRAPH, X)


def _sudoku(model):
    from jaxgnn.pretrained import SudokuEffort, solve_sudokus

    puzzles = np.zeros((1, 81), int)
    return solve_sudokus(model, puzzles, SudokuEffort(steps=2, attempt_steps=2)).digits


TAKERS = {
    "export": (Network, _exported),
    "export of a method": (Network, lambda model: _exported(model.embed)),
    "export of a partial": (Network, lambda m: _exported(functools.partial(m.embed))),
    "edge_scores, gradient": (Network, lambda m: edge_scores(m, GRAPH, X, target=0)),
    "edge_scores, mask": (
        Network,
        lambda m: edge_scores(m, GRAPH, X, target=0, method="mask", steps=5),
    ),
    "edge_scores, occlusion": (
        Network,
        lambda m: edge_scores(m.embed, GRAPH, X, target=np.array([0, 1]), method="occlusion"),
    ),
    "energy_forces_stress": (Springs, lambda m: models.energy_forces_stress(m, _batch())),
    "energy_forces_stress of a potential": (
        SchNet,
        lambda m: models.energy_forces_stress(m, _batch(), stress=True),
    ),
    "ase_calculator": (Springs, _forces_of_ase),
    "jax_md_energy": (SchNet, _energy_of_jax_md),
    "solve_sudokus": (_relational, _sudoku),
}


@pytest.mark.parametrize("name", TAKERS)
def test_a_model_in_training_mode_is_evaluated_in_evaluation_mode(name):
    make, take = TAKERS[name]
    trained, evaluated = make(), make()
    trained.train()
    evaluated.eval()
    before, modes = digest(trained), nnx.graphdef(trained)
    actual, expected = take(trained), take(evaluated)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    assert digest(trained) == before and nnx.graphdef(trained) == modes


def _potential_of(model):
    return models.energy_forces_stress(lambda batch: model(batch), _batch())


CAPTURED = {
    "export: function": (Network, lambda m: jaxgnn.export(lambda g, x: m(g, x), GRAPH, X)),
    "explain.edge_scores: model": (
        Network,
        lambda m: edge_scores(lambda g, x: m(g, x), GRAPH, X, target=0),
    ),
    "models.energy_forces_stress: model": (Springs, _potential_of),
    "models.rollout: step": (
        Network,
        lambda m: models.rollout(lambda x: x + m.dropout(x), X, 2),
    ),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_model_that_would_change_is_named_in_one_line(name):
    make, take = CAPTURED[name]
    model = make()
    if isinstance(model, Network):
        model.conv.eval()  # the layers of the library ask for a stream of dropout by themselves
    with pytest.raises(ValueError, match=rf"^{name} must be a function that changes no") as error:
        take(model)
    assert "call model.eval() before" in str(error.value) and "\n" not in str(error.value)
    model.eval()
    take(model)


@pytest.mark.parametrize("transform", [nnx.jit, nnx.value_and_grad], ids=["jit", "gradient"])
def test_in_a_loss_a_potential_keeps_its_mode_and_must_not_change(transform):
    model, batch = Springs(), _batch()

    @transform
    def loss(model):
        return models.energy_forces_stress(model, batch).energy.sum()

    with pytest.raises(ValueError, match=r"energy_forces_stress: model must be a function that ch"):
        loss(model)
    model.eval()
    assert jnp.isfinite(jax.tree.leaves(loss(model))[0])


def test_under_jit_a_captured_potential_is_evaluated_in_evaluation_mode():
    model, batch = Springs(), _batch()
    actual = jax.jit(lambda batch: models.energy_forces_stress(model, batch).energy)(batch)
    model.eval()
    np.testing.assert_allclose(actual, model(batch), rtol=1e-5)


def test_copies_share_arrays_but_no_variables():
    model = Network()
    model.twice = model.norm  # shared modules stay shared
    copy = in_evaluation_mode(model)
    assert type(copy) is Network and copy.twice is copy.norm
    assert copy.flax_norm.scale[...] is model.flax_norm.scale[...]
    copy.flax_norm.scale[...] = jnp.zeros(4)
    assert model.flax_norm.scale[...].all()
    parts = in_evaluation_mode({"a": [model, (model.flax_norm, 3)], "f": abs})
    assert parts["a"][0].flax_norm.use_running_average and parts["a"][1][0].use_running_average
    assert parts["a"][1][1] == 3 and parts["f"] is abs
    assert not model.flax_norm.use_running_average


def test_a_module_that_counts_its_calls_can_be_exported_and_explained():
    class Counting(nnx.Module):
        def __init__(self):
            self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

        def __call__(self, graph, x):
            self.calls[...] += 1
            return ops.spmm(graph, x)

    model = Counting()
    np.testing.assert_allclose(_exported(model), ops.spmm(GRAPH, X))
    assert edge_scores(model, GRAPH, X, target=0).any()
    assert model.calls[...] == 0
