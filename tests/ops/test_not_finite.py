"""What is not finite in one sample leaves every bit of the others, of values and of gradients.

Each case has two samples that share nothing, and nodes that no edge asks. A number of the first or
of such a node is made NaN or infinite, and so is, in another run, one of the cotangent. The rows of
the second sample, and of all gradients that it has to itself, must equal those without that to the
bit; and what a sum contains must not be finite if the reference's is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, Incidence, nn, ops
from jaxgnn.models import HypergraphGNN, MaxKGNN
from jaxgnn.models._hypergraph_gnn import HypergraphKind
from jaxgnn.testing import random_array
from tests.ops.mhc import _mhc

pytestmark = pytest.mark.usefixtures("compiled_quickly")

NUMBERS = {"NaN": np.nan, "inf": np.inf}

# Nodes 0 to 3 are the first sample, 4 to 7 the second; 8 and 9 have no edge.
NODES, FIRST, ALONE = 10, slice(0, 4), 9
_SENDERS = [1, 2, 0, 1, 3, 0, 5, 6, 4, 7, 6, 4]
_RECEIVERS = [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7]
EDGES, FIRST_EDGES = len(_SENDERS), slice(0, 6)
GRAPH = CSRGraph.from_edges(_SENDERS, _RECEIVERS, NODES)
HYPERGRAPH = Incidence.from_hyperedges([[0, 1, 2], [2, 3], [4, 5], [5, 6, 7], [4, 7]], NODES)
FIRST_HYPEREDGES = slice(0, 2)


class Case(NamedTuple):
    """An op on both samples.

    Attributes:
      run: of the arrays.
      arrays: what it takes.
      samples: of the arrays that belong to samples, which rows are of the first.
      result: which rows of the result are.
      alone: of arrays that have them, a row of nodes without edges, and of the result.
      same_bits: whether gradients have to be equal to the bit, or up to rounding.
    """

    run: Callable[..., Any]
    arrays: dict[str, jax.Array]
    samples: dict[str, slice]
    result: slice
    alone: Mapping[str, int] = MappingProxyType({})
    same_bits: bool = True


def _array(*shape: int, seed: int = 0) -> jax.Array:
    return random_array(shape, "float32", seed=seed)


def _of_graph(run, *names: str, width: int = 8, result: slice = FIRST, **others) -> Case:
    """``names`` are of nodes, others of edges if they have as many rows, or are parameters."""
    samples = dict.fromkeys(names, FIRST)
    samples |= {n: FIRST_EDGES for n, a in others.items() if a.shape[0] == EDGES}
    arrays = {n: _array(NODES, width, seed=i) for i, n in enumerate(names)} | others
    return Case(run, arrays, samples, result, dict.fromkeys(names, ALONE))


def _hypergraph(attention: str | None, **options) -> Case:
    arrays = {"x": _array(NODES, 8), "weight": abs(_array(5, seed=1)) + 0.5}
    arrays |= {"kernel": _array(8, 8, seed=2), "bias": _array(8, seed=3)}
    samples = {"x": FIRST, "weight": FIRST_HYPEREDGES}
    if attention is not None:
        arrays |= {"attributes": _array(5, 8, seed=4), "attention": _array(2, 8, seed=5)}
        samples["attributes"] = FIRST_HYPEREDGES
        options["attention_mode"] = attention
    run = functools.partial(ops.hypergraph_conv, incidence=HYPERGRAPH, **options)
    # Matrices of attention are made in another way if something is not finite.
    same_bits = attention is None or options.get("path") != "mixing"
    return Case(run, arrays, samples, FIRST, {"x": ALONE}, same_bits)


def _few_nodes(nodes: int, **options) -> Case:
    """Tokens of hypergraphs of two parts, elementwise or by products."""
    half = nodes // 2
    parts = Incidence.from_hyperedges([range(half), [0, 1], range(half, nodes)], nodes)

    def run(x, weight, **given):
        y = ops.hypergraph_conv(x.swapaxes(0, 1), parts, weight, **given, **options)
        return y.swapaxes(0, 1)

    arrays = {"x": _array(nodes, 3, 8), "weight": jnp.array([1.0, 0.5, 2.0])}
    arrays |= {"kernel": _array(8, 8, seed=2), "bias": _array(8, seed=3)}
    return Case(run, arrays, {"x": slice(0, half), "weight": slice(0, 2)}, slice(0, half))


def _edge_mlp(layers: int, width: int, **options) -> Case:
    arrays = {"features": _array(EDGES, 2, seed=3), "weights": abs(_array(EDGES, seed=4)) + 0.5}
    widths = [2 * width + 2, *[width] * layers]
    for i in range(layers):
        arrays |= {f"kernel{i}": _array(widths[i], widths[i + 1], seed=5 + i)}
        arrays |= {f"bias{i}": _array(widths[i + 1], seed=9 + i)}

    def run(h, features, weights, **given):
        parts = ([given[f"{what}{i}"] for i in range(layers)] for what in ("kernel", "bias"))
        params = ops.EdgeMLPParams(*parts)
        return ops.edge_mlp_aggregate(GRAPH, h, params, features, weights=weights, **options)

    return _of_graph(run, "h", width=width, **arrays)


def _tokens(run, **shapes: tuple[int, ...]) -> Case:
    """Rows are tokens, of which the first two are a sample; a leading "_" is of parameters."""
    arrays = {n.strip("_"): _array(*shape, seed=i) for i, (n, shape) in enumerate(shapes.items())}
    samples = {n: slice(0, 2) for n in shapes if not n.startswith("_")}
    return Case(run, arrays, samples, slice(0, 2))


def _mhc_case(run, *names: str, n: int = 4, dim: int, dtype: str) -> Case:
    phi, alpha, bias, gamma = _mhc.parameters(n, dim)
    f, h_post, h_res = _mhc.outputs((5,), n, dim, dtype)
    known = {"x": _mhc.streams((5,), n, dim, dtype), "f": f, "h_post": h_post, "h_res": h_res}
    known |= {"phi": phi, "alpha": alpha, "bias": bias, "gamma": gamma}
    samples = {n: slice(0, 2) for n in names if n in ("x", "f", "h_post", "h_res")}
    return Case(run, {n: known[n] for n in names}, samples, slice(0, 2))


_PRE = ("x", "phi", "alpha", "bias", "gamma")


def _head(x, phi, alpha, bias, gamma, **how):
    return ops.mhc_head(x, phi[:4], alpha[0], bias[:4], gamma, **how)


def _layer(**given):
    how = {n: given.pop(n) for n in ("implementation",) if n in given}
    return ops.mhc_layer(jnp.tanh, *(given[n] for n in _PRE), **how)


def _op_cases(width: int = 8) -> dict[str, Case]:
    """Those with an argument ``implementation``, of rows of this width, with some of their own."""
    of_graph = functools.partial(_of_graph, width=width)
    # Kernels of projections need wide streams of bfloat16.
    dtype = "bfloat16" if width >= 64 else "float32"
    mhc_case = functools.partial(_mhc_case, dim=2 * width, dtype=dtype)
    made = {
        "spmm": of_graph(
            lambda x, weights, **how: ops.spmm(GRAPH.with_weights(weights), x, **how),
            "x",
            weights=_array(EDGES, seed=9),
        ),
        "spmm of a mean": of_graph(
            lambda x, **how: ops.spmm(GRAPH.normalized("mean"), x, **how), "x"
        ),
        "maxk_spmm": of_graph(
            lambda x, **how: ops.maxk_spmm(GRAPH, ops.maxk(x, 3, **how), **how), "x"
        ),
        "maxk": of_graph(lambda x, **how: ops.maxk(x, 3, **how).values, "x"),
        "sddmm": of_graph(
            lambda a, b, **how: ops.sddmm(GRAPH, a, b, **how), "a", "b", result=FIRST_EDGES
        ),
        "tensor_product_sum": of_graph(
            lambda x, harmonics, weights, **how: ops.tensor_product_sum(
                GRAPH,
                x,
                harmonics,
                weights,
                irreps_in=f"{width}x0e",
                irreps_sh="0e+1o",
                irreps_out=f"{width}x0e+{width}x1o",
                **how,
            ),
            "x",
            harmonics=_array(EDGES, 4, seed=9),
            weights=_array(EDGES, 2 * width, seed=10),
        ),
        "segment_softmax": of_graph(
            lambda logits, **how: ops.segment_softmax(GRAPH, logits, **how),
            logits=_array(EDGES, 2),
            result=FIRST_EDGES,
        ),
        "fused_linear": _tokens(
            lambda x, kernel, bias, **how: ops.fused_linear(
                x, kernel, bias, activation="gelu", **how
            ),
            x=(5, width),
            _kernel=(width, width),
            _bias=(width,),
        ),
        "fused_mlp": _tokens(
            lambda x, a, b, c, d, **how: ops.fused_mlp(x, [a, b], [c, d], activation="silu", **how),
            x=(5, width),
            _a=(width, width),
            _b=(width, width),
            _c=(width,),
            _d=(width,),
        ),
        "sinkhorn": _tokens(ops.sinkhorn, logits=(5, 4, 4)),
        "permutation_mixture": _tokens(
            lambda logits, **how: ops.permutation_mixture(logits, **how), logits=(5, 6)
        ),
        "mhc_pre": mhc_case(
            lambda **given: jnp.concatenate(
                [a.reshape(5, -1) for a in ops.mhc_pre(**given)], axis=1
            ),
            *_PRE,
        ),
        "mhc_post": mhc_case(ops.mhc_post, "x", "f", "h_post", "h_res"),
        "mhc_post_pre": mhc_case(
            lambda **given: jnp.concatenate(
                [a.reshape(5, -1) for a in ops.mhc_post_pre(**given)], axis=1
            ),
            "x",
            "f",
            "h_post",
            "h_res",
            "phi",
            "alpha",
            "bias",
            "gamma",
        ),
        "mhc_layer": mhc_case(_layer, *_PRE),
        "mhc_head": mhc_case(_head, *_PRE),
        "mhc_expand": _tokens(lambda x, **how: ops.mhc_expand(x, 3, **how), x=(5, width)),
    }
    for reduce in ("sum", "mean", "max"):
        for layers in (1, 2, 3):
            made[f"edge_mlp_aggregate, {reduce}, {layers}"] = _edge_mlp(
                layers, width, reduce=reduce
            )
    return made


def _path_cases() -> dict[str, Case]:
    """Those that name a path."""
    made = {}
    for path in ("sums", "mixing", "xla"):
        how = {"implementation": "xla"} if path == "xla" else {"path": path}
        for attention in (None, "node", "edge"):
            for normalization in ("mean", "sym"):
                name = f"hypergraph_conv {path}, attention {attention}, {normalization}"
                made[name] = _hypergraph(
                    attention, normalization=normalization, activation="silu", **how
                )
        made[f"hypergraph_conv {path}, pyg"] = _hypergraph(None, weighting="pyg", **how)
        for nodes in (8, 20):
            made[f"hypergraph_conv {path}, {nodes} nodes"] = _few_nodes(
                nodes, activation="relu", **how
            )
    return made


def _model_cases() -> dict[str, Case]:
    """Layers and networks, of one graph that has padding, or of tokens."""

    def of(module, apply, shape, first, alone) -> Case:
        graphdef, state = nnx.split(module)
        run = lambda x: apply(nnx.merge(graphdef, state), x)  # noqa: E731
        return Case(run, {"x": _array(*shape)}, {"x": first}, first, alone)

    rngs = nnx.Rngs(0)
    couplers = {
        "ExpertCoupler": nn.ExpertCoupler(8, 4, rngs=rngs),
        "PairwiseExpertCoupler": nn.PairwiseExpertCoupler(8, 4, rngs=rngs),
    }
    made = {
        name: of(coupler, lambda m, x: m(x), (5, 4, 8), slice(0, 2), {})
        for name, coupler in couplers.items()
    }
    for kind in ("sage", "gcn", "gin"):
        for activation in ("maxk", "relu"):
            model = MaxKGNN(
                8, 8, 3, num_layers=2, kind=kind, activation=activation, k=4, dropout=0.0, rngs=rngs
            )
            made[f"MaxKGNN {kind} {activation}"] = of(
                model, lambda m, x: m(GRAPH, x), (NODES, 8), FIRST, {"x": ALONE}
            )
    for kind in get_args(HypergraphKind):
        model = HypergraphGNN(8, 8, 3, kind=kind, num_layers=2, dropout=0.0, rngs=rngs)
        made[f"HypergraphGNN {kind}"] = of(
            model, lambda m, x: m(HYPERGRAPH, x), (NODES, 8), FIRST, {"x": ALONE}
        )
    return made


CASES = {**_op_cases(), **_path_cases(), **_model_cases()}


def _pulled_back(case: Case, arrays, dy, **how):
    names = list(arrays)
    run = lambda *given: case.run(**dict(zip(names, given, strict=True)), **how)  # noqa: E731
    y, pull_back = jax.vjp(run, *arrays.values())
    return y, dict(zip(names, pull_back(dy), strict=True))


def _bad_runs(case: Case, dy, number):
    """What is bad, arrays, cotangent, and what is not compared: rows of gradients, of the result.

    These are the first sample's, or the node's that is alone.
    """
    for name, rows in case.samples.items():
        array = case.arrays[name]
        at = (rows.start + 1, *(0 for _ in array.shape[1:]))
        yield (
            f"{name} of the sample",
            case.arrays | {name: array.at[at].set(number)},
            dy,
            case.samples,
            case.result,
        )
    at = (case.result.start + 1, *(0 for _ in dy.shape[1:]))
    yield "cotangent of the sample", case.arrays, dy.at[at].set(number), case.samples, case.result
    for name, row in case.alone.items():
        array = case.arrays[name]
        at = (row, *(0 for _ in array.shape[1:]))
        own = {name: slice(row, row + 1)}
        hidden = slice(row, row + 1) if len(dy) == NODES else slice(0, 0)
        yield (
            f"{name} of a node alone",
            case.arrays | {name: array.at[at].set(number)},
            dy,
            own,
            hidden,
        )


def _in_order(name: str | None) -> bool:
    """False of XLA's scatters on a GPU, which add in another order each time."""
    return jax.default_backend() == "cpu" or "xla" not in (name or "")


