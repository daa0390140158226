"""Random functions of nodes and edges give the same after they are rewritten."""

import dataclasses
import functools
import random
from dataclasses import dataclass, field

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import jaxgnn
from jaxgnn.fusion.policy import Policy
from jaxgnn.fusion.rewriting import Rules
from jaxgnn.fusion.rules.table import RULES
from jaxgnn.fusion.transform import transformed
from jaxgnn.testing import assert_close
from tests.fusion._eager import one_by_one

PROGRAMS, BLOCKS = 1_000, 20
MODES = ("clip", "fill")
GIVEN = (jnp.float32, jnp.float32, jnp.bfloat16)  # dtypes of the features of nodes
IDS = ("senders", "receivers", "sorted", "padded", "negative", "itself")
IN_RANGE = ("senders", "receivers", "sorted", "itself")


@dataclass(frozen=True)
class _Graph:
    """Sizes, and lists of ids: repeated, in any order, sorted, and out of range at either side."""

    nodes: int
    edges: int
    width: int
    ids: dict[str, jax.Array] = field(repr=False)

    @classmethod
    def of(cls, nodes, edges, width):
        rng = np.random.default_rng(nodes)
        made = {
            "senders": rng.integers(0, nodes - 1, edges),  # one node has no edges
            "receivers": rng.integers(0, nodes, edges),
            "sorted": np.sort(rng.integers(0, nodes, edges)),
            "padded": rng.integers(0, nodes + 2, edges),
            "negative": rng.integers(-2, nodes, edges),
            "itself": np.arange(edges) % nodes,
        }
        ids = {name: jnp.asarray(of_name, jnp.int32) for name, of_name in made.items()}
        return cls(nodes, edges, width, ids)

    def arguments(self, seed, dtype):
        """Features of nodes, features of edges, and a matrix."""
        rng = np.random.default_rng(seed)
        n, e, w = self.nodes, self.edges, self.width
        x, of_edges, matrix = (
            jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)
            for shape in ((n, w), (e, w), (3 * w, w))
        )
        return x.astype(dtype), of_edges, matrix

    def sum(self, e, ids):
        return jax.ops.segment_sum(e, ids, self.nodes)


GRAPHS = (_Graph.of(5, 14, 4), _Graph.of(7, 3, 2))
SIDE = 4  # nodes, edges, features, heads and features of a head, all of one number
SQUARE = _Graph.of(SIDE, SIDE, SIDE)


def _finite(x):
    return jnp.where(jnp.isfinite(x), x, 0)


def _mean(g, e, ids):
    return g.sum(e, ids) / jnp.maximum(g.sum(jnp.ones_like(e), ids), 1)


def _largest(x):
    values, columns = jax.lax.top_k(x, 2)
    return jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], columns].set(values)


def _where_often(g, x, y, ids):
    """A branch on integers: nodes of which a list has more than one."""
    counts = g.sum(jnp.ones(ids.shape, jnp.int32), ids)
    return jnp.where(counts[:, None] > 1, x, 0.5 * y)


def _where_any(g, x, y, e, ids):
    """A branch on truth values: nodes at which an edge arrives that is positive."""
    is_positive = jax.ops.segment_max((e[:, 0] > 0).astype(jnp.int32), ids, g.nodes) > 0
    return jnp.where(is_positive[:, None], x, y)


def _list_sum(g, x, y, e):
    """A sum over the places of a dense list, of rows times numbers of nodes, with a mask."""
    ids = jnp.arange(g.nodes * 3).reshape(g.nodes, 3) ** 2 % g.nodes
    messages = jnp.where((ids > 0)[..., None], x[ids] * y[:, :1, None] * e[0, 0], 0)
    return messages.sum(1)


def _masked(g, x, e, f, pick):
    """Messages that a known mask of edges makes zero, of rows or of features of edges."""
    mask = (g.ids[pick(IDS)] % 3 > 0)[:, None]
    messages = pick((x[g.ids["senders"]] * f[:, :1], e * f[:, 1:2]))
    return pick((jnp.where(mask, messages, 0), jnp.where(mask, 0, -messages)))


