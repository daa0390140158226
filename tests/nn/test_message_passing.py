"""EdgeMLP and MessagePassing: formulae, steps, recomputation and what it keeps."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, ops
from jaxgnn.nn.messages import message_passing as _message_passing
from jaxgnn.testing import random_array
from tests.ops.edge_mlp._edges import QUICK, RING

NODES, DIM, WIDTH = RING.num_rows, 6, 5
H = random_array((NODES, DIM), "float32", seed=0)
INPUTS = random_array((NODES, 3), "float32", seed=1)
FEATURES = random_array((RING.num_edges, 2), "float32", seed=2)

UPDATES = {
    "mlp": lambda rngs: nn.MLPUpdate(DIM, WIDTH, [7], input_features=3, rngs=rngs),
    "mlp, residual": lambda rngs: nn.MLPUpdate(
        DIM, WIDTH, input_features=3, residual=True, rngs=rngs
    ),
    "gru": lambda rngs: nn.GRUUpdate(DIM, WIDTH, input_features=3, rngs=rngs),
    "lstm": lambda rngs: nn.LSTMUpdate(DIM, WIDTH, [7, 4], input_features=3, rngs=rngs),
}
_jit = functools.partial(jax.jit, compiler_options=QUICK)


def _layer(update="lstm", num_steps=3, edge_dropout=0.0, **options):
    rngs = nnx.Rngs(0)
    messages = nn.EdgeMLP(DIM, [8, WIDTH], edge_features=2, edge_dropout=edge_dropout, rngs=rngs)
    return nn.MessagePassing(messages, UPDATES[update](rngs), num_steps=num_steps, **options)


def _run(layer, h=H, **options):
    return layer(RING, h, FEATURES, inputs=INPUTS, **options)


def test_an_edge_mlp_is_the_op_with_the_parameters_of_linear_layers():
    graph = CSRGraph.from_edges([0, 1, 4], [1, 0, 0], 2, num_senders=5)
    layer = nn.EdgeMLP((4, 3), [8, 6], reduce="mean", activation="silu", rngs=nnx.Rngs(0))
    assert [set(nnx.to_pure_dict(nnx.state(linear))) for linear in layer.layers] == 2 * [
        {"kernel", "bias"}
    ]
    ends = jnp.ones((2, 4)), random_array((5, 3), "float32", seed=1)
    params = ops.EdgeMLPParams(
        [linear.kernel[...] for linear in layer.layers],
        [linear.bias[...] for linear in layer.layers],
    )
    expected = ops.edge_mlp_aggregate(graph, ends, params, reduce="mean", activation="silu")
    np.testing.assert_array_equal(layer(graph, ends), expected)


def test_computes_in_the_dtype_that_it_is_given_and_the_state_keeps_its_own():
    layer = nn.EdgeMLP(DIM, [8, WIDTH], dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert jax.eval_shape(layer, RING, H).dtype == jnp.bfloat16
    for make in (nn.MLPUpdate, nn.GRUUpdate, nn.LSTMUpdate):
        update = make(DIM, WIDTH, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        for dtype in (jnp.float32, jnp.bfloat16):
            start = jax.eval_shape(update.start, H.astype(dtype))
            after = jax.eval_shape(update, start, jnp.zeros((NODES, WIDTH), jnp.bfloat16))
            assert jax.tree.leaves(after) == jax.tree.leaves(start)


def test_an_lstm_begins_with_zeros_and_has_the_formula_of_its_docstring():
    update = nn.LSTMUpdate(DIM, WIDTH, rngs=nnx.Rngs(0))
    kernel, bias = update.gates.kernel[...], update.gates.bias[...]
    hidden, cell, state = jnp.zeros((NODES, DIM)), jnp.zeros((NODES, DIM)), update.start(H)
    np.testing.assert_array_equal(update.features(state), H)
    for seed in (3, 4):
        messages = random_array((NODES, WIDTH), "float32", seed)
        z = jnp.concatenate([messages, hidden], axis=-1) @ kernel + bias
        i, f, g, o = jnp.split(z, 4, axis=-1)
        cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        state = update(state, messages)
        np.testing.assert_allclose(update.features(state), hidden, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UPDATES)
def test_steps_are_messages_and_updates_in_turn(name):
    layer, readout = _layer(name), nnx.Linear(DIM, 2, rngs=nnx.Rngs(1))

    @_jit
    def both():
        scanned = _run(layer, num_steps=4, readout=readout)
        state, outputs = layer.update.start(H), []
        for _ in range(4):
            arrived = layer.messages(RING, layer.update.features(state), FEATURES)
            state = layer.update(state, arrived, INPUTS)
            outputs.append(readout(layer.update.features(state)))
        return scanned, (layer.update.features(state), jnp.stack(outputs))

    for actual, expected in zip(*both(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_recomputing_changes_neither_outputs_nor_gradients_nor_random_numbers(monkeypatch):
    # By itself, segments of nine steps of segments of three, and what is left of both.
    monkeypatch.setattr(_message_passing, "_MOST_STATES", 9)
    settings, steps = (None, 2, "auto"), 17

    @_jit
    def values_and_gradients():
        results = []
        for recompute_every in settings:
            layer = _layer(num_steps=steps, edge_dropout=0.5, recompute_every=recompute_every)
            graphdef, state = nnx.split(layer)

            def loss(state, graphdef=graphdef):
                layer = nnx.merge(graphdef, state)
                h, means = _run(layer, readout=lambda h: h.mean(), rngs=nnx.Rngs(dropout=3))
                return jnp.sum(h**2) + jnp.sum(means * jnp.arange(float(steps))), means

            results.append(jax.value_and_grad(loss, has_aux=True)(state))
        return results

    expected, *others = values_and_gradients()
    for path, gradient in nnx.to_flat_state(expected[1]):
        assert np.abs(gradient[...]).max() > 0, path
    for setting, result in zip(settings[1:], others, strict=True):
        for a, e in zip(*map(jax.tree.leaves, (result, expected)), strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5, err_msg=setting)


def _memory(steps, recompute_every):
    """Bytes for temporaries of a gradient, of a batch in which a node's state is what counts."""
    layer = _layer("gru", num_steps=steps, recompute_every=recompute_every)
    graphdef, state = nnx.split(layer)
    h = jnp.zeros((64, NODES, DIM))
    inputs = jnp.broadcast_to(INPUTS, (64, *INPUTS.shape))

    def loss(state, h):
        layer = nnx.merge(graphdef, state)
        return jnp.sum(layer(RING, h, FEATURES, inputs=inputs) ** 2)

    compiled = jax.jit(jax.grad(loss), compiler_options=QUICK).lower(state, h).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.again("test_recomputing_changes_neither_outputs_nor_gradients_nor_random_numbers")