def _check(case: Case, *, in_order: bool, **how) -> None:
    run = jax.jit(functools.partial(_pulled_back, case, **how))
    shape = jax.eval_shape(lambda a: case.run(**a, **how), case.arrays)
    dy = random_array(shape.shape, shape.dtype, seed=99)
    y, gradients = run(case.arrays, dy)
    same = np.testing.assert_array_equal
    if not (case.same_bits and in_order):
        same = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for number in NUMBERS.values():
        for what, arrays, cotangent, hidden, result in _bad_runs(case, dy, number):
            made, pulled = run(arrays, cotangent)
            what = f"{number} in {what}"
            same(_without(result, made), _without(result, y), err_msg=f"{what}: the result")
            for name in case.samples:
                rows = hidden.get(name, slice(0, 0))
                others = (_without(rows, g[name]) for g in (pulled, gradients))
                same(*others, err_msg=f"{what}: the gradient to {name}")


def _without(rows: slice, array: jax.Array) -> np.ndarray:
    return np.delete(np.asarray(array), rows, axis=0)


@pytest.mark.costly
@pytest.mark.parametrize("name", [*_path_cases(), *_model_cases()])
def test_the_other_sample_is_the_same_to_the_bit(name):
    _check(CASES[name], in_order=_in_order(name))


