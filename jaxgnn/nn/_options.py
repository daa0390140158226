"""What layers ask of their options: when they are made, not when they are first called."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, get_args

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.ops._core.activations import ACTIVATIONS
from jaxgnn.ops._dense.reference.fused_linear import PRECISIONS

# Of a value: None if it will do, else what it should have been.
type Check = Callable[[Any], str | None]


def one_of(*choices: Any) -> Check:
    """One of these; of other types than text only itself, so that 1 is not True."""

    def check(value: Any) -> str | None:
        known = any(value is c or (isinstance(c, str) and _equals(value, c)) for c in choices)
        *most, last = map(repr, choices)
        return None if known else f"{', '.join(most)} or {last}"

    return check


def named_one_of(*names: str) -> Check:
    """One of many names."""
    return lambda value: None if one_of(*names)(value) is None else f"one of {', '.join(names)}"


def or_none(check: Check) -> Check:
    """None, or what another check wants."""

    def either(value: Any) -> str | None:
        expected = None if value is None else check(value)
        return None if expected is None else f"None or {expected}"

    return either


def either_of(*checks: Check) -> Check:
    """What one of several checks wants."""

    def either(value: Any) -> str | None:
        expected = [check(value) for check in checks]
        return None if None in expected else ", or ".join(map(str, expected))

    return either


def instance_of(kind: type, expected: str) -> Check:
    """An object of a class."""
    return lambda value: None if isinstance(value, kind) else expected


def anything(value: Any) -> None:
    """Whatever it is: for what a layer checks by itself."""


def at_least(least: int) -> Check:
    """A whole number from ``least`` on."""

    def check(value: Any) -> str | None:
        if not is_integer(value):
            return f"an int of at least {least}"
        return None if value >= least else f"at least {least}"

    return check


def is_integer(value: Any) -> bool:
    """Whether it is a whole number, and not True or False."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def function(value: Any) -> str | None:
    """Something to call."""
    return None if callable(value) else "a function or a module"


def number(value: Any) -> str | None:
    """A finite number."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return None if is_number and math.isfinite(value) else "a finite number"


def rate(value: Any) -> str | None:
    """A probability below one."""
    return None if number(value) is None and 0 <= value < 1 else "in [0, 1)"


def floating(value: Any) -> str | None:
    """A floating dtype, or its name."""
    expected = "a floating dtype"
    try:
        return None if jnp.issubdtype(jnp.dtype(value), jnp.floating) else expected
    except TypeError:
        return expected


flag = instance_of(bool | np.bool_, "True or False")
activation = one_of(*ACTIVATIONS)
any_activation = either_of(activation, function)

# By the names that options have in every layer.
_CHECKS: Mapping[str, Check] = {
    "aggregation": one_of("sum", "mean"),
    "alpha": number,
    "alpha_init": number,
    "attention_mode": one_of(*get_args(ops.AttentionMode)),
    "beta": number,
    "bias_init": function,
    "by": one_of("value", "magnitude"),
    "combiner": or_none(function),
    "concat": flag,
    "coupler_layers": at_least(1),
    "dropout": rate,
    "dtype": or_none(floating),
    "dynamic": flag,
    "early_stop": or_none(at_least(0)),
    "edge_dropout": rate,
    "edge_features": at_least(0),
    "features_argument": at_least(0),
    "gradient": one_of("exact", "implicit"),
    "heads": at_least(1),
    "identity": number,
    "implementation": one_of(None, *get_args(ops.Name)),
    "initial": number,
    "input_features": at_least(0),
    "keep_outputs": flag,
    "kernel_init": function,
    "kernel_mode": one_of("auto", "maxk", "dense"),
    "layer": function,
    "messages": function,
    "mixing": one_of("sinkhorn", "permutations"),
    "mlp": or_none(function),
    "negative_slope": number,
    "norm": flag,
    "normalization": one_of("mean", "sym"),
    "num_experts": at_least(1),
    "num_hyperedges": or_none(at_least(0)),
    "num_layers": at_least(1),
    "num_steps": at_least(1),
    "num_streams": at_least(1),
    "param_dtype": floating,
    "path": one_of(*get_args(ops.HypergraphPath)),
    "precision": one_of(*PRECISIONS),
    "reduce": one_of(*get_args(ops.Reduce)),
    "residual": flag,
    "rngs": instance_of(nnx.Rngs, "an nnx.Rngs, such as nnx.Rngs(0)"),
    "scan_layers": flag,
    "use_attention": flag,
    "use_bias": flag,
    "use_linear_bias": flag,
    "use_scale": flag,
    "weighting": one_of(*get_args(ops.Weighting)),
}


def checked_options[M: nnx.Module, **P](
    **own: Check,
) -> Callable[[Callable[Concatenate[M, P], None]], Callable[Concatenate[M, P], None]]:
    """Decorator of an ``__init__``: refuses options that are not as their names say.

    Args:
      **own: checks of this layer, of options that mean something else in others.

    Raises:
      ValueError: names the layer, the option, what was expected and what came.
    """
    checks = {**_CHECKS, **own}

    def decorate(init):
        signature = inspect.signature(init)

        @functools.wraps(init)
        def checked(self, *args, **kwargs):
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            for argument, value in bound.arguments.items():
                expected = checks[argument](value) if argument in checks else None
                if expected is not None:
                    raise bad_input(type(self).__name__, argument, expected, repr(value))
            init(self, *args, **kwargs)

        return checked

    return decorate


def _equals(value: Any, choice: str) -> bool:
    return isinstance(value, str) and value == choice