# A new array of nodes [nodes, width], of two arrays of nodes, one of edges, and ids.
OF_NODES = (
    lambda g, x, y, e, ids: g.sum(e, ids),
    lambda g, x, y, e, ids: _finite(jax.ops.segment_max(e, ids, g.nodes)),
    lambda g, x, y, e, ids: _finite(jax.ops.segment_min(e, ids, g.nodes)),
    lambda g, x, y, e, ids: _mean(g, e, ids),
    lambda g, x, y, e, ids: x.at[ids].add(e),
    lambda g, x, y, e, ids: _largest(x),
    lambda g, x, y, e, ids: jnp.tanh(x) * 0.5 + y,
    lambda g, x, y, e, ids: jnp.where(y > 0, x, -0.5 * y),
    lambda g, x, y, e, ids: (x.T @ y / g.nodes)[None].repeat(g.nodes, 0).mean(1) + x,
    lambda g, x, y, e, ids: _where_often(g, x, y, ids),
    lambda g, x, y, e, ids: _where_any(g, x, y, e, ids),
    lambda g, x, y, e, ids: jax.vmap(lambda column: g.sum(column, ids), 1, 1)(e) + y,
    lambda g, x, y, e, ids: x[jnp.argsort(y[:, 0])],
    lambda g, x, y, e, ids: _list_sum(g, x, y, e),
)


def _softmax(g, e):
    ids = g.ids["receivers"]
    powers = jnp.exp(e - jax.ops.segment_max(e, ids, g.nodes)[ids])
    return powers / g.sum(powers, ids)[ids]


def _network(g, x, e, matrix):
    ends = x[g.ids["receivers"]], x[g.ids["senders"]], e
    return jax.nn.relu(jnp.concatenate(ends, -1) @ matrix) @ matrix[: g.width]


# A new array of edges [edges, width], of one array of nodes, two of edges, ids and a matrix.
OF_EDGES = (
    lambda g, x, e, f, pick, matrix: x[g.ids[pick(IN_RANGE)]],
    lambda g, x, e, f, pick, matrix: jnp.nan_to_num(x.at[g.ids[pick(IDS)]].get(mode=pick(MODES))),
    lambda g, x, e, f, pick, matrix: e * f[:, :1],
    lambda g, x, e, f, pick, matrix: -e / (1 + f[:, 1:2] ** 2),
    lambda g, x, e, f, pick, matrix: e + 0.5 * f,
    lambda g, x, e, f, pick, matrix: e * x[g.ids["receivers"]],
    lambda g, x, e, f, pick, matrix: _softmax(g, e),
    lambda g, x, e, f, pick, matrix: _network(g, x, e, matrix),
    lambda g, x, e, f, pick, matrix: (
        jnp.concatenate([x[g.ids["senders"]], e[:, :2]], -1) @ matrix[: g.width + 2]
    ),
    lambda g, x, e, f, pick, matrix: jnp.where(g.ids[pick(IDS)][:, None] > 0, e, f),
    lambda g, x, e, f, pick, matrix: _masked(g, x, e, f, pick),
)


class _Function:
    """A function of nodes, edges and a matrix, whose steps are chosen by a number."""

    def __init__(self, graph: _Graph, steps: list[bool], choices: int):
        self.graph, self.steps, self.choices = graph, steps, choices

    def __repr__(self) -> str:
        return f"_Function({self.graph}, {self.steps}, {self.choices})"

    def __call__(self, x, e, matrix):
        g = self.graph
        pick = random.Random(self.choices).choice  # the same in every trace

        # Features of a shorter dtype become longer before or behind the gather.
        nodes, edges = [x.astype(jnp.float32)], [e, x[g.ids["senders"]].astype(jnp.float32)]
        for is_edge in self.steps:
            x, y, e, f = (pick(of[-3:]) for of in (nodes, nodes, edges, edges))
            if is_edge:
                edges.append(pick(OF_EDGES)(g, x, e, f, pick, matrix))
            else:
                nodes.append(pick(OF_NODES)(g, x, y, e, g.ids[pick(IDS)]))
        return g.sum(edges[-1], g.ids["receivers"]), nodes[-1], edges[-1]

    def of_lists(self, x, e, matrix, lists):
        """The same function, which takes the lists of ids."""
        graph = dataclasses.replace(self.graph, ids=lists)
        return _Function(graph, self.steps, self.choices)(x, e, matrix)