@pytest.mark.costly
@pytest.mark.parametrize("implementation", ["xla", "ffi", None])
@pytest.mark.parametrize("name", _op_cases())
def test_the_other_sample_is_the_same_to_the_bit_by(name, implementation):
    try:
        _check(CASES[name], in_order=_in_order(implementation), implementation=implementation)
    except NotImplementedError as reason:
        pytest.skip(str(reason))


_WITHOUT_PALLAS = {"permutation_mixture", "mhc_head", "mhc_expand", "tensor_product_sum"}
OF_PALLAS = {n: case for n, case in _op_cases(64).items() if n not in _WITHOUT_PALLAS}


@pytest.mark.gpu
@pytest.mark.parametrize("name", OF_PALLAS)
def test_the_other_sample_is_the_same_to_the_bit_by_pallas(name):
    # Products of float32 are by parts of fewer bits, which have to be asked for.
    with jax.default_matmul_precision("tensorfloat32"):
        _check(OF_PALLAS[name], in_order=True, implementation="pallas")


@pytest.mark.parametrize("name", [name for name in _op_cases() if "edge_mlp" in name])
def test_a_node_without_edges_has_no_part_in_the_gradients_of_the_layers(name):
    """Neither its features nor the gradient to its result, which is zero whatever they are."""
    case = CASES[name]
    run = jax.jit(functools.partial(_pulled_back, case))
    dy = random_array((NODES, 8), "float32", seed=99)
    y, gradients = run(case.arrays, dy)
    for number in NUMBERS.values():
        alone = case.arrays | {"h": case.arrays["h"].at[8:].set(number)}
        made, pulled = run(alone, dy.at[8:].set(number))
        np.testing.assert_array_equal(made, y)
        for parameter, gradient in pulled.items():
            np.testing.assert_array_equal(gradient, gradients[parameter], err_msg=parameter)


