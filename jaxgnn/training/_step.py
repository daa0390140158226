"""One training step as a pure, compiled function of the model's arrays.

Several devices may share the examples of a batch (``DataParallel``).
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgnn._errors import bad_input

PyTree = Any
LossFn = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]

_EVERYWHERE = PartitionSpec()


class ModelState(NamedTuple):
    """The arrays of a model, as nested dicts: the trained ones, and the rest.

    They are plain dicts instead of ``nnx.State``. JAX flattens dicts without calling Python, which
    saves time at every step of small models, and their checkpoints do not depend on Flax's classes.
    """

    params: PyTree
    other: PyTree


class TrainState(NamedTuple):
    """All state that a training step changes.

    Attributes:
      model: Arrays of the model that is trained.
      optimizer: State of the optimizer.
      step: int32 [], number of updates done.
      average: A moving average of the parameters, in float32 where their dtype is shorter; or None.
      remainder: The rounding error of the average, too small for its dtype, which is added to it;
        None without an average.
    """

    model: ModelState
    optimizer: PyTree
    step: jax.Array
    average: PyTree | None = None
    remainder: PyTree | None = None

    @property
    def averaged_model(self) -> ModelState:
        """The model to evaluate, with the average of its parameters if there is one."""
        if self.average is None:
            return self.model
        return ModelState(rounded(self.average, self.model.params), self.model.other)


def split_model[M: nnx.Module](model: M) -> tuple[nnx.GraphDef[M], ModelState]:
    """Splits a model into its static structure and its arrays."""
    graphdef, params, other = nnx.split(model, nnx.Param, ...)
    return graphdef, ModelState(nnx.to_pure_dict(params), nnx.to_pure_dict(other))


def merge_model[M: nnx.Module](graphdef: nnx.GraphDef[M], state: ModelState) -> M:
    """Builds a model from its structure and arrays. The arrays are shared, not copied."""
    return nnx.merge(graphdef, state.params, state.other)


def start_state(
    model: ModelState, optimizer: optax.GradientTransformation, *, averaged: bool = False
) -> TrainState:
    """The state before the first step, on copies of the arrays, as steps donate their input."""

    def copied(tree):
        # Weakly typed parameters (``jnp.full((3,), 0.5)``) become strong in the first update, and
        # the second step would be traced again.
        return jax.tree.map(lambda array: jnp.copy(strong(jnp.asarray(array))), owned(tree))

    model = copied(model)
    # Some optimizers keep the initial parameters, and an array may not be donated twice.
    optimizer_state = copied(optimizer.init(model.params))
    average = jax.tree.map(jnp.copy, averages(model.params)) if averaged else None
    remainder = jax.tree.map(jnp.zeros_like, average)
    step = jnp.zeros((), jnp.int32)
    return _on_one_mesh(TrainState(model, optimizer_state, step, average, remainder))


def _on_one_mesh(state: TrainState) -> TrainState:
    """Puts the other arrays on all devices of the parameters, as a step does.

    Otherwise the second step would be compiled again for the new placement.
    """
    shardings = [leaf.sharding for leaf in jax.tree.leaves(state.model.params)]
    meshes = [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]
    if not meshes:
        return state
    everywhere = NamedSharding(meshes[0], PartitionSpec())
    return jax.tree.map(
        lambda a: a if isinstance(a.sharding, NamedSharding) else jax.device_put(a, everywhere),
        state,
    )


def averages(params: PyTree) -> PyTree:
    """``params`` in the dtypes of their average; a short dtype would round away small updates."""
    return jax.tree.map(lambda p: p.astype(p.dtype if p.dtype.itemsize >= 4 else "float32"), params)


def rounded(average: PyTree, params: PyTree) -> PyTree:
    """An average in the dtypes of ``params``."""
    return jax.tree.map(lambda a, p: a.astype(p.dtype), average, params)


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """Devices, a mesh of one axis, that share the examples of a batch."""

    mesh: Mesh

    def __post_init__(self):
        if not isinstance(self.mesh, Mesh):
            raise bad_input("fit", "mesh", "a jax.sharding.Mesh", type(self.mesh).__name__)
        if len(self.mesh.axis_names) != 1:
            raise bad_input("fit", "mesh", "a mesh of one axis", tuple(self.mesh.axis_names))

    @property
    def axis(self) -> str:
        """Name of the axis."""
        return self.mesh.axis_names[0]

    def replicate[Tree](self, tree: Tree) -> Tree:
        """Puts arrays on every device."""
        return jax.device_put(tree, NamedSharding(self.mesh, _EVERYWHERE))

    def divide(self, batch: PyTree) -> PyTree:
        """Puts a part of the examples on each device, and scalars on all.

        Raises:
          ValueError: The examples of an array cannot be divided; the message names it.
        """
        for name, leaf in named(batch).items():
            if np.ndim(leaf) and np.shape(leaf)[0] % self.mesh.size:
                array, devices = f"batch{'.' * bool(name)}{name}", self.mesh.size
                expected = f"of a leading axis divisible by the {devices} devices of the mesh"
                raise bad_input("fit", array, expected, f"shape {np.shape(leaf)}")
        shardings = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self._specs(batch))
        return jax.device_put(batch, shardings)

    def on_each(
        self,
        gradient_of: Callable[..., Any],
        params: PyTree,
        other: PyTree,
        batch: PyTree,
        key: jax.Array,
    ) -> Any:
        """Returns ``gradient_of(params, other, batch, key)``, from each device's part of the batch.

        It is ``((loss, (values, other)), gradients)``, as ``jax.value_and_grad`` returns it. All
        parts have the same number of examples, so that means over parts are means over examples.
        State that differs between the devices, such as batch statistics, is averaged.
        """

        def of_part(params: PyTree, other: PyTree, batch: PyTree, key: jax.Array) -> Any:
            if self.mesh.size > 1:
                # Each part draws its own dropout.
                key = jax.random.fold_in(key, jax.lax.axis_index(self.axis))
            # The gradient is that of the part; its mean is taken once, at the end.
            params = jax.lax.pcast(params, self.axis, to="varying")
            return jax.tree.map(self._mean, gradient_of(params, other, batch, key))

        specs = (_EVERYWHERE, _EVERYWHERE, self._specs(batch), _EVERYWHERE)
        mapped = jax.shard_map(of_part, mesh=self.mesh, in_specs=specs, out_specs=_EVERYWHERE)
        return mapped(params, other, batch, key)

    def _specs(self, batch: PyTree) -> PyTree:
        divided = PartitionSpec(self.axis)
        return jax.tree.map(lambda leaf: divided if np.ndim(leaf) else _EVERYWHERE, batch)

    def _mean(self, leaf: jax.Array) -> jax.Array:
        """Averages over the devices a value that differs between them."""
        if self.axis not in jax.typeof(leaf).mat.varying:
            return leaf
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(
                f"fit: loss_fn makes state of {leaf.dtype} from the examples of a part of the "
                "batch, which has no mean over the devices of a mesh"
            )
        return jax.lax.pmean(leaf, self.axis)


def on_one_device[Tree](tree: Tree) -> Tree:
    """Takes the first device's copy, in this process, of arrays that are on several devices."""
    return jax.tree.map(
        lambda a: a.addressable_data(0) if len(a.sharding.device_set) > 1 else a, tree
    )