_FUNCTIONS_OF_GRAPHS = (
    st.builds(
        _Function,
        st.sampled_from(GRAPHS),
        st.lists(st.booleans(), min_size=1, max_size=4),
        st.integers(0, 2**32 - 1),
    ),
    st.sampled_from(GIVEN),
)


def _moved(rng, a):
    """An array after random steps that only permute, add and remove axes."""
    for _ in range(rng.randrange(4)):
        step = rng.choice(("transpose", "expand", "squeeze", "reshape"))
        if step == "transpose":
            a = jnp.transpose(a, rng.sample(range(a.ndim), a.ndim))
        elif step == "expand":
            a = jnp.expand_dims(a, rng.randrange(a.ndim + 1))
        elif step == "squeeze":
            a = jnp.squeeze(a, tuple(d for d, n in enumerate(a.shape) if n == 1))
        else:
            a = _reshaped(rng, a, a.ndim)
    return a


def _reshaped(rng, a, rank):
    """A reshape to as many axes, those of one entry at random places."""
    wide = [n for n in a.shape if n != 1]
    places = sorted(rng.sample(range(rank), len(wide)))
    sizes = dict(zip(places, wide, strict=True))
    return a.reshape([sizes.get(d, 1) for d in range(rank)])


def _some_sum(rng, a, most):
    """The sum along random axes, after which at most this many are left."""
    axes = rng.sample(range(a.ndim), rng.randint(a.ndim - most, a.ndim))
    return a.sum(tuple(axes), keepdims=rng.random() < 0.5)


class _Factors:
    """A sum of rows times factors whose axes are moved about, where all sizes are the same.

    Only by following axes can one tell along which of them a factor varies.
    """

    def __init__(self, choices: int):
        self.choices = choices

    def __repr__(self) -> str:
        return f"_Factors({self.choices})"

    def __call__(self, x, e, matrix):
        rng, g = random.Random(self.choices), SQUARE
        rank = rng.choice((2, 3))
        rows, of_edges = (a if rank == 3 else a[..., 0] for a in (x, e))
        product = rows[g.ids["senders"]]
        attends = rng.random() < 0.4
        for _ in range(rng.randint(0, 1) if attends else rng.randint(1, 2)):
            factor = _some_sum(rng, rng.choice((of_edges, e, x[g.ids["receivers"]])), rank - 1)
            if rng.random() < 0.3 and factor.ndim:
                factor = _softmax_of_first(g, factor)
            factor = _reshaped(rng, _moved(rng, factor), rank)
            product = product / (2 + jnp.sin(factor)) if rng.random() < 0.3 else product * factor
        if attends:
            product = product * _scores(rng, g, x, rank)
        return self._ends(rng, g, product, matrix)

    def _ends(self, rng, g, product, matrix):
        end = rng.choice(("sum", "merged", "linear", "features", "of others"))
        if end == "merged":
            return [g.sum(product.reshape(SIDE, -1), g.ids["receivers"])]
        if end == "linear":
            return [g.sum(product, g.ids["receivers"]) @ matrix[:, : SIDE // 2]]
        if end == "features":
            return [g.sum(_moved(rng, product.sum(-1)).reshape(SIDE, -1), g.ids["receivers"])]
        if end == "of others":
            return [g.sum(_moved(rng, product).reshape(SIDE, -1), g.ids["sorted"])]
        return [g.sum(product, g.ids["receivers"])]


def _softmax_of_first(g, a):
    """A softmax over the edges if they are the first axis, and over what has as many entries."""
    a = jnp.broadcast_to(a, (SIDE, *a.shape[1:]))
    return _softmax(g, a)


def _scores(rng, g, x, rank):
    """Attention by inner products of features, or of the features of all heads."""
    products = x[g.ids["receivers"]] * jnp.cos(x)[g.ids["senders"]]
    if rng.random() < 0.5:
        products = products.reshape(SIDE, -1)
    probabilities = _softmax(g, products.sum(-1))
    if probabilities.ndim >= rank:
        probabilities = probabilities.sum(1)
    return _reshaped(rng, _moved(rng, probabilities), rank)


def _both(run, args):
    """The program as it is and rewritten, and the names of the rules that were applied."""
    closed = jax.make_jaxpr(run)(*args)
    program, findings = transformed(closed, Rules(RULES, Policy(only_if_faster=False)), {})
    assert findings.applied  # the last sum at least
    return closed, program.closed(), {one.rule for one in findings.applied}


def _slopes(y):
    """What a gradient begins with, another number for each entry."""
    return (1 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape) / 7) * jnp.cos(y)


def _assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype
        short = {} if a.dtype == jnp.float32 else {"operands": a.dtype, "roundings": 8}
        assert_close(a, e, reduction_length=4000, largest_term=1.0, **short)


def _check(run, args, seen, lists=()):
    """Compares results and gradients of a program that is rewritten; adds the rules to ``seen``.

    ``lists`` is a pytree of ids that the function takes after the other arguments.
    """
    closed, rewritten, rules = _both(run, (*args, *lists))
    ids = jax.tree.leaves(lists)
    (expected, back), (actual, back_of_rewritten) = (
        jax.vjp(lambda *args, c=c: one_by_one(c)(*args, *ids), *args) for c in (closed, rewritten)
    )
    slopes = list(map(_slopes, expected))
    _assert_close(actual, expected)
    _assert_close(back_of_rewritten(slopes), back(slopes))
    seen.update(rules)


def _random_programs(programs, count, block):
    def decorate(check):
        options = settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=HealthCheck,
        )
        return seed(block)(options(given(*programs)(check)))

    return decorate