def test_recomputing_keeps_the_state_of_each_step_or_of_24_however_many_the_steps():
    state, few = 64 * NODES * DIM * 4, _memory(4, 1)
    assert (_memory(20, 1) - few) / 16 < 1.1 * state
    for steps in (24, 144, 512):  # in one, two and three levels
        assert abs(_memory(steps, "auto") - few - 20 * state) < state


def test_segments_of_segments_are_as_deep_as_24_states_need_and_no_deeper():
    for steps, levels in ((24, 1), (25, 2), (144, 2), (145, 3), (512, 3), (1296, 4), (6561, 8)):
        spans = [steps, *_message_passing._spans(steps, "auto"), 1]
        assert len(spans) == levels + 1
        assert sum(-(-outer // inner) for outer, inner in itertools.pairwise(spans)) <= 24
    assert [_message_passing._spans(5, every) for every in (1, 2, 5)] == [[], [2], []]


def test_a_warm_up_is_more_steps_that_no_gradient_passes():
    layer = _layer(num_steps=2)
    graphdef, state = nnx.split(layer)

    def value(state, h, steps):
        return jnp.sum(_run(nnx.merge(graphdef, state), h, warm_up=steps) ** 2)

    gradients = _jit(jax.value_and_grad(value, argnums=(0, 1)))
    for steps in (0, 3):
        total, (by_state, by_h) = gradients(state, H, steps)
        expected = _jit(lambda n=steps: jnp.sum(_run(layer, num_steps=n + 2) ** 2))()
        np.testing.assert_allclose(total, expected, rtol=1e-5)
        # The initial features have a gradient where no step stands in front.
        assert bool(jnp.any(by_h != 0)) == (steps == 0)
        assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(by_state))
    # That of the parameters is what the last two steps contribute: those of a layer whose first
    # three have parameters of their own.
    others = jax.tree.map(jnp.copy, state)

    def apart(state):
        layer, first = nnx.merge(graphdef, state), nnx.merge(graphdef, others)
        lstm = first.update.start(H)
        for module, count in ((first, 3), (layer, 2)):
            for _ in range(count):
                arrived = module.messages(RING, module.update.features(lstm), FEATURES)
                lstm = module.update(lstm, arrived, INPUTS)
        return jnp.sum(layer.update.features(lstm) ** 2)

    expected = _jit(jax.grad(apart))(state)
    for got, wanted in zip(jax.tree.leaves(by_state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_vmap_equals_leading_axes_and_a_layer_may_be_closed_over():
    layer = _layer("gru", recompute_every=1)
    batch = jnp.stack([H, 2 * H])
    inputs = jnp.stack([INPUTS, -INPUTS])

    def loss(h, inputs):
        return jnp.sum(layer(RING, h, FEATURES, inputs=inputs) ** 2)

    @_jit
    def both():
        mapped = jax.vmap(jax.grad(loss))(batch, inputs)
        return mapped, jax.grad(loss)(batch, inputs)

    mapped, expected = both()
    np.testing.assert_allclose(mapped, expected, rtol=1e-4, atol=1e-5)


def test_an_edge_is_dropped_as_a_whole_at_a_step_of_its_own_and_only_in_training():
    of_sender = nn.EdgeMLP(1, [2], edge_dropout=0.5, use_bias=False, rngs=nnx.Rngs(0))
    of_sender.layers[0].kernel[...] = jnp.array([[0.0, 0.0], [1.0, -1.0]])
    graph = CSRGraph.from_edges(np.arange(1, 401), np.zeros(400, int), 401)
    h = 1 + random_array((3, 401, 1), "float32", seed=5, scale=0.1)
    layer = nn.MessagePassing(of_sender, _Show(), num_steps=3)

    @_jit
    def run():
        readout = lambda h: h[:, 0, 0]  # noqa: E731
        rngs = nnx.Rngs(dropout=0)
        training = of_sender(graph, h, rngs=rngs), layer(graph, h, readout=readout, rngs=rngs)[1]
        return *training, of_sender(graph, h)

    once, steps, evaluated = map(np.asarray, run())
    np.testing.assert_allclose(evaluated[:, 0, 0], h[:, 1:].sum(axis=(1, 2)), rtol=1e-5)
    np.testing.assert_array_equal(once[..., 1], -once[..., 0])
    assert np.unique(steps).size == 9 and (np.abs(steps - 400) < 100).all()


class _Show(nn.NodeUpdate):
    """Shows what arrived at the first node, to which nothing is sent by itself."""

    def start(self, h):
        return h

    def features(self, state):
        return state

    def __call__(self, state, messages, inputs=None, *, rngs=None):
        return state.at[:, 0].set(messages[:, 0, :1])


class _Normalized(nn.MLPUpdate):
    """An update that keeps statistics and drops features."""

    def __init__(self, *args, rngs, **options):
        super().__init__(*args, rngs=rngs, **options)
        self.norm = nnx.BatchNorm(DIM, use_running_average=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, state, messages, inputs=None, *, rngs=None):
        dropped = self.dropout(self.norm(state), rngs=rngs)
        return super().__call__(dropped, messages, inputs, rngs=rngs)


@pytest.mark.parametrize("recompute_every", (None, 2))
def test_statistics_that_an_update_keeps_are_used_and_their_change_is_dropped(recompute_every):
    update = _Normalized(DIM, WIDTH, rngs=nnx.Rngs(0))
    update.dropout.deterministic = True
    messages = nn.EdgeMLP(DIM, [WIDTH], rngs=nnx.Rngs(1))
    layer = nn.MessagePassing(messages, update, num_steps=3, recompute_every=recompute_every)
    before = jax.tree.map(jnp.copy, nnx.state(layer, nnx.BatchStat))
    by_layer, gradients = nnx.value_and_grad(lambda layer: jnp.sum(layer(RING, H) ** 2))(layer)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(layer, nnx.BatchStat), before)
    assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(gradients["update"]))
    h = H
    for _ in range(3):
        h = update(h, messages(RING, h))
    np.testing.assert_allclose(by_layer, jnp.sum(h**2), rtol=1e-5)


def test_every_step_drops_other_features_by_the_rngs_of_the_call():
    update = _Normalized(DIM, WIDTH, rngs=nnx.Rngs(0))
    layer = nn.MessagePassing(nn.EdgeMLP(DIM, [WIDTH], rngs=nnx.Rngs(1)), update, num_steps=2)
    with pytest.raises(ValueError, match=r"modules must be .* rngs of the call, got a random"):
        layer(RING, H)
    first, second = (layer(RING, H, rngs=nnx.Rngs(dropout=seed)) for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.costly
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_runs_in_shard_map_and_equals_the_whole_batch(name, four_devices):
    layer, batch = _layer(name), jnp.stack([H, 2 * H, -H, H + 1])
    mesh, spec = jax.make_mesh((4,), ("batch",), devices=four_devices), jax.P("batch")

    def run(h):
        return layer(
            RING, h, FEATURES, inputs=jnp.broadcast_to(INPUTS, (*h.shape[:1], *INPUTS.shape))
        )

    sharded = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)
    h = jax.device_put(batch, jax.NamedSharding(mesh, spec))
    np.testing.assert_allclose(_jit(sharded)(h), _jit(run)(batch), rtol=1e-5, atol=1e-6)


BAD = {
    "width": (lambda: nn.EdgeMLP(4, [0], rngs=nnx.Rngs(0)), "EdgeMLP: the number of features"),
    "no layer": (lambda: nn.EdgeMLP(4, [], rngs=nnx.Rngs(0)), "EdgeMLP: widths must be of at"),
    "ends": (lambda: nn.EdgeMLP((4, 4, 4), [3], rngs=nnx.Rngs(0)), "EdgeMLP: features .* a pair"),
    "edge features": (
        lambda: nn.EdgeMLP(4, [3], edge_features=-1, rngs=nnx.Rngs(0)),
        "EdgeMLP: edge_features must be at least 0, got -1",
    ),
    "dropout": (
        lambda: nn.EdgeMLP(4, [3], edge_dropout=1.0, rngs=nnx.Rngs(0)),
        r"EdgeMLP: edge_dropout must be in \[0, 1\), got 1.0",
    ),
    "dropout of a maximum": (
        lambda: nn.EdgeMLP(4, [3], edge_dropout=0.5, reduce="max", rngs=nnx.Rngs(0)),
        "EdgeMLP: edge_dropout must be 0 for reduce='max'",
    ),
    "update": (lambda: nn.LSTMUpdate(4, 0, rngs=nnx.Rngs(0)), "LSTMUpdate: the number of features"),
    "steps": (lambda: _layer(num_steps=0), "MessagePassing: num_steps must be an int of at least"),
    "steps of a call": (lambda: _run(_layer(), num_steps=2.5), "num_steps must be .*, got 2.5"),
    "recomputation": (lambda: _layer(recompute_every=0), "recompute_every must be an int"),
    "features": (
        lambda: _run(_layer("gru"), H[:, :4]),
        r"edge_mlp_aggregate: kernels\[0\] must be .*receiver 4 ; sender 4 ; edge features 2\]",
    ),
    "edge features left out": (
        lambda: nn.EdgeMLP(DIM, [3], edge_features=2, rngs=nnx.Rngs(0))(RING, H),
        "EdgeMLP: edge_features must be 2 wide, as the layer was made, got 0",
    ),
    "width of messages": (
        lambda: nn.GRUUpdate(4, 4, rngs=nnx.Rngs(0))(H[:, :4], H[:, :5]),
        "GRUUpdate: messages must be 4 wide, which is message_features, got 5",
    ),
    "width of messages, by an MLP": (
        lambda: nn.MLPUpdate(4, 4, rngs=nnx.Rngs(0))(H[:, :4], H[:, :5]),
        "MLPUpdate: messages must be 4 wide, which is message_features, got 5",
    ),
    "nodes": (lambda: _run(_layer("gru"), H[:5]), r"edge_mlp_aggregate: h must be .*\(5, 6\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_and_arguments_are_named(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