@pytest.mark.costly
@pytest.mark.parametrize("name", [name for name in _path_cases() if "mixing" in name])
@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_by_mixing_it_reaches_what_it_reaches_in_the_reference(name, number):
    """In results, and in gradients to features, to hyperedges' and to what all share."""
    dy = None
    finite, infinite = [], []
    case = CASES[name]
    for path in (name, name.replace("mixing", "xla")):
        run = jax.jit(functools.partial(_pulled_back, CASES[path]))
        y = jax.eval_shape(lambda a, path=path: CASES[path].run(**a), case.arrays)
        dy = random_array(y.shape, y.dtype, seed=99)
        x = case.arrays["x"]
        zero = case.arrays["weight"].at[-1].set(0.0)  # reaches as far as any other
        found = run(case.arrays | {"x": x.at[-4, 0].set(number), "weight": zero}, dy)
        finite.append(jax.tree.map(jnp.isfinite, found))
        infinite.append(jnp.isinf(found[0]))
    jax.tree.map(np.testing.assert_array_equal, *finite)
    np.testing.assert_array_equal(*infinite)
    assert not all(jnp.all(f) for f in jax.tree.leaves(finite))


@pytest.mark.parametrize("nodes", [8, 20])
def test_members_of_vmap_have_one_branch_and_keep_their_bits(nodes):
    run, arrays, *_ = _few_nodes(nodes, path="mixing")
    x = arrays.pop("x").swapaxes(0, 1)
    mapped = jax.vmap(lambda x: run(x=x[:, None], **arrays))
    bad = x.at[1, 0, 0].set(jnp.nan)
    y, made = (jax.jit(mapped)(x) for x in (x, bad))
    np.testing.assert_array_equal(made[0], y[0])
    np.testing.assert_array_equal(made[1, nodes // 2 :], y[1, nodes // 2 :])
    assert np.isnan(made[1, : nodes // 2]).any()
    # Of few nodes terms are selected, without a branch; of more, the branch is none of selects.
    assert (" cond[" in str(jax.make_jaxpr(mapped)(x))) == (nodes > 16)


def test_a_weight_that_is_not_finite_stays_with_its_hyperedges():
    case = CASES["hypergraph_conv mixing, attention None, mean"]
    dy = random_array((NODES, 8), "float32", seed=99)
    run = jax.jit(functools.partial(_pulled_back, case))
    y, gradients = run(case.arrays, dy)
    made, pulled = run(case.arrays | {"weight": case.arrays["weight"].at[0].set(jnp.nan)}, dy)
    np.testing.assert_array_equal(made[4:], y[4:])
    assert np.isnan(made[:3]).all()
    for name, first in (("x", 4), ("weight", 2)):
        np.testing.assert_array_equal(pulled[name][first:], gradients[name][first:])
