"""Weights of PyTorch Geometric in the layers of this library, and back; torch is not needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn._errors import bad_input
from jaxgnn.interop._pyg_names import KINDS, Form, Ignored, Match, Part, row_of


def from_pyg[M: nnx.Module](state_dict: Mapping[str, Any], layer: M, *, prefix: str = "") -> M:
    """Sets the parameters of a layer or network from a state dict of PyTorch Geometric.

    The layer then computes what the one of PyTorch Geometric does, if its options mean the same:
    "Coming from PyTorch Geometric" in the docs has a table of layers and of what differs. It is
    made as always, with the widths, heads and features of edges of the other.

    - **Layers** with a row in that table are read by the names of release 2 of PyTorch Geometric.
    - **Networks** of your own are read by the names of their attributes: ``self.conv1`` here is
      ``conv1.`` there. An ``nnx.List`` is a ``ModuleList``, an ``nnx.Sequential`` a ``Sequential``.
    - **``models.MaxKGNN``** reads checkpoints of the published MaxK-GNN of the same ``kind``,
      whose layers are DGL's: https://github.com/xiexi51/MaxK-GNN.

    What a layer there does without becomes zero: a bias, or the matrix of a ``SAGEConv`` with
    ``root_weight=False``. Nothing is set unless everything fits.

    Args:
      state_dict: arrays by name, as ``{name: tensor.cpu().numpy() for name, tensor in
        module.state_dict().items()}`` makes them, or anything that numpy reads, such as tensors of
        torch on the host.
      layer: what receives the parameters, in place. They keep the dtypes that they have.
      prefix: only names that begin so are read, for example ``"encoder.conv1."``.

    Returns:
      The same ``layer``.

    Raises:
      ValueError: if a name belongs to no parameter, a parameter finds no array, an array is of
        another shape or not of numbers, or two arrays of one parameter differ. The error says which
        names and shapes are meant.

    Example:
      >>> import numpy as np
      >>> from flax import nnx
      >>> from jaxgnn import nn
      >>> from jaxgnn.interop import from_pyg
      >>> state_dict = {"lin.weight": np.ones((2, 3)), "bias": np.array([0.5, -0.5])}
      >>> layer = from_pyg(state_dict, nn.GCNConv(3, 2, rngs=nnx.Rngs(0)))
      >>> layer.bias[...].tolist()
      [0.5, -0.5]
    """
    if not isinstance(state_dict, Mapping):
        expected = "a mapping of names to arrays, such as module.state_dict()"
        raise bad_input("from_pyg", "state_dict", expected, type(state_dict).__name__)
    _check_layer("from_pyg", layer)
    given = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    names = _Names(layer, prefix)
    _check_all_are_used(layer, names, given)
    arrays = _arrays(names, given)
    zeros = {id(place.variable) for place in names.places.values() if place.zero}
    _check_all_are_set("from_pyg", layer, names, {*arrays, *zeros})
    for variable in _variables(layer).values():
        array = arrays.get(id(variable), np.zeros(variable.shape))
        variable[...] = jnp.array(array, variable.dtype)  # a copy: the caller's may change
    return layer


def to_pyg(layer: nnx.Module) -> dict[str, np.ndarray]:
    """Makes the state dict of PyTorch Geometric from a layer or network.

    The names are those that ``from_pyg`` reads, and all biases that the layer has are there. Torch
    loads it by ``module.load_state_dict({name: torch.from_numpy(array) for name, array in
    state_dict.items()})``.

    Args:
      layer: a layer that ``from_pyg`` reads, or a network of such layers.

    Returns:
      Copies of the arrays by name, with the dtypes of the parameters.

    Raises:
      ValueError: if the layer has a parameter that PyTorch Geometric lacks.

    Example:
      >>> from flax import nnx
      >>> from jaxgnn import nn
      >>> from jaxgnn.interop import to_pyg
      >>> {k: v.shape for k, v in to_pyg(nn.SAGEConv(8, 4, rngs=nnx.Rngs(0))).items()}
      {'lin_l.weight': (4, 8), 'lin_r.weight': (4, 8), 'lin_l.bias': (4,)}
    """
    _check_layer("to_pyg", layer)
    names = _Names(layer, "")
    written = {name: place for name, place in names.places.items() if not place.older}
    _check_all_are_set("to_pyg", layer, names, {id(place.variable) for place in written.values()})
    return {
        name: np.array(place.form.there(np.asarray(place.variable[...])), order="C")
        for name, place in written.items()
    }


class _Place(NamedTuple):
    """Where an array of a state dict belongs.

    Attributes:
      variable: the variable that it sets.
      ours: the name of the variable.
      form: how an array there becomes one here.
      zero: whether the variable is zero where a state dict has none of its names.
      older: whether the name is that of an earlier release.
    """

    variable: nnx.Variable
    ours: str
    form: Form
    zero: bool
    older: bool

    def shape_there(self) -> tuple[int, ...]:
        """The shape that the array has in a state dict."""
        return self.form.there(np.broadcast_to(0, self.variable.shape)).shape


class _Names:
    """All names that a state dict of a layer may have.

    Args:
      layer: the layer or network.
      prefix: what all names begin with.

    Attributes:
      places: where the array of a name belongs.
      ignored: names, and prefixes that end in a dot, of arrays that are of no use here.
      lacking: names and prefixes of what the layer lacks, with the names it would have here.
    """

    def __init__(self, layer: nnx.Module, prefix: str):
        self.places: dict[str, _Place] = {}
        self.ignored: list[str] = []
        self.lacking: dict[str, str] = {}
        self._read(layer, "", prefix, older=False)

    def _read(self, module: nnx.Module, ours: str, theirs: str, older: bool) -> None:
        """Adds the names of a module, to which the two paths lead."""
        for entry in row_of(module):
            name = theirs + entry.theirs
            if isinstance(entry, Ignored):
                self.ignored.append(name)
            elif isinstance(entry, Part):
                self._read_part(module, entry, ours, f"{name}.", older or entry.older)
            else:
                self._read_match(module, entry, ours, name, older or entry.older)

    def _read_part(
        self, module: nnx.Module, entry: Part, ours: str, theirs: str, older: bool
    ) -> None:
        part = _at(module, entry.ours)
        if isinstance(part, nnx.Module):
            self._read(part, f"{ours}{entry.ours}.", theirs, older)
        elif entry.unused:
            self.ignored.append(theirs)
        else:
            self.lacking[theirs] = ours + entry.ours

    def _read_match(
        self, module: nnx.Module, entry: Match, ours: str, name: str, older: bool
    ) -> None:
        for path in filter(None, (entry.ours, entry.shared)):
            variable = _at(module, path)
            if variable is not None:
                self.places[name] = _Place(variable, ours + path, entry.form, entry.zero, older)
                return
        self.lacking[name] = ours + entry.ours


def _at(module: Any, path: str) -> Any:
    """What attributes and places in lists lead to; None where one is None or missing."""
    for step in path.split("."):
        if not step.isdigit():
            module = getattr(module, step, None)
        else:
            module = module[int(step)] if int(step) < len(module) else None
        if module is None:
            return None
    return module


def _covered(name: str, names: Iterable[str]) -> str | None:
    """The one of some names, or of prefixes that end in a dot, that a name is or begins with."""
    return next((n for n in names if name == n or (n.endswith(".") and name.startswith(n))), None)


def _variables(layer: nnx.Module) -> dict[str, nnx.Variable]:
    """The variables of a layer that a state dict holds, by name."""
    return {
        ".".join(map(str, path)): node
        for path, node in nnx.iter_graph(layer)
        if isinstance(node, KINDS)
    }


def _arrays(names: _Names, given: Mapping[str, Any]) -> dict[int, np.ndarray]:
    """The arrays that are given, in their forms here, by the identities of their variables.

    Raises:
      ValueError: if an array has another shape, is not of numbers, or differs from another one of
        the same variable.
    """
    arrays: dict[int, np.ndarray] = {}
    sources: dict[int, str] = {}
    for name, value in given.items():
        if name not in names.places:
            continue
        place = names.places[name]
        array = place.form.here(_read_array(name, value, place))
        key = id(place.variable)
        if key in arrays and not np.array_equal(arrays[key], array, equal_nan=True):
            expected = f"equal to {sources[key]!r}, as {place.ours} is both"
            raise bad_input("from_pyg", f"state_dict[{name!r}]", expected, "another array")
        arrays[key], sources[key] = array, name
    return arrays


def _read_array(name: str, value: Any, place: _Place) -> np.ndarray:
    """The array as it is there, after checks of its shape and dtype."""
    where = f"state_dict[{name!r}]"
    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError, ValueError) as error:
        expected = "an array that numpy reads, such as tensor.detach().cpu().numpy()"
        raise bad_input("from_pyg", where, expected, f"{type(value).__name__}: {error}") from error
    expected = place.shape_there()
    if array.shape != expected:
        ours = f"of shape {expected}, for {place.ours} of shape {tuple(place.variable.shape)}"
        raise bad_input("from_pyg", where, ours, f"shape {array.shape}")
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise bad_input("from_pyg", where, "of real numbers", f"dtype {array.dtype}")
    return array


def _check_all_are_used(layer: nnx.Module, names: _Names, given: Mapping[str, Any]) -> None:
    """Raises ValueError if a name that is given belongs to no variable of the layer."""
    known = {*names.places, *names.ignored}
    unused = [name for name in given if _covered(name, known) is None]
    if not unused:
        return
    notes = {name: _covered(name, names.lacking) for name in unused}
    listed = ", ".join(
        repr(name) + (f" ({names.lacking[key]}, which this layer was made without)" if key else "")
        for name, key in notes.items()
    )
    expected = f"of names that {type(layer).__name__} has parameters for"
    raise bad_input("from_pyg", "state_dict", expected, listed)


def _check_all_are_set(where: str, layer: nnx.Module, names: _Names, found: set[int]) -> None:
    """Raises ValueError if a variable of the layer has no array, or no name."""
    for ours, variable in _variables(layer).items():
        if id(variable) in found:
            continue
        theirs = [name for name, p in names.places.items() if p.variable is variable]
        if not theirs:
            expected = "without parameters that PyTorch Geometric lacks"
            raise bad_input(where, "layer", expected, f"{ours} of {type(layer).__name__}")
        expected = f"with {' or '.join(map(repr, theirs))}, for {ours} of {type(layer).__name__}"
        raise bad_input(where, "state_dict", expected, "no such name")


def _check_layer(where: str, layer: Any) -> None:
    if not isinstance(layer, nnx.Module):
        expected = "a layer or a network, which is an nnx.Module"
        got = f"the class {layer.__name__}" if isinstance(layer, type) else type(layer).__name__
        raise bad_input(where, "layer", expected, got)
