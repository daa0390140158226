"""hypergraph_conv: the formulae, both paths against float64, degenerate hypergraphs, transforms."""

import functools
import itertools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxgnn
from jaxgnn import Incidence, ops
from jaxgnn.ops._hypergraph import hypergraph_conv
from jaxgnn.ops._hypergraph.paths import MIXING_LIMITS
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_bit_equal, check_against_float64, check_numerical_gradients
from tests._programs import equations_of
from tests._settings import jax_settings
from tests.ops.hypergraph._hypergraph import HYPEREDGES, INCIDENCE, NODES, arrays, formula

pytestmark = pytest.mark.usefixtures("compiled_quickly")
# Which arguments there are, and the options; the formula has each without dropout and batch.
CONFIGURATIONS = {
    "no weights": ({"weight": False, "attention": False, "batch": (2, 3)}, {}),
    "weights": ({"attention": False}, {"normalization": "sym"}),
    "pyg": (
        {"attention": False, "batch": (2,), "residual": True},
        {"weighting": "pyg", "activation": "gelu"},
    ),
    "narrower": (
        {"attention": False, "batch": (2,), "residual": True, "width": 4},
        {"activation": "silu"},
    ),
    "attention over nodes": (
        {"batch": (3,), "residual": True},
        {"dropout": 0.5, "activation": "gelu"},
    ),
    "attention over hyperedges": (
        {"concat": False},
        {
            "attention_mode": "edge",
            "normalization": "sym",
            "concat": False,
            "negative_slope": 0.5,
            "dropout": 0.25,
        },
    ),
}
PATHS = {
    "xla": {"implementation": "xla"},
    "sums": {"path": "sums"},
    "mixing": {"path": "mixing"},
}


def _function(options, names, incidence=INCIDENCE):
    key = jax.random.key(7)
    return lambda *given: ops.hypergraph_conv(
        incidence=incidence, key=key, **dict(zip(names, given, strict=True)), **options
    )


