"""Every op of attention refuses what does not fit, with the shapes."""

import jax
import jax.numpy as jnp
import pytest

from jaxgnn import ops
from jaxgnn.graph import CBSR, CSRGraph
from tests.ops.attention._attention import TABLE

GRAPH = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 2, 0], 3, num_senders=4)
KEY = jax.random.key(0)
KEPT = ops.maxk(jnp.ones((4, 4, 5)), 2)


def _call(op, full=True, **changes):
    arrays = TABLE[op].arrays(GRAPH, full=full)
    options = {
        n: v for n, v in changes.items() if n in ("dropout", "key", "scale", "negative_slope")
    }
    arrays |= {n: v for n, v in changes.items() if n not in options}
    return TABLE[op](GRAPH, {n: a for n, a in arrays.items() if a is not None}, **options)


CASES = {
    "rows": ("dot_attention", {"q": jnp.ones((4, 4, 5))}, ["q", "[3, 4, 5]", "(4, 4, 5)"]),
    "columns": ("dot_attention", {"k": jnp.ones((3, 2, 5))}, ["k", "[4, any, 5]", "(3, 2, 5)"]),
    "key width": ("dot_attention", {"k": jnp.ones((4, 2, 6))}, ["k", "[4, any, 5]", "(4, 2, 6)"]),
    "groups": ("dot_attention", {"k": jnp.ones((4, 3, 5))}, ["k", "divides", "4", "got 3"]),
    "value heads": ("dot_attention", {"v": jnp.ones((4, 4, 3))}, ["v", "[4, 2, any]", "(4, 4, 3)"]),
    "edge values": (
        "dot_attention",
        {"edge_values": jnp.ones((4, 2, 4))},
        ["edge_values", "[4, 2, 3]", "(4, 2, 4)"],
    ),
    "features of edges": (
        "dot_attention",
        {"edge_features": jnp.ones((5, 2))},
        ["edge_features", "[4, any]", "each edge slot", "(5, 2)"],
    ),
    "map to keys": (
        "dot_attention",
        {"edge_kernel": jnp.ones((3, 2, 5))},
        ["edge_kernel", "[2, 2, 5]", "(3, 2, 5)"],
    ),
    "map to values": (
        "dot_attention",
        {"edge_value_kernel": jnp.ones((2, 2, 5))},
        ["edge_kernel", "[2, 2, 3]", "(2, 2, 5)"],
    ),
    "one map to keys and wider values": (
        "dot_attention",
        {"edge_value_kernel": None},
        ["edge_kernel", "a pair", "keys, 5", "values of 3"],
    ),
    "maps without features": (
        "dot_attention",
        {"edge_features": None},
        ["edge_features", "edge_kernel", "None"],
    ),
    "no map of two": (
        "dot_attention",
        {"edge_kernel": (None, None), "edge_value_kernel": None},
        ["edge_kernel", "one at least", "a tuple of 2"],
    ),
    "dtype of keys": (
        "dot_attention",
        {"k": jnp.ones((4, 2, 5), jnp.bfloat16)},
        ["k", "float32", "bfloat16"],
    ),
    "dtype of logits": (
        "dot_attention",
        {"edge_logits": jnp.ones((4, 4), jnp.float16)},
        ["edge_logits", "float32", "float16"],
    ),
    "scale": ("dot_attention", {"scale": "1"}, ["scale", "finite number", "'1'"]),
    "batch": (
        "dot_attention",
        {"k": jnp.ones((2, 4, 2, 5))},
        ["k", "[4, any, 5]", "(2, 4, 2, 5)"],
    ),
    "gat heads": ("gat_attention", {"a_src": jnp.ones((4, 3))}, ["a_src", "[4, 4]", "(4, 3)"]),
    "gat values": ("gat_attention", {"v": jnp.ones((4, 2, 5))}, ["v", "[4, 4, any]", "(4, 2, 5)"]),
    "logits": (
        "gat_attention",
        {"edge_logits": jnp.ones((5, 4))},
        ["edge_logits", "[4, 4]", "each edge slot", "(5, 4)"],
    ),
    "slope": ("gat_attention", {"negative_slope": jnp.inf}, ["negative_slope", "finite", "inf"]),
    "integers": ("gat_attention", {"a_dst": jnp.ones((3, 4), int)}, ["a_dst", "floating", "int32"]),
    "list": ("gat_attention", {"v": [1.0]}, ["v", "an array", "list"]),
    "vectors": (
        "gatv2_attention",
        {"attention": jnp.ones((4, 4))},
        ["attention", "[4, 5]", "(4, 4)"],
    ),
    "features alone": (
        "gatv2_attention",
        {"edge_kernel": None},
        ["edge_kernel", "edge_features", "None"],
    ),
    "kernel alone": (
        "gatv2_attention",
        {"edge_features": None},
        ["edge_features", "edge_kernel", "None"],
    ),
    "kernel": (
        "gatv2_attention",
        {"edge_kernel": jnp.ones((3, 4, 5))},
        ["edge_kernel", "[2, 4, 5]", "(3, 4, 5)"],
    ),
    "senders": (
        "gatv2_attention",
        {"x_src": jnp.ones((3, 4, 5))},
        ["x_src", "[4, 4, 5]", "(3, 4, 5)"],
    ),
    "k-sparse ids": (
        "gatv2_attention",
        {"x_src": CBSR(KEPT.values, KEPT.indices.astype(jnp.int32), 5)},
        ["cbsr.indices", "uint8", "int32"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_names_the_op_the_argument_what_was_expected_and_what_came(case):
    op, changes, parts = CASES[case]
    with pytest.raises(ValueError, match=f"^{op}: ") as raised:
        _call(op, **changes)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize("op", TABLE)
@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"dropout": 0.5}, "key must be a random key"),
        ({"key": KEY}, "key must be None where dropout is 0"),
        ({"dropout": 1.0, "key": KEY}, r"dropout must be in \[0, 1\)"),
        ({"dropout": -0.1, "key": KEY}, r"dropout must be in \[0, 1\)"),
        ({"dropout": True, "key": KEY}, "dropout must be a finite number"),
    ],
)
def test_dropout_has_a_key_and_a_key_has_dropout(op, options, part):
    with pytest.raises(ValueError, match=f"^{op}: {part}"):
        _call(op, **options)


@pytest.mark.parametrize("op", TABLE)
def test_kernels_of_the_other_platform_can_not_be_named(op):
    here, name = ("cpu", "pallas") if jax.default_backend() == "cpu" else ("cuda", "ffi")
    arrays = TABLE[op].arrays(GRAPH)
    with pytest.raises(
        NotImplementedError, match=rf"{op}\[{name}\]: needs platform .*, got {here}"
    ):
        TABLE[op](GRAPH, arrays, implementation=name)
