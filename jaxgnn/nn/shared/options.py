"""Checks of the options of layers, made when a layer is constructed."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.nn.shared.common_options import add_common_options
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.shared import PRECISIONS

# Returns None if a value is valid, otherwise a description of the expected value.
type Check = Callable[[Any], str | None]


def one_of(*choices: Any) -> Check:
    """Check for one of several values; the type must match too, so that 1 is not True."""

    def check(value: Any) -> str | None:
        is_name = isinstance(value, str)
        is_choice = any(
            value is c or (is_name and isinstance(c, str) and value == c) for c in choices
        )
        *most, last = map(repr, choices)
        return None if is_choice else f"{', '.join(most)} or {last}"

    return check


def named_one_of(*names: str) -> Check:
    """Check for one of many names."""
    return lambda value: None if one_of(*names)(value) is None else f"one of {', '.join(names)}"


def names_of(kind: Any) -> Check:
    """Check for a sequence of different names of a ``Literal``."""
    names = get_args(kind)

    def check(value: Any) -> str | None:
        is_good = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
        is_good = is_good and all(isinstance(v, str) and v in names for v in value)
        is_good = is_good and len(set(value)) == len(value)
        return None if is_good else f"a sequence of different names among {', '.join(names)}"

    return check


def or_none(check: Check) -> Check:
    """Check for None, or a value that another check accepts."""

    def either(value: Any) -> str | None:
        expected = None if value is None else check(value)
        return None if expected is None else f"None or {expected}"

    return either


def either_of(*checks: Check) -> Check:
    """Check for a value that one of several checks accepts."""

    def either(value: Any) -> str | None:
        expected = [check(value) for check in checks]
        return None if None in expected else ", or ".join(map(str, expected))

    return either


def instance_of(kind: type, expected: str) -> Check:
    """Check for an object of a class."""
    return lambda value: None if isinstance(value, kind) else expected


def anything(value: Any) -> None:
    """Accepts any value, for options that a layer checks itself."""


def require(where: str, argument: str, value: Any, check: Check) -> None:
    """Raises ValueError unless a check accepts a value."""
    expected = check(value)
    if expected is not None:
        raise bad_input(where, argument, expected, repr(value))


def int_at_least(least: int) -> Check:
    """Check for a whole number of at least ``least``."""

    def check(value: Any) -> str | None:
        if not is_integer(value):
            return f"an int of at least {least}"
        return None if value >= least else f"at least {least}"

    return check


def is_integer(value: Any) -> bool:
    """Returns whether a value is a whole number, and not True or False."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def function(value: Any) -> str | None:
    """Checks for a callable object."""
    return None if callable(value) else "a function or a module"


