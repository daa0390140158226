"""What others are timed at is what ours do: the same results, or no rows of theirs."""

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.benchmarks import (
    _attention,
    _hypergraphs,
    _layers,
    _messages,
    _mhc_peers,
    _torch_attention,
    _torch_relational,
    hypergraph_conv,
    mhc_layer,
    segment_softmax,
)
from experiments.benchmarks._baselines import torch_segment_softmax
from experiments.benchmarks._cases import DIRECTIONS, Candidate
from experiments.benchmarks._hypergraphs import STEPS, Coupling, Hypergraph
from experiments.benchmarks._workloads import (
    MESSAGES,
    WORKLOADS,
    Streams,
)
from experiments.maxk.recipes import recipe
from jaxgnn.datasets import synthetic
from jaxgnn.graph import CSRGraph, Incidence
from jaxgnn.models import MaxKGNN, RecurrentRelationalNetwork
from jaxgnn.testing import random_array
from jaxgnn.testing.timing import measure_in_turns

_NEEDS = "reason: needs {}, which this project does not install"
_NO_TORCH = _NEEDS.format("torch")


def test_peers_that_do_not_run_cost_their_rows_only(monkeypatch, capsys):
    def fail(*arrays):
        raise AssertionError("only on Sundays")

    _mhc_peers._say.cache_clear()
    monkeypatch.setattr(_mhc_peers, "torch_here", lambda: object())
    monkeypatch.setattr(_mhc_peers, "to_torch", lambda array: array)
    monkeypatch.setattr(_mhc_peers, "PEERS", {"Sunday": fail, "nowhere": _import_nothing})
    for _ in range(2):
        assert _mhc_peers.candidates("forward", [(None, (1,), 2)]) == {}
    monkeypatch.setattr(_mhc_peers, "torch_here", lambda: None)
    assert _mhc_peers.candidates("forward", []) == {}
    assert capsys.readouterr().out.splitlines() == [
        "no rows of Sunday: only on Sundays",
        "no rows of nowhere: No module named 'no_such_module'",
        "no rows of Sunday, nowhere: torch not installed, or without this device",
    ]


def _import_nothing(*arrays):
    return importlib.import_module("no_such_module")