@pytest.mark.again("test_factors_whose_axes_are_moved_about_are_the_same_where_all_sizes_are")
@pytest.mark.costly(5)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_thousand_random_programs_have_the_same_results_and_gradients(block):
    seen, count = set(), 0

    @_random_programs(_FUNCTIONS_OF_GRAPHS, PROGRAMS // BLOCKS, block)
    def check(run, dtype):
        nonlocal count
        _check(run, run.graph.arguments(block, dtype), seen)
        count += 1

    with jaxgnn.default_implementation("xla"):
        check()
    assert count == PROGRAMS // BLOCKS
    assert len(seen) >= 5  # rules that were tried together in this block


@pytest.mark.costly(1)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs_are_the_same_where_lists_are_arguments(block):
    seen, count = set(), 0

    @_random_programs(_FUNCTIONS_OF_GRAPHS, 15, 3_000 + block)
    def check(run, dtype):
        nonlocal count
        _check(run.of_lists, run.graph.arguments(block, dtype), seen, (run.graph.ids,))
        count += 1

    with jaxgnn.default_implementation("xla"):
        check()
    assert count == 15
    assert {"neighbour_sum", "segments"} <= seen


@pytest.mark.costly(2)
@pytest.mark.parametrize("block", range(BLOCKS // 2))
def test_factors_whose_axes_are_moved_about_are_the_same_where_all_sizes_are(block):
    seen, count = set(), 0
    normal = np.random.default_rng(block).normal
    shapes = (SIDE,) * 3, (SIDE,) * 3, (SIDE, SIDE)
    args = [jnp.asarray(normal(size=shape) / 2, jnp.float32) for shape in shapes]

    @_random_programs((st.builds(_Factors, st.integers(0, 2**32 - 1)),), 30, 2_000 + block)
    def check(run):
        nonlocal count
        _check(run, args, seen)
        count += 1

    with jaxgnn.default_implementation("xla"):
        check()
    assert count == 30
    assert {"neighbour_sum", "segments"} <= seen


@pytest.mark.costly
@pytest.mark.parametrize("block", range(10))
def test_random_programs_are_the_same_under_jit_with_the_ops_own_choice(block):
    @_random_programs(_FUNCTIONS_OF_GRAPHS, 4, 1_000 + block)
    def check(run, dtype):
        args = run.graph.arguments(block, dtype)
        closed, rewritten, _ = _both(run, args)

        def with_gradients(of):
            results, back = jax.vjp(jex.jaxpr_as_fun(of), *args)
            return results, back(list(map(_slopes, results)))

        _assert_close(
            *(jax.jit(functools.partial(with_gradients, c))() for c in (rewritten, closed))
        )

    check()