def make_step(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    loss_fn: LossFn,
    seed: int,
    ema_decay: float = 0.0,
    parallel: DataParallel | None = None,
) -> jax.stages.Wrapped:
    """Compiles ``step(state, batch, static) -> (state, values)``, which donates ``state``.

    ``static`` is a tuple of hashable values, passed to ``loss_fn``; each new one retraces.
    ``values`` are the loss and the metrics of ``loss_fn``, computed before the update.
    """
    update = make_update(graphdef, optimizer, loss_fn, ema_decay, parallel)

    def step(
        state: TrainState, batch: PyTree, static: tuple[Hashable, ...]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        return update(state, batch, jax.random.key(seed), static)

    return jax.jit(step, static_argnames="static", donate_argnames="state")


def make_update(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    loss_fn: LossFn,
    ema_decay: float = 0.0,
    parallel: DataParallel | None = None,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Returns ``update(state, batch, key, static) -> (state, values)``, not compiled.

    ``key`` is the random key of the whole run, from which the key of each step is derived.
    """

    def update(
        state: TrainState, batch: PyTree, key: jax.Array, static: tuple[Hashable, ...]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        number = state.step + 1
        key = jax.random.fold_in(key, number)

        def loss_of(params: PyTree, other: PyTree, batch: PyTree, key: jax.Array):
            model = merge_model(graphdef, ModelState(params, other))
            returned = loss_fn(model, batch, nnx.Rngs(key), *static)
            if not isinstance(returned, tuple) or len(returned) != 2:
                got = type(returned).__name__
                raise ValueError(f"fit: loss_fn: expected to return (loss, metrics), got {got}")
            values = _named_scalars(*returned)
            return returned[0], (values, split_model(model)[1].other)

        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        if parallel is not None:
            gradient_of = functools.partial(parallel.on_each, gradient_of)
        (_, (values, other)), grads = gradient_of(*state.model, batch, key)
        # Optax mixes dtypes (Adam's decay ** count), which a strict JAX would refuse.
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = optimizer.update(grads, state.optimizer, state.model.params)
            params = optax.apply_updates(state.model.params, updates)
        average = None, None
        if state.average is not None:
            average = _moved_average(state.average, state.remainder, params, number, ema_decay)
        new = TrainState(ModelState(params, other), optimizer_state, number, *average)
        return _like(new, state), values

    return update


def jit_apply[T](fn: Callable[..., T]) -> Callable[..., T]:
    """Compiles ``fn(model, *arrays, **static)`` once, for a model whose parameters change.

    The model is in its own mode: that of ``fit``'s result is usually training mode.

    Args:
      fn: A function of an NNX module, pytrees of arrays (positional, traced) and hashable
        values (by keyword, static). It must not capture large arrays: pass them. NumPy arrays
        are copied at each call; put arrays that are used repeatedly on the device.

    Returns:
      A function with the same arguments. It retraces when the model's structure changes
      (``model.eval()`` counts), when a shape or dtype changes, or with a new static value. Changes
      of the model by ``fn`` are dropped.

    Example:
      >>> predict = jit_apply(lambda model, x: model(x).argmax(-1))
      >>> model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
      >>> predict(model, jnp.ones((5, 3))).shape
      (5,)
    """

    @functools.partial(jax.jit, static_argnames=("graphdef", "static"))
    def compiled(
        graphdef: nnx.GraphDef,
        state: ModelState,
        arrays: tuple[PyTree, ...],
        static: tuple[tuple[str, Hashable], ...],
    ) -> T:
        return fn(merge_model(graphdef, state), *arrays, **dict(static))

    @functools.wraps(fn)
    def apply(model: nnx.Module, *arrays: PyTree, **static: Hashable) -> T:
        graphdef, state = split_model(model)
        return compiled(graphdef, owned(state), owned(arrays), tuple(sorted(static.items())))

    return apply


def _moved_average(
    average: PyTree, remainder: PyTree, params: PyTree, number: jax.Array, decay: float
) -> tuple[PyTree, PyTree]:
    """The average after update ``number``, counted from 1, and its remainder.

    At first it is the mean of all parameters so far, so that the initial ones have no influence.

    With a decay near 1, an update soon adds less than the last digit of the average. The average
    would then stop moving, or accumulate a rounding error at each step. So the average is the sum
    of two numbers, of which the second holds the rounding error of the first.
    """
    share = jnp.maximum(1.0 - decay, 1.0 / number.astype(jnp.float32))

    def addend(a, r, p):
        return share.astype(a.dtype) * ((p - a) - r) + r

    def not_added(a, added, total):
        # The error of a + added; exact, whichever is larger (Knuth's two-sum).
        back = total - a
        return (a - (total - back)) + (added - back)

    added = jax.tree.map(addend, average, remainder, averages(params))
    total = jax.tree.map(jnp.add, average, added)
    return total, jax.tree.map(not_added, average, added, total)


def _like(new: TrainState, old: TrainState) -> TrainState:
    """Checks that ``new`` has the structure, shapes and dtypes of ``old``, and returns it."""
    difference = first_difference(types(new), types(old))
    if difference:
        name, found, expected = difference
        raise ValueError(
            f"fit: a step turned {name} from {expected} into {found}; it must keep its place, "
            "shape and dtype"
        )
    return jax.tree.map(strong, new)


def _named_scalars(loss: jax.Array, metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    reserved = {"loss", "step"} & metrics.keys()
    if reserved:
        raise ValueError(f"fit: loss_fn returned a metric under the reserved name {reserved.pop()}")
    values = {"loss": loss, **metrics}
    for name, value in values.items():
        if jnp.shape(value) != ():
            raise ValueError(f"fit: loss_fn's {name}: expected a scalar, got {jnp.shape(value)}")
    return values


# -- pytrees of arrays ---------------------------------------------------------------------------


def named(tree: PyTree) -> dict[str, jax.Array]:
    """The leaves of ``tree`` in order, by dotted names such as ``params.layers.0.kernel``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def types(tree: PyTree) -> dict[str, str]:
    """Dtype and shape of the leaves of ``tree`` by name, such as ``float32[3, 4]``."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in named(tree).items()}


def first_difference(
    found: dict[str, str], expected: dict[str, str]
) -> tuple[str, str, str] | None:
    """Name, found and expected type where two results of ``types`` differ first, or None."""
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            return name, found.get(name, "absent"), expected.get(name, "absent")
    return None


@jax.jit
def all_finite(tree: PyTree) -> jax.Array:
    """Bool []: no floating-point leaf of ``tree`` holds a NaN or an infinity."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]))


@jax.jit
def copy_arrays[T](tree: T) -> T:
    """Copies a pytree of arrays, so that donating one does not delete the other."""
    return jax.tree.map(jnp.copy, tree)


def owned(tree: PyTree) -> PyTree:
    """``tree`` with copies of its NumPy arrays, safe to pass to an asynchronous program.

    JAX on a CPU reads an aligned NumPy array in place, and a call returns before its program has
    run. Refilling the array, as many data readers do, would change the arguments of an earlier
    call. JAX's own arrays do not change, and are not copied.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return tree
    copies = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, copies)


def is_key(array: jax.Array) -> bool:
    """Whether ``array`` holds random keys, which have no numeric dtype."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def strong(array: jax.Array) -> jax.Array:
    """``array`` without JAX's weak type, which would make jit trace again."""
    return array if is_key(array) else jax.lax.convert_element_type(array, array.dtype)