@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
def test_torch_geometric_has_the_same_softmax(direction):
    pytest.importorskip("torch_geometric", reason=_NEEDS.format("torch-geometric"))
    graph = CSRGraph.from_edges([0, 1, 2, 2], [1, 0, 0, 2], 3)
    logits, dy = (random_array((4, 2), "float32", seed=seed) for seed in (0, 1))
    inputs = [(graph, logits, dy)]
    (peer,) = torch_segment_softmax(graph, inputs, direction).values()
    made = jax.tree.leaves(peer.run(*peer.inputs[0]))
    ours = DIRECTIONS[direction](segment_softmax.build("xla"))(*inputs[0])
    for a, e in zip(made, jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(jnp.from_dlpack(a), e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
@pytest.mark.parametrize("op", _attention.ARRAYS)
@pytest.mark.filterwarnings("ignore")  # torch's
def test_torch_geometric_has_the_same_attention(op, direction):
    pytest.importorskip("torch_geometric", reason=_NEEDS.format("torch-geometric"))
    (workload,) = WORKLOADS["cpu", "tiny"]
    inputs = _attention._inputs(op, workload, "float32")[:1]
    (peer,) = _torch_attention.torch_attention(op, workload.graph(), inputs, direction).values()
    made = jax.tree.leaves(peer.run(*peer.inputs[0]))
    ours = jax.tree.leaves(DIRECTIONS[direction](_attention.build(op, "xla"))(*inputs[0]))
    for a, e in zip(made, ours, strict=True):
        np.testing.assert_allclose(jnp.from_dlpack(a), e, rtol=1e-4, atol=1e-5)


def test_a_peer_that_runs_out_of_memory_frees_it_and_has_no_time():
    freed = []

    def call():
        raise RuntimeError("CUDA out of memory. Tried to allocate 103 GiB")

    run = functools.partial(_torch_attention.freeing_if_full, lambda: freed.append(1))
    peer = Candidate(run, [(call,)], jit=False, wait=lambda result: None)
    ours = Candidate(lambda x: x + 1, [(jnp.ones(3),)])
    timings = measure_in_turns({"ours": ours, "peer": peer}, repeats=1, batch_ms=0.0)
    assert timings["peer"] is None and timings["ours"] is not None and freed
    assert run(lambda: 3) == 3
    with pytest.raises(RuntimeError, match="another"):
        run(lambda: (_ for _ in ()).throw(RuntimeError("another error")))
    assert len(freed) == 1


def test_plain_torch_has_the_same_layer():
    pytest.importorskip("torch", reason=_NO_TORCH)
    direction = "forward+backward"
    inputs = mhc_layer._ARRAYS.make(Streams("tiny", 3, 8, ("float32",)), "float32")[:1]
    candidate = _mhc_peers._candidate(_mhc_peers.PEERS["torch"], direction, inputs)
    y, gradients = candidate.run(*candidate.inputs[0])
    expected, _, ours = DIRECTIONS[direction](mhc_layer._build("xla"))(*inputs[0])
    for theirs, array in zip((y, *gradients), (expected, *ours), strict=True):
        np.testing.assert_allclose(theirs, array, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=[("fused_linear", "relu"), ("fused_mlp", "relu"), ("fused_mlp", "gelu")])
def layers_and_inputs(request):
    layers = _layers.Layers(*request.param)
    features = (8, 6) if layers.op == "fused_linear" else (8, 6, 4, 5)
    return layers, layers.inputs(7, features, "float32")[:1]


def _assert_same_gradients(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.costly
def test_plain_layers_compute_what_the_op_does(layers_and_inputs):
    layers, inputs = layers_and_inputs
    both = DIRECTIONS["forward+backward"]
    expected = both(layers.ours("xla"))(*inputs[0])
    _assert_same_gradients(both(layers.ours(None))(*inputs[0]), expected)
    _assert_same_gradients(both(layers.plain)(*inputs[0]), expected)


def test_plain_torch_has_the_same_layers(layers_and_inputs):
    pytest.importorskip("torch", reason=_NO_TORCH)
    layers, inputs = layers_and_inputs
    for direction in ("forward", "forward+backward"):
        expected = DIRECTIONS[direction](layers.plain)(*inputs[0])
        candidate = _layers.torch_layers(layers, direction, inputs)["torch"]
        arrays = _layers.torch_arrays(candidate.run(*candidate.inputs[0]))
        _assert_same_gradients(arrays, jax.tree.leaves(expected))


def _tiny_hypergraphs():
    return [
        Coupling("coupling", 5, 8, experts=3, layers=2, dtypes=("float32",)),
        Hypergraph("hypergraph", 12, 4, 30, 8),
    ]


@pytest.mark.parametrize("workload", _tiny_hypergraphs(), ids=lambda w: w.name)
@pytest.mark.filterwarnings("ignore")  # torch's
def test_torch_geometric_has_the_same_layers(workload, capsys):
    pytest.importorskip("torch", reason=_NO_TORCH)
    pytest.importorskip("torch_geometric", reason=_NEEDS.format("torch-geometric"))
    for case in hypergraph_conv.cases(workload):
        ours, theirs = case.candidates["auto"], case.candidates["PyG"]
        assert hypergraph_conv.agree(case.direction, ours, theirs, 1e-4)
    assert "differs from ours by" in capsys.readouterr().out


def test_a_peer_that_computes_something_else_is_found(capsys):
    peer = Candidate(lambda x: (3 * x, (x,)), [(_Tensor([1.0, 2.0]),)], jit=False)
    same = Candidate(lambda x: (3 * x, x), [(jnp.array([1.0, 2.0]),)])
    other = Candidate(lambda x: (3 * x, -x), [(jnp.array([1.0, 2.0]),)])
    assert hypergraph_conv.agree("x", same, peer, 1e-6)
    assert not hypergraph_conv.agree("x", other, peer, 1e-6)
    assert (
        "2.0e+00 of the largest entry, more than 1e-06: no rows of PyG" in capsys.readouterr().out
    )


def test_a_peer_with_a_nan_in_any_array_is_not_the_same(monkeypatch, capsys):
    monkeypatch.setattr(_hypergraphs, "peer_arrays", lambda arrays: arrays)
    good, bad = np.ones(3, np.float32), np.float32([1, np.nan, 1])

    def of(*arrays):
        return Candidate(lambda x: arrays, [(jnp.ones(1),)])

    for ours, theirs in ((of(good, good), of(good, bad)), (of(good, bad), of(good, good))):
        assert not hypergraph_conv.agree("x", ours, theirs, 1e-6)
    assert capsys.readouterr().out.count("differs from ours by nan") == 2
    assert hypergraph_conv.agree("x", of(good, good), of(good, good), 1e-6)


def test_a_peer_without_memory_costs_its_rows_and_not_the_run(capsys):
    def run(x):
        raise RuntimeError("CUDA out of memory")

    peer = Candidate(run, [(None,)], jit=False)
    ours = Candidate(lambda x: x, [(jnp.ones(2),)])
    assert not hypergraph_conv._comparable("x", ours, peer, 1e-6)
    assert "x: no rows of PyG: CUDA out of memory" in capsys.readouterr().out


class _Tensor(np.ndarray):
    """An array with as much of a tensor's interface as results are read by."""

    def __new__(cls, values):
        return np.asarray(values, np.float32).view(cls)

    def detach(self):
        return self

    def float(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def test_copies_of_a_hypergraph_share_nothing():
    incidence = Incidence.from_hyperedges([{0, 1}, {1, 2}, {0, 2}, {2}], 3)
    index = _hypergraphs.index_of_tokens(incidence, 5)
    expected = Incidence.batch([incidence] * 5)
    np.testing.assert_array_equal(index, [expected.node_ids, expected.hyperedge_ids])


@pytest.mark.long
def test_a_training_step_of_experts_learns():
    candidate = hypergraph_conv._step(STEPS["cpu", "tiny"][0], "float32", None)
    state, tokens = candidate.inputs[0]
    step, losses = jax.jit(candidate.run), []
    for _ in range(60):
        state, loss = step(state, tokens)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.filterwarnings("ignore")  # torch's, about its sparse tensors
def test_torch_geometric_has_the_same_network(k):
    torch = pytest.importorskip("torch", reason=_NO_TORCH)
    pytest.importorskip("torch_geometric", reason=_NEEDS.format("torch-geometric"))
    from experiments.benchmarks import _pyg

    settings = dataclasses.replace(recipe("synthetic", "sage", "relu"), hidden_features=16)
    data = synthetic("tiny")
    graph = CSRGraph.from_edges(data.senders, data.receivers, data.num_nodes)
    activation = "relu" if k is None else "maxk"
    sizes = data.features.shape[1], 16, data.num_classes
    ours = MaxKGNN(*sizes, num_layers=4, activation=activation, k=k, rngs=nnx.Rngs(0))
    theirs = _pyg.SageNet(data.features.shape[1], settings, data.num_classes, k).eval()
    _copy_parameters(torch, ours, theirs)
    for convolution in theirs.convolutions:
        convolution.message = None  # a row an edge would have to be gathered for it

    def loss(x):
        return jnp.sum(jnp.sin(ours(graph, x)))

    x = torch.tensor(data.features, requires_grad=True)
    edges = _pyg.make_edges(data.senders, data.receivers, data.num_nodes, "cpu")
    y = theirs(edges, x)
    y.sin().sum().backward()
    np.testing.assert_allclose(y.detach(), ours(graph, data.features), rtol=1e-4, atol=1e-4)
    gradient = jax.grad(loss)(jnp.asarray(data.features))
    np.testing.assert_allclose(x.grad, gradient, rtol=1e-3, atol=1e-3)


def _copy_parameters(torch, ours, theirs):
    def copy(source, target):
        target.weight.data = torch.tensor(np.asarray(source.kernel[...]).T)
        if source.bias is not None:
            target.bias.data = torch.tensor(np.asarray(source.bias[...]))

    copy(ours.lin_in, theirs.lin_in)
    copy(ours.lin_out, theirs.lin_out)
    for source, target in zip(ours.convolutions, theirs.convolutions, strict=True):
        copy(source.neighbor_linear, target.lin_rel)
        target.lin_root.weight.data = torch.tensor(np.asarray(source.self_linear.kernel[...]).T)
        target.lin_rel.bias.data = torch.tensor(np.asarray(source.self_linear.bias[...]))


@pytest.mark.again("tests/nn/test_edge_convolutions.py")
@pytest.mark.parametrize("workload", MESSAGES["cpu", "tiny"], ids=lambda w: w.name)
def test_plain_messages_compute_what_the_op_does(workload):
    op = _messages.MessageOp(workload, workload.graph())
    inputs = op.inputs("float32")[0]
    both = DIRECTIONS["forward+backward"]
    _assert_same_gradients(both(op.plain)(*inputs), both(op.ours(None))(*inputs))


@pytest.mark.long
def test_a_step_with_plain_messages_has_the_same_loss_and_parameters():
    workload = next(load for load in MESSAGES["cpu", "tiny"] if load.steps)
    steps = _messages.training_steps(workload, workload.graph(), "float32")
    names = ("auto", "xla", "plain layers")
    ours, *plain = (steps[name].run(*steps[name].inputs[0]) for name in names)
    for theirs in plain:
        _assert_same_gradients(theirs, ours)


def test_the_recurrent_network_in_torch_is_ours():
    torch = pytest.importorskip("torch", reason=_NO_TORCH)
    workload = next(load for load in MESSAGES["cpu", "tiny"] if load.steps)
    ours = RecurrentRelationalNetwork(
        box=workload.box, features=workload.dim, num_steps=workload.steps, rngs=nnx.Rngs(0)
    )
    theirs = _torch_relational.network(torch, workload, workload.graph(), lambda step: step)
    parameters = _relational_parameters(nnx.to_pure_dict(nnx.state(ours, nnx.Param)))
    theirs.load_state_dict({name: torch.tensor(np.asarray(a)) for name, a in parameters}, False)
    assert {name for name, _ in parameters} == {name for name, _ in theirs.named_parameters()}
    puzzles = jax.random.randint(jax.random.key(0), (2, workload.box**4), 0, workload.box**2 + 1)
    logits = theirs(torch.tensor(np.asarray(puzzles)).long()).detach()
    np.testing.assert_allclose(logits, ours(puzzles), rtol=1e-4, atol=1e-4)


def _relational_parameters(state):
    """Ours by torch's names; its cell has two biases, ours adds one to the forget gate."""
    embeddings = (state[name]["embedding"] for name in ("digits", "rows", "columns"))
    made = [(f"embeddings.{i}.weight", array) for i, array in enumerate(embeddings)]
    steps = state["steps"]
    mlps = {"encoder": state["encoder"], "step.message": steps["messages"]}
    for name, mlp in (mlps | {"step.update": steps["update"]["mlp"]}).items():
        for i, layer in mlp["layers"].items():
            made += _linear(f"{name}.{2 * i}", layer)
    gates = steps["update"]["gates"]
    width = gates["kernel"].shape[1] // 4
    read, hidden = np.split(np.asarray(gates["kernel"]).T, 2, axis=1)
    forget = np.repeat([0.0, 1.0, 0.0, 0.0], width).astype(np.float32)
    made += [("step.cell.weight_ih", read), ("step.cell.weight_hh", hidden)]
    made += [("step.cell.bias_ih", gates["bias"]), ("step.cell.bias_hh", forget)]
    return made + _linear("readout", state["readout"])


def _linear(name, layer):
    return [(f"{name}.weight", np.asarray(layer["kernel"]).T), (f"{name}.bias", layer["bias"])]
