"""Inputs and float64 oracle of the fused linear layers."""

import functools

import jax
import jax.numpy as jnp

from jaxgnn.testing import assert_close, random_array, to_float64

# As JAX has them, independently of the table that is tested.
VALUES = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "squared_relu": lambda z: jax.nn.relu(z) ** 2,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
}
DTYPES = ("float32", "bfloat16", "float16")


def features(shape, dtype="float32"):
    return random_array(shape, dtype, seed=1)


def layer(before, after, dtype="float32", seed=2):
    """Kernel and bias; outputs have about the size of inputs."""
    kernel = random_array((before, after), dtype, seed, scale=before**-0.5)
    return kernel, random_array((after,), dtype, seed + 100, scale=0.5)


def layers(widths, dtype="float32"):
    """Kernels and biases of a multilayer perceptron, the second layer without a bias."""
    made = [layer(*widths[i : i + 2], dtype, seed=10 + i) for i in range(len(widths) - 1)]
    kernels, biases = zip(*made, strict=True)
    return kernels, tuple(None if i == 1 else b for i, b in enumerate(biases))


def linear(x, kernel, bias, activation):
    """The formula."""
    z = jnp.einsum("...i,io->...o", x, kernel)
    return VALUES[activation](z if bias is None else z + bias)


def mlp(x, kernels, biases, activation, rounded_to):
    """The formula, hidden layers rounded as the op does, so that signs agree."""
    for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        last = i == len(kernels) - 1
        x = linear(x, kernel, bias, None if last else activation)
        if not last:
            # A compiler may leave out a conversion there and back.
            kept = jnp.finfo(rounded_to)
            rounded = jax.lax.reduce_precision(x, kept.nexp, kept.nmant)
            x = x + jax.lax.stop_gradient(rounded - x)
    return x


def check(functions, oracles, inputs, dtype, reduction_length, strict=None, roundings=1):
    """Values and all gradients of several functions of the same inputs, each kind one program.

    Args:
      functions: what is tested, by name.
      oracles: the same maths, by the same names; compiled once for each table of them.
      inputs: positional arguments of each.
      dtype: of all results.
      reduction_length: terms in the longest sum.
      strict: by name, which results (value, then gradients) are sums of terms that no rounding has
        touched.
      roundings: of each term of the others.
    """
    shapes = [jax.eval_shape(f, *inputs) for f in functions.values()]
    dys = [random_array(s.shape, s.dtype, seed=90 + i) for i, s in enumerate(shapes)]
    made = _values_and_gradients(tuple(functions.values()))(inputs, dys)
    with jax.enable_x64(True):
        exact = _values_and_gradients(tuple(oracles.values()))(*to_float64((inputs, dys)))
    for name, *results in zip(functions, made, exact, strict=True):
        for i, (a, e) in enumerate(zip(*map(jax.tree.leaves, results), strict=True)):
            assert a.dtype == dtype
            options = {"reduction_length": reduction_length, "err_msg": f"{name}, result {i}"}
            options["roundings"] = roundings
            untouched = strict is not None and i in strict[name]
            assert_close(a, e, operands=None if untouched else dtype, **options)


@functools.lru_cache(maxsize=8)
def _values_and_gradients(functions):
    def run(inputs, dys):
        pairs = (jax.vjp(function, *inputs) for function in functions)
        return [(y, pull_back(dy)) for (y, pull_back), dy in zip(pairs, dys, strict=True)]

    # Small programs: what compiling them well would save is less than it takes.
    quick = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(run, compiler_options=quick)
