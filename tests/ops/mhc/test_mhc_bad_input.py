"""The ops of hyper-connections refuse bad input with op, argument, expectation and value."""

import jax
import jax.numpy as jnp
import pytest

from jaxgnn import ops
from tests.ops.mhc._mhc import outputs, parameters, streams

X = streams((5,), 3, 8)
PHI, ALPHA, BIAS, GAMMA = parameters(3, 8)
F, H_POST, H_RES = outputs((5,), 3, 8)


def _pre(**changes):
    arguments = {"x": X, "phi": PHI, "alpha": ALPHA, "bias": BIAS, "gamma": GAMMA}
    return lambda: ops.mhc_pre(**arguments | changes)


def _post(**changes):
    arguments = {"x": X, "f": F, "h_post": H_POST, "h_res": H_RES}
    return lambda: ops.mhc_post(**arguments | changes)


def _head(**changes):
    arguments = {"x": X, "phi": PHI[:3], "alpha": ALPHA[0], "bias": BIAS[:3], "gamma": GAMMA}
    return lambda: ops.mhc_head(**arguments | changes)


def _layer(layer=jnp.sin, **changes):
    arguments = {"x": X, "phi": PHI, "alpha": ALPHA, "bias": BIAS, "gamma": GAMMA}
    return lambda: ops.mhc_layer(layer, **arguments | changes)


def _sinkhorn(logits=H_RES, **options):
    return lambda: ops.sinkhorn(logits, **options)