@functools.cache  # one function for each, so that it is compiled once
def _reference(name):
    given, options = CONFIGURATIONS[name]
    return _function({**options, "implementation": "xla"}, tuple(arrays(**given)))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_reference_is_the_formula(name):
    given, options = CONFIGURATIONS[name]
    given, options = arrays(**{**given, "batch": ()}), {**options, "dropout": 0}
    apply = jax.jit(_function({**options, "implementation": "xla"}, tuple(given)))
    options.pop("dropout")
    expected = formula(INCIDENCE, **given, **options)
    np.testing.assert_allclose(apply(*given.values()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.costly(6)
@pytest.mark.parametrize("path", ["sums", "mixing"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_value_and_every_gradient_equal_float64(name, path):
    given, options = CONFIGURATIONS[name]
    given = arrays(**given)
    check_against_float64(
        _function({**options, "path": path}, tuple(given)),
        _reference(name),
        *given.values(),
        # The longest sums are over 30 incidences; degrees, scores and hyperedges each round too.
        reduction_length=30 * 8,
        gradient_length=30 * 48,
    )


@pytest.mark.parametrize("path, attention", [("sums", False), ("sums", True), ("mixing", True)])
def test_bfloat16_is_float32_up_to_its_rounding(path, attention):
    given = arrays("bfloat16", attention=attention)
    given["weight"] = given["weight"].astype(jnp.bfloat16)
    y = jax.jit(_function(PATHS[path], tuple(given)))(*given.values())
    assert y.dtype == jnp.bfloat16
    exact = formula(INCIDENCE, **{n: a.astype(jnp.float32) for n, a in given.items()})
    # On the way hyperedges, products and sums are rounded too.
    np.testing.assert_allclose(y.astype(jnp.float32), exact, atol=0.02 * float(abs(exact).max()))


WITHOUT_INCIDENCES = {
    "no hyperedge": (Incidence.from_hyperedges([], 3), [None, "edge"]),
    "empty hyperedges": (Incidence.from_hyperedges([[], []], 3), [None, "node"]),
    "all padding": (Incidence.from_hyperedges([[]], 3).padded(num_incidences=4), ["node"]),
}


@pytest.mark.parametrize("name", WITHOUT_INCIDENCES)
def test_nodes_without_incidences_get_the_bias_and_no_gradient(name):
    incidence, modes = WITHOUT_INCIDENCES[name]
    bias = jnp.array([0.5, -1.0])

    @jax.jit
    def every_path(x, weight):
        results = []
        for mode, how in itertools.product(modes, PATHS.values()):
            options = {"bias": bias, **how}
            if mode:
                options |= {"attention": jnp.ones((1, 4)), "attention_mode": mode}
                options |= {"attributes": jnp.ones((incidence.num_hyperedges, 2))}
            y, pull_back = jax.vjp(
                lambda x, w, o=options: ops.hypergraph_conv(x, incidence, w, **o), x, weight
            )
            results.append((y, *pull_back(y)))
        return results

    for y, dx, dweight in every_path(jnp.ones((3, 2)), jnp.ones(incidence.num_hyperedges)):
        np.testing.assert_array_equal(y, jnp.broadcast_to(bias, (3, 2)))
        assert not np.any(dx) and not np.any(dweight)


def test_one_weight_for_all_hyperedges_cancels_but_not_in_pyg():
    given = arrays(weight=False, attention=False)
    plain = ops.hypergraph_conv(incidence=INCIDENCE, **given)
    double = {**given, "weight": jnp.full(HYPEREDGES, 2.0)}
    np.testing.assert_allclose(ops.hypergraph_conv(incidence=INCIDENCE, **double), plain, rtol=1e-4)
    pyg = ops.hypergraph_conv(incidence=INCIDENCE, weighting="pyg", **double)
    bias = given["bias"]
    np.testing.assert_allclose(pyg - bias, (plain - bias) / 2, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("normalization", ["mean", "sym"])
def test_degrees_that_cancel_give_zero_and_finite_gradients(normalization):
    incidence = Incidence.from_hyperedges([[0, 1], [0]], 2)

    @jax.jit
    def every_path(x, w):
        results = []
        for how in PATHS.values():
            options = {"normalization": normalization, **how}
            y, pull_back = jax.vjp(
                lambda x, w, o=options: ops.hypergraph_conv(x, incidence, w, **o), x, w
            )
            results.append((y, *pull_back(jnp.ones_like(y))))
        return results

    for y, dx, dw in every_path(jnp.array([[1.0], [2.0]]), jnp.array([1.0, -1.0])):
        assert float(y[0, 0]) == 0
        assert np.isfinite(dx).all() and np.isfinite(dw).all()


@pytest.mark.parametrize("path", ["sums", "mixing"])
def test_a_batch_of_copies_equals_leading_axes_that_share_one(path):
    given = arrays(batch=(3,), attention=False)
    together = ops.hypergraph_conv(incidence=INCIDENCE, path=path, **given)
    copies = Incidence.batch([INCIDENCE] * 3)
    given["x"] = given["x"].reshape(3 * NODES, -1)
    given["weight"] = jnp.tile(given["weight"], 3)
    apart = ops.hypergraph_conv(incidence=copies, path=path, **given)
    np.testing.assert_allclose(apart, together.reshape(apart.shape), rtol=1e-4, atol=1e-5)


class TestChoiceOfPath:
    def test_goes_by_the_hypergraph_alone(self, monkeypatch):
        taken = []
        for name, path in dict(hypergraph_conv._PATHS).items():
            spy = functools.partial(lambda n, p, *a: taken.append(n) or p(*a), name, path)
            monkeypatch.setitem(hypergraph_conv._PATHS, name, spy)
        most = MIXING_LIMITS.nodes
        for nodes in (1, most, most + 1):
            pairs = Incidence.from_hyperedges([[0, nodes - 1]], nodes)
            for batch in ((), (5,)):
                ops.hypergraph_conv(jnp.ones((*batch, nodes, 2)), pairs)
        assert taken == ["mixing"] * 4 + ["sums"] * 2

    def test_vmap_over_tokens_multiplies_by_one_matrix(self):
        weight = arrays()["weight"]

        def apply(x, weight):
            return jax.vmap(lambda x: ops.hypergraph_conv(x, INCIDENCE, weight))(x)

        program = jax.make_jaxpr(apply)(jnp.ones((50, NODES, 3)), weight).jaxpr
        shapes = [v.aval.shape for e in equations_of(program) for v in e.outvars]
        assert (NODES, NODES) in shapes
        batched = {shape for shape in shapes if 50 in shape}
        # All of x, one node of it, or one number a token; never a matrix for each.
        axes = {tuple(sorted(n for n in shape if n not in (1, 50))) for shape in batched}
        assert axes <= {(3, NODES), (3,), ()}, batched

    @pytest.mark.parametrize("through", ["leading axes", "vmap"])
    def test_many_tokens_make_no_gradient_for_each(self, through):
        if through == "vmap" and dispatch.current_platform() != "cpu":
            pytest.skip("reason: XLA for GPUs does not sum within a product, as the op's text says")
        tokens, width = 1024, 256  # so wide that some arrays as large as x are little

        def loss(x, kernel):
            convolve = functools.partial(ops.hypergraph_conv, incidence=INCIDENCE, kernel=kernel)
            return jnp.sum((jax.vmap(convolve) if through == "vmap" else convolve)(x) ** 2)

        with jax_settings({"jax_disable_most_optimizations": False}):
            x, kernel = jnp.ones((tokens, NODES, width)), jnp.ones((width, width))
            program = jax.jit(jax.grad(loss, argnums=1)).lower(x, kernel).compile()
        for_each = tokens * width * width * 4
        assert program.memory_analysis().temp_size_in_bytes < for_each

    def test_names_are_those_of_the_kernels_of_the_sums(self):
        given = arrays(attention=False)
        named = ops.hypergraph_conv(incidence=INCIDENCE, implementation="ffi", **given)
        sums = ops.hypergraph_conv(incidence=INCIDENCE, path="sums", **given)
        assert_bit_equal(named, sums)
        on_cpu = dispatch.current_platform() == "cpu"  # a GPU has kernels for up to 8 nodes
        of_pallas = "needs platform cuda" if on_cpu else "needs "
        for name, reason in {"ffi": "needs one of", "pallas": of_pallas}.items():
            with pytest.raises(NotImplementedError, match=rf"conv.mix\[{name}\]: {reason}"):
                ops.hypergraph_conv(
                    incidence=INCIDENCE, path="mixing", implementation=name, **given
                )


@pytest.mark.again("tests/ops/test_verify.py")
def test_verify_compares_the_mixing_with_the_reference(monkeypatch):
    given = arrays(attention=False)
    with jaxgnn.verify("strict"):
        ops.hypergraph_conv(incidence=INCIDENCE, **given)
    original = hypergraph_conv.mixing_matrix
    monkeypatch.setattr(hypergraph_conv, "mixing_matrix", lambda *a: 1.01 * original(*a))
    with jaxgnn.verify("strict"), pytest.raises(jaxgnn.ops.VerificationError, match="mixing"):
        ops.hypergraph_conv(incidence=INCIDENCE, **given)


class TestTransformations:
    given = arrays(batch=(4,), attention=False)
    shared = tuple(v for name, v in given.items() if name != "x")

    def loss(self, x, shared, **how):
        kernel, bias, weight = shared
        options = {"kernel": kernel, "bias": bias, **how}
        return jnp.sum(ops.hypergraph_conv(x, INCIDENCE, weight, **options) ** 2)

    def gradients(self, x, shared, **how):
        return jax.grad(functools.partial(self.loss, **how), argnums=(0, 1))(x, shared)

    @functools.cached_property
    def expected(self):
        apply = functools.partial(self.gradients, implementation="xla")
        return jax.jit(apply)(self.given["x"], self.shared)

    @pytest.mark.parametrize("path", ["sums", "mixing"])
    def test_vmap_of_grad_sums_nothing_over_the_batch(self, path):
        apply = functools.partial(self.gradients, path=path)
        dx, shared = jax.jit(jax.vmap(apply, in_axes=(0, None)))(self.given["x"], self.shared)
        summed = jax.tree.map(lambda g: g.sum(axis=0), shared)
        _assert_near((dx, summed), self.expected)

    def test_shard_map_over_tokens_sums_gradients_of_what_is_shared(self):
        mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
        tokens, nothing = PartitionSpec("d"), PartitionSpec()
        sharded = jax.shard_map(
            self.gradients,
            mesh=mesh,
            in_specs=(tokens, nothing),
            out_specs=(tokens, nothing),
        )
        _assert_near(jax.jit(sharded)(self.given["x"], self.shared), self.expected)

    def test_scan_with_checkpoint_equals_layer_after_layer(self):
        x = jnp.ones((4, NODES, 3))
        weights = jnp.stack([self.given["weight"], 2 - self.given["weight"]])

        def layer(x, weight, **how):
            return jnp.tanh(x + ops.hypergraph_conv(x * 2, INCIDENCE, weight, **how))

        def scanned(weights):
            step = jax.checkpoint(layer)
            return jnp.sum(jax.lax.scan(lambda x, w: (step(x, w), None), x, weights)[0] ** 2)

        def unrolled(weights):
            h = layer(layer(x, weights[0], implementation="xla"), weights[1], implementation="xla")
            return jnp.sum(h**2)

        _assert_near(jax.jit(jax.grad(scanned))(weights), jax.jit(jax.grad(unrolled))(weights))

    def test_the_gradient_can_be_differentiated(self):
        def slope(x, **how):
            return jnp.sum(self.gradients(x, self.shared, **how)[0] ** 2)

        curvature, expected = (
            jax.jit(jax.grad(functools.partial(slope, **how)))(self.given["x"])
            for how in (PATHS["mixing"], PATHS["xla"])
        )
        _assert_near(curvature, expected)

    def test_hypergraphs_of_one_shape_can_be_mapped_over(self):
        hypergraphs = [
            Incidence.from_hyperedges(e, 4).padded(num_incidences=8)
            for e in ([[0, 1, 2], [3]], [[1, 1], [0, 2, 3]])
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *hypergraphs)
        x = self.given["x"][:2, :4]
        for path in ("sums", "mixing"):
            apply = functools.partial(ops.hypergraph_conv, path=path)
            together = jax.jit(jax.vmap(apply))(x, stacked)
            for i, hypergraph in enumerate(hypergraphs):
                _assert_near(together[i], apply(x[i], hypergraph))

    def test_deterministic_mode_repeats_to_the_bit(self):
        apply = jax.jit(self.gradients)
        with jaxgnn.deterministic():
            first, second = (apply(self.given["x"], self.shared) for _ in range(2))
        assert_bit_equal(first, second)


def test_finite_differences():
    given = arrays()
    check_numerical_gradients(jax.jit(_function({}, tuple(given))), *given.values())


def test_dropout_leaves_out_as_many_as_it_should_and_nothing_without_a_key():
    incidence = Incidence.from_hyperedges([list(range(100))], 100)
    options = {"attention": jnp.zeros((1, 2)), "attributes": jnp.zeros((1, 1)), "dropout": 0.25}
    apply = jax.jit(functools.partial(ops.hypergraph_conv, **options))
    x = jnp.ones((50, 100, 1))
    # Attention of 1/100 in both directions, and the size of the hyperedge.
    kept = 1e4 * apply(x, incidence, key=jax.random.key(0))
    # A node that is left out gets nothing from its only hyperedge.
    assert abs(float(jnp.mean(kept == 0)) - 0.25) < 0.02
    assert abs(float(jnp.mean(kept)) - 1) < 0.05
    np.testing.assert_allclose(1e4 * apply(x, incidence), 1, rtol=1e-5)


def _assert_near(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * max(1.0, float(jnp.abs(e).max())))