def number(value: Any) -> str | None:
    """Checks for a finite number."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return None if is_number and math.isfinite(value) else "a finite number"


def _number_that(fits: Callable[[float], bool], expected: str) -> Check:
    """Check for a finite number that fits."""
    return lambda value: None if number(value) is None and fits(value) else expected


rate = _number_that(lambda value: 0 <= value < 1, "in [0, 1)")
positive = _number_that(lambda value: value > 0, "a finite number above 0")
fraction = _number_that(lambda value: 0 <= value <= 1, "in [0, 1]")


def floating(value: Any) -> str | None:
    """Checks for a floating dtype, or the name of one."""
    expected = "a floating dtype"
    if isinstance(value, jax.Array | np.ndarray):  # Has an attribute dtype, but is no dtype.
        return expected
    try:
        return None if jnp.issubdtype(jnp.dtype(value), jnp.floating) else expected
    except TypeError:
        return expected


flag = instance_of(bool | np.bool_, "True or False")
activation = one_of(*ACTIVATIONS)
any_activation = either_of(activation, function)

# Checks by the name of the option, which has one meaning in all layers.
_CHECKS: Mapping[str, Check] = {
    "add_self_loops": or_none(flag),
    "aggregation": one_of("sum", "mean"),
    "alpha": number,
    "alpha_init": number,
    "attention_mode": one_of(*get_args(ops.AttentionMode)),
    "beta": number,
    "bias_init": function,
    "by": one_of("value", "magnitude"),
    "combiner": or_none(function),
    "concat": flag,
    "coupler_layers": int_at_least(1),
    "dropout": rate,
    "dtype": or_none(floating),
    "dynamic": flag,
    "early_stop": or_none(int_at_least(0)),
    "edge_dropout": rate,
    "edge_features": int_at_least(0),
    "epsilon": positive,
    "features_argument": int_at_least(0),
    "gradient": one_of("exact", "implicit"),
    "heads": int_at_least(1),
    "identity": number,
    "implementation": one_of(None, *get_args(ops.Name)),
    "initial": number,
    "input_features": int_at_least(0),
    "keep_outputs": flag,
    "kernel_init": function,
    "kernel_mode": one_of("auto", "maxk", "dense"),
    "layer": function,
    "linear": flag,
    "messages": function,
    "mixing": one_of("sinkhorn", "permutations"),
    "mlp": or_none(function),
    "negative_slope": number,
    "norm": flag,
    "normalization": one_of("mean", "sym"),
    "normalize": flag,
    "num_experts": int_at_least(1),
    "num_hyperedges": or_none(int_at_least(0)),
    "num_layers": int_at_least(1),
    "num_steps": int_at_least(1),
    "num_streams": int_at_least(1),
    "param_dtype": floating,
    "path": one_of(*get_args(ops.HypergraphPath)),
    "precision": one_of(*PRECISIONS),
    "reduce": one_of(*get_args(ops.Reduce)),
    "residual": flag,
    "rngs": instance_of(nnx.Rngs, "an nnx.Rngs, such as nnx.Rngs(0)"),
    "scan_layers": flag,
    "use_affine": flag,
    "use_attention": flag,
    "use_bias": flag,
    "use_linear_bias": flag,
    "use_scale": flag,
    "weighting": one_of(*get_args(ops.Weighting)),
}


# Names of an option in other libraries: PyTorch Geometric, DGL, Flax and torch.
_NAMES_ELSEWHERE: Mapping[str, Sequence[str]] = {
    "K": ("num_steps", "num_terms"),
    "act": ("activation",),
    "aggr": ("reduce", "aggregation"),
    "bias": ("use_bias",),
    "deg": ("average_degree",),
    "dropout_rate": ("dropout",),
    "edge_channels": ("edge_dim", "edge_features"),
    "hidden_channels": ("hidden_features",),
    "in_channels": ("in_features", "features"),
    "in_feats": ("in_features", "features"),
    "key": ("rngs",),
    "nn": ("mlp",),
    "num_heads": ("heads",),
    "out_channels": ("out_features",),
    "out_feats": ("out_features",),
}


def checked_options[M: nnx.Module, **P](
    **replacements: Check,
) -> Callable[[Callable[Concatenate[M, P], None]], Callable[Concatenate[M, P], None]]:
    """Decorates an ``__init__`` so that it rejects invalid options.

    Args:
      **own: checks that replace the common ones, by the name of the option.

    Raises:
      ValueError: if an option is invalid; names the layer, the option, the expected and the given
        value.
      TypeError: if an option is missing or unknown; names the layer, and the option that may be
        meant.
    """
    checks = {**_CHECKS, **replacements}

    def decorate(init):
        signature = add_common_options(inspect.signature(init))

        @functools.wraps(init)
        def checked(self, *args, **kwargs):
            bound = _bound(signature, type(self).__name__, self, *args, **kwargs)
            bound.apply_defaults()
            for argument, value in bound.arguments.items():
                require(type(self).__name__, argument, value, checks.get(argument, anything))
            init(self, *args, **kwargs)

        checked.__signature__ = signature  # pyrefly: ignore
        return checked

    return decorate


def _bound(
    signature: inspect.Signature, name: str, /, *args: Any, **kwargs: Any
) -> inspect.BoundArguments:
    """The arguments by name; raises TypeError if one is missing or unknown."""
    options = [option for option in signature.parameters if option != "self"]
    for option in kwargs:
        if option not in options:
            meant = [o for o in _NAMES_ELSEWHERE.get(option, ()) if o in options]
            meant = meant or difflib.get_close_matches(option, options, n=1)
            hint = f"; did you mean {meant[0]!r}?" if meant else "."
            listed = ", ".join(options)
            raise TypeError(f"{name}: no option is called {option!r}{hint} There are {listed}")
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        example = ", such as rngs=nnx.Rngs(0)" if "'rngs'" in str(error) else ""
        raise TypeError(f"{name}: {error}{example}") from None