CASES = {
    "x vector": (_pre(x=X[0, 0]), ["mhc_pre: x", "2 axes", "(8,)"]),
    "x int": (_pre(x=X.astype(int)), ["mhc_pre: x", "floating", "int32"]),
    "x list": (_pre(x=[[1.0]]), ["mhc_pre: x", "array", "list"]),
    "x no streams": (_pre(x=X[:, :0]), ["mhc_pre: x", "one stream", "(5, 0, 8)"]),
    "x no features": (_pre(x=X[..., :0]), ["mhc_pre: x", "feature", "(5, 3, 0)"]),
    "x of other n": (_pre(x=X[:, :2]), ["mhc_pre: phi", "(8, 16) or (6, 16)", "(15, 24)"]),
    "x of other dim": (_pre(x=X[..., :4]), ["mhc_pre: phi", "(15, 12)", "(15, 24)"]),
    "phi rows": (_pre(phi=PHI[:14]), ["mhc_pre: phi", "(15, 24) or (12, 24)", "(14, 24)"]),
    "phi bfloat16": (_pre(phi=PHI.astype(jnp.bfloat16)), ["phi", "float32", "bfloat16"]),
    "alpha": (_pre(alpha=ALPHA[:2]), ["mhc_pre: alpha", "(3,)", "(2,)"]),
    "alpha float": (_pre(alpha=1.0), ["mhc_pre: alpha", "an array", "float"]),
    "bias": (_pre(bias=BIAS[:4]), ["mhc_pre: bias", "(15,)", "(4,)"]),
    "bias int": (_pre(bias=BIAS.astype(int)), ["mhc_pre: bias", "float32", "int32"]),
    "gamma": (_pre(gamma=GAMMA.ravel()), ["mhc_pre: gamma", "(3, 8)", "(24,)"]),
    "phi without alpha": (_pre(alpha=None), ["mhc_pre: alpha", "phi is None", "None"]),
    "alpha without phi": (_pre(phi=None), ["mhc_pre: alpha", "phi is None", "an array"]),
    "gamma without phi": (_pre(phi=None, alpha=None), ["mhc_pre: gamma", "None", "an array"]),
    "static bias": (
        _pre(phi=None, alpha=None, gamma=None, bias=BIAS[:3]),
        ["mhc_pre: bias", "(15,) or (12,)", "(3,)"],
    ),
    "norm_eps": (_pre(norm_eps=-1.0), ["mhc_pre: norm_eps", "not negative", "-1.0"]),
    "pre_eps": (_pre(pre_eps="0"), ["mhc_pre: pre_eps", "number", "'0'"]),
    "post_scale": (_pre(post_scale=float("nan")), ["mhc_pre: post_scale", "finite", "nan"]),
    "return_streams": (
        _pre(return_streams="x"),
        ["mhc_pre: return_streams", "True or False", "'x'"],
    ),
    "implementation": (_pre(implementation="cuda"), ["mhc_pre: implementation", "'cuda'"]),
    "f shape": (_post(f=F[:4]), ["mhc_post: f", "(5, 8)", "(4, 8)"]),
    "f dtype": (_post(f=F.astype(jnp.bfloat16)), ["mhc_post: f", "float32", "bfloat16"]),
    "h_post": (_post(h_post=H_POST[:, :2]), ["mhc_post: h_post", "(5, 3) or (3,)", "(5, 2)"]),
    "h_res": (_post(h_res=H_RES[:, :2]), ["h_res", "(5, 3, 3) or (3, 3)", "(5, 2, 3)"]),
    "h_res bfloat16": (
        _post(h_res=H_RES.astype(jnp.bfloat16)),
        ["mhc_post: h_res", "float32", "bfloat16"],
    ),
    "transposed": (_post(transposed="yes"), ["mhc_post: transposed", "True or False", "'yes'"]),
    "post_pre f": (
        lambda: ops.mhc_post_pre(X, F[:2], H_POST, H_RES, PHI, ALPHA, BIAS),
        ["mhc_post_pre: f", "(5, 8)", "(2, 8)"],
    ),
    "post_pre phi": (
        lambda: ops.mhc_post_pre(X, F, H_POST, H_RES, PHI[:2], ALPHA, BIAS),
        ["mhc_post_pre: phi", "(15, 24)", "(2, 24)"],
    ),
    "post_pre eps": (
        lambda: ops.mhc_post_pre(X, F, H_POST, H_RES, PHI, ALPHA, BIAS, pre_eps=-2),
        ["mhc_post_pre: pre_eps", "-2"],
    ),
    "layer x": (_layer(x=X[0, 0]), ["mhc_layer: x", "2 axes", "(8,)"]),
    "layer static": (
        _layer(phi=None, alpha=None, gamma=None),
        ["mhc_layer: phi", "(15, 24)", "None"],
    ),
    "layer lite": (
        _layer(phi=PHI[:12], bias=BIAS[:12]),
        ["mhc_layer: phi", "of shape (15, 24),", "(12, 24)"],
    ),
    "layer bias": (_layer(bias=BIAS[:12]), ["mhc_layer: bias", "(15,)", "(12,)"]),
    "layer shape": (_layer(lambda h: h[:, :4]), ["mhc_layer: layer(h_in)", "(5, 8)", "(5, 4)"]),
    "layer dtype": (
        _layer(lambda h: h.astype(jnp.bfloat16)),
        ["mhc_layer: layer(h_in)", "float32", "bfloat16"],
    ),
    "layer pair": (_layer(lambda h: (h, h)), ["mhc_layer: layer(h_in)", "an array", "tuple"]),
    "layer transposed": (_layer(transposed="yes"), ["mhc_layer: transposed", "'yes'"]),
    "layer eps": (_layer(pre_eps=-2), ["mhc_layer: pre_eps", "-2"]),
    "layer iterations": (_layer(iterations=0), ["mhc_layer: iterations", "at least 1", "0"]),
    "layer sinkhorn eps": (_layer(eps=-1e-6), ["mhc_layer: eps", "not negative", "-1e-06"]),
    "layer last": (_layer(last="all"), ["mhc_layer: last", "'rows' or 'columns'", "'all'"]),
    "layer gradient": (_layer(gradient="none"), ["mhc_layer: gradient", "'none'"]),
    "head phi": (_head(phi=PHI), ["mhc_head: phi", "(3, 24)", "(15, 24)"]),
    "head alpha": (_head(alpha=ALPHA), ["mhc_head: alpha", "()", "(3,)"]),
    "head bias": (_head(bias=BIAS), ["mhc_head: bias", "(3,)", "(15,)"]),
    "head gamma": (_head(gamma=GAMMA[:2]), ["mhc_head: gamma", "(3, 8)", "(2, 8)"]),
    "head eps": (_head(norm_eps=-1), ["mhc_head: norm_eps", "-1"]),
    "expand none": (lambda: ops.mhc_expand(X, 0), ["mhc_expand: num_streams", "at least 1", "0"]),
    "expand float": (lambda: ops.mhc_expand(X, 2.0), ["mhc_expand: num_streams", "int", "2.0"]),
    "expand int": (lambda: ops.mhc_expand(jnp.ones(3, int), 2), ["mhc_expand: x", "int32"]),
    "not square": (_sinkhorn(H_RES[:, :2]), ["sinkhorn: logits", "square", "(5, 2, 3)"]),
    "logits int": (_sinkhorn(jnp.ones((2, 2), int)), ["sinkhorn: logits", "floating", "int32"]),
    "no iterations": (_sinkhorn(iterations=0), ["sinkhorn: iterations", "at least 1", "0"]),
    "iterations float": (_sinkhorn(iterations=2.0), ["sinkhorn: iterations", "int", "2.0"]),
    "sinkhorn eps": (_sinkhorn(eps=-1e-6), ["sinkhorn: eps", "not negative", "-1e-06"]),
    "last": (_sinkhorn(last="diagonal"), ["sinkhorn: last", "'rows' or 'columns'", "'diagonal'"]),
    "gradient": (_sinkhorn(gradient="none"), ["sinkhorn: gradient", "'implicit'", "'none'"]),
    "no factorial": (
        lambda: ops.permutation_mixture(jnp.ones((2, 5))),
        ["permutation_mixture: logits", "1, 2, 6, 24, 120 or 720", "(2, 5)"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named(name):
    call, fragments = CASES[name]
    with pytest.raises(ValueError) as error:
        call()
    for fragment in fragments:
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"


def test_shapes_are_checked_at_trace_time():
    with pytest.raises(ValueError, match=r"mhc_pre: phi must be of shape"):
        jax.jit(ops.mhc_pre).lower(X, PHI[:3], ALPHA, BIAS)
