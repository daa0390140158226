"""Conversion of weights between PyTorch Geometric and this library; torch is not needed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn._errors import bad_input
from jaxgnn.interop._pyg_names import (
    KINDS,
    SAME,
    Form,
    Ignored,
    InOrder,
    Number,
    Part,
    row_of,
)


def from_pyg[M: nnx.Module](state_dict: Mapping[str, Any], layer: M, *, prefix: str = "") -> M:
    """Sets the parameters of a layer or network from a state dict of PyTorch Geometric.

    The layer then computes the same as that of PyTorch Geometric, if their options correspond:
    "Coming from PyTorch Geometric" in the docs has a table of layers and of differences. Construct
    it as usual, with the same widths, heads and features of edges.

    - **Layers** with a row in that table are read by the names of release 2 of PyTorch Geometric.
    - **Networks** of your own are read by the names of their attributes: ``self.conv1`` here is
      ``conv1.`` there. An ``nnx.List`` is a ``ModuleList``, an ``nnx.Sequential`` a ``Sequential``.
    - **``models.MaxKGNN``** reads checkpoints of the published MaxK-GNN of the same ``kind``,
      whose layers are DGL's: https://github.com/xiexi51/MaxK-GNN.

    Nothing is set unless everything fits. What a layer there does without, such as its bias, and
    the one here has, is missing from the state dict: make the layer here without it, or add zeros
    by its name, as the error says.

    Args:
      state_dict: arrays by name, such as ``{name: tensor.cpu().numpy() for name, tensor in
        module.state_dict().items()}``, or anything that numpy reads, such as tensors of torch on
        the host.
      layer: the layer or network whose parameters are set, in place. They keep their dtypes.
      prefix: only names with this prefix are read, for example ``"encoder.conv1."``.

    Returns:
      The same ``layer``.

    Raises:
      ValueError: if a name belongs to no parameter, a parameter has no array, an array has another
        shape or is not of numbers, two arrays of one parameter differ, or relations, by which
        arrays are stacked, have another order. The error lists the names and shapes.

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
    state = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    names = _Names(layer, prefix)
    _check_all_are_used("from_pyg", "state_dict", layer, names, state)
    arrays = _arrays(names, state)
    _check_all_are_set("from_pyg", layer, names, set(arrays))
    _check_orders(names, state)
    for view in {place.view.key: place.view for place in names.places.values()}.values():
        if view.key in arrays:
            view.write(arrays[view.key])
    return layer


def to_pyg(layer: nnx.Module, *, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Creates the state dict of PyTorch Geometric from a layer or network.

    The names are those that ``from_pyg`` reads, with all biases of the layer. Torch loads it by
    ``module.load_state_dict({name: torch.from_numpy(array) for name, array in
    state_dict.items()})``.

    Some layers here are several ones there: ``nn.FusedMLP`` is a ``Sequential`` and an ``MLP``, and
    ``nn.SAGEConv`` is a ``SAGEConv`` and a ``GraphConv``. Without ``names`` the first of these is
    written, for the newest release.

    Args:
      layer: a layer that ``from_pyg`` reads, or a network of such layers.
      names: the names to write, such as ``module.state_dict()`` of the module that is to load them;
        None for the usual ones. Names that ``from_pyg`` ignores, such as counters of batches, are
        left out.

    Returns:
      Copies of the arrays by name, with the dtypes of the parameters.

    Raises:
      ValueError: if the layer has a parameter that PyTorch Geometric lacks, a name belongs to no
        parameter, or a parameter has none of the names.

    Example:
      >>> from flax import nnx
      >>> from jaxgnn import nn
      >>> from jaxgnn.interop import to_pyg
      >>> {k: v.shape for k, v in to_pyg(nn.SAGEConv(8, 4, rngs=nnx.Rngs(0))).items()}
      {'lin_l.weight': (4, 8), 'lin_r.weight': (4, 8), 'lin_l.bias': (4,)}
      >>> mlp = nn.FusedMLP([4, 2], activation="relu", rngs=nnx.Rngs(0))
      >>> list(to_pyg(mlp)), list(to_pyg(mlp, names=["lins.0.weight", "lins.0.bias"]))
      (['0.weight', '0.bias'], ['lins.0.weight', 'lins.0.bias'])
    """
    _check_layer("to_pyg", layer)
    places = _Names(layer, "")
    if names is None:
        written = {name: place for name, place in places.places.items() if not place.older}
    else:
        chosen = _checked_names(names)
        _check_all_are_used("to_pyg", "names", layer, places, chosen)
        written = {name: places.places[name] for name in chosen if name in places.places}
    keys = {place.view.key for place in written.values()}
    _check_all_are_set("to_pyg", layer, places, keys)
    return {
        name: np.array(place.form.there(place.view.read()), order="C")
        for name, place in written.items()
    }


@dataclass(frozen=True)
class _Variables:
    """Variables of a layer as one array of a state dict.

    Attributes:
      variables: one; or several of one shape, along a new first axis if ``stacked``.
      at: the part of the first axis of a variable; None for all of it.
      stacked: whether there is a new axis.
    """

    variables: tuple[nnx.Variable, ...]
    at: int | None = None
    stacked: bool = False

    @property
    def pieces(self) -> tuple[tuple[int, int | None], ...]:
        """Identities of variables, with the part of the first axis."""
        return tuple((id(variable), self.at) for variable in self.variables)

    @property
    def key(self) -> Hashable:
        return self.pieces

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.variables[0].shape[self.at is not None :]
        return (len(self.variables), *shape) if self.stacked else shape

    def read(self) -> np.ndarray:
        """Returns a copy of the array."""
        whole = [variable[...] for variable in self.variables]
        arrays = [np.asarray(array if self.at is None else array[self.at]) for array in whole]
        return np.stack(arrays) if self.stacked else np.array(arrays[0], order="C")

    def write(self, array: np.ndarray) -> None:
        """Sets the variables to a copy of an array of any dtype."""
        for variable, values in zip(
            self.variables, array if self.stacked else [array], strict=True
        ):
            part = jnp.array(values, variable.dtype)
            variable[...] = part if self.at is None else variable[...].at[self.at].set(part)


@dataclass(frozen=True)
class _Field:
    """A number in a record that is an attribute of a layer, not a variable, as an array [1]."""

    layer: Any
    attribute: str
    name: str

    pieces: ClassVar[tuple[tuple[int, int | None], ...]] = ()
    shape: ClassVar[tuple[int, ...]] = (1,)

    @property
    def key(self) -> Hashable:
        return id(self.layer), self.attribute, self.name

    def read(self) -> np.ndarray:
        return np.array([getattr(getattr(self.layer, self.attribute), self.name)], np.float32)

    def write(self, array: np.ndarray) -> None:
        record = getattr(self.layer, self.attribute)
        setattr(self.layer, self.attribute, record._replace(**{self.name: float(array[0])}))


class _Place(NamedTuple):
    """Destination of an array of a state dict."""

    view: _Variables | _Field
    ours: str  # name of what the view sets
    form: Form  # how an array there becomes one here
    older: bool  # whether the name is that of an earlier release

    def shape_there(self) -> tuple[int, ...]:
        """Returns the shape that the array has in a state dict."""
        return self.form.there(np.broadcast_to(0, self.view.shape)).shape


class _Names:
    """All possible names in a state dict of a layer, behind a prefix.

    Some are prefixes themselves, which end in a dot.
    """

    def __init__(self, layer: nnx.Module, prefix: str):
        self.places: dict[str, _Place] = {}
        self.ignored: list[str] = []
        self.lacking: dict[str, str] = {}  # missing parts of the layer, with their names here
        self.orders: list[InOrder] = []
        self._read(layer, "", prefix, older=False)

    def _read(self, module: nnx.Module, ours: str, theirs: str, older: bool) -> None:
        """Adds the names of a module, given by its paths here and there."""
        for entry in row_of(module):
            if isinstance(entry, InOrder):
                named = tuple(theirs + name for name in entry.theirs)
                self.orders.append(entry._replace(theirs=named))
                continue
            name = theirs + entry.theirs
            if isinstance(entry, Number):
                view = _Field(module, *entry.ours.split("."))
                self.places[name] = _Place(view, ours + entry.ours, SAME, older)
            elif isinstance(entry, Ignored):
                self.ignored.append(name)
            elif isinstance(entry, Part):
                part = _module_at(module, entry.ours)
                if isinstance(part, nnx.Module):
                    path = f"{ours}{entry.ours}."
                    self._read(part, path, f"{name}.", older=older or entry.older)
                elif entry.unused:
                    self.ignored.append(f"{name}.")
                else:
                    self.lacking[f"{name}."] = ours + entry.ours
            else:
                for path in filter(None, (entry.ours, entry.shared)):
                    view = _view(module, path, entry.at)
                    if view is not None:
                        is_older = older or entry.older
                        self.places[name] = _Place(view, ours + path, entry.form, is_older)
                        break
                else:
                    self.lacking[name] = ours + entry.ours


def _module_at(module: Any, path: str) -> Any:
    """Follows a path of attributes and list indices; None if one is None or missing."""
    for step in path.split("."):
        if not step.isdigit():
            module = getattr(module, step, None)
        else:
            module = module[int(step)] if int(step) < len(module) else None
        if module is None:
            return None
    return module


def _view(module: nnx.Module, path: str, at: int | None) -> _Variables | None:
    """Returns the view of a path and an index on the first axis; None if the layer lacks it."""
    items, starred, of_each = path.partition(".*.")
    if starred:
        return _Variables(
            tuple(_module_at(item, of_each) for item in _module_at(module, items)), stacked=True
        )
    variable = _module_at(module, path)
    return None if variable is None else _Variables((variable,), at)


def _covered(name: str, names: Iterable[str]) -> str | None:
    """Returns the first of some names, or of prefixes that end in a dot, that matches a name."""
    return next((n for n in names if name == n or (n.endswith(".") and name.startswith(n))), None)


def _arrays(names: _Names, state: Mapping[str, Any]) -> dict[Hashable, np.ndarray]:
    """Converts the given arrays to their forms here, by the keys of their views."""
    arrays: dict[Hashable, np.ndarray] = {}
    sources: dict[Hashable, str] = {}
    for name, value in state.items():
        if name not in names.places:
            continue
        place = names.places[name]
        array = place.form.here(_read_array(name, value, place))
        key = place.view.key
        if key in arrays and not np.array_equal(arrays[key], array, equal_nan=True):
            expected = f"equal to {sources[key]!r}, as {place.ours} is both"
            raise bad_input("from_pyg", f"state_dict[{name!r}]", expected, "another array")
        arrays[key], sources[key] = array, name
    return arrays


def _read_array(name: str, value: Any, place: _Place) -> np.ndarray:
    """Returns the array in its form there, after checks of its shape and dtype."""
    where = f"state_dict[{name!r}]"
    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError, ValueError) as error:
        expected = "an array that numpy reads, such as tensor.detach().cpu().numpy()"
        raise bad_input("from_pyg", where, expected, f"{type(value).__name__}: {error}") from error
    expected = place.shape_there()
    if array.shape != expected:
        ours = f"of shape {expected}, for {place.ours} of shape {tuple(place.view.shape)}"
        raise bad_input("from_pyg", where, ours, f"shape {array.shape}")
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise bad_input("from_pyg", where, "of real numbers", f"dtype {array.dtype}")
    return array


def _checked_names(names: Any) -> list[str]:
    """Returns the names to write, each once."""
    listed = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else []
    if not listed or not all(isinstance(name, str) for name in listed):
        got = f"a {type(names).__name__}" + ("" if listed else " without any")
        raise bad_input("to_pyg", "names", "names, such as module.state_dict(), or None", got)
    return list(dict.fromkeys(listed))


def _check_all_are_used(
    where: str, argument: str, layer: nnx.Module, names: _Names, keys: Iterable[str]
) -> None:
    """Raises ValueError if a given name belongs to no variable of the layer."""
    used = {*names.places, *names.ignored}
    unused = [name for name in keys if _covered(name, used) is None]
    if not unused:
        return
    notes = {name: _covered(name, names.lacking) for name in unused}
    listed = ", ".join(
        repr(name) + (f" ({names.lacking[key]}, which this layer was made without)" if key else "")
        for name, key in notes.items()
    )
    expected = f"of names that {type(layer).__name__} has parameters for"
    raise bad_input(where, argument, expected, listed)


def _check_all_are_set(where: str, layer: nnx.Module, names: _Names, keys: set[Hashable]) -> None:
    """Raises if a variable of the layer, or a part of one, has no name, or no view in ``found``."""
    pieces = {piece for p in names.places.values() if p.view.key in keys for piece in p.view.pieces}
    missing: dict[str, str] = {}  # for the first name of each, what is said of it
    for path, variable in nnx.iter_graph(layer):
        if not isinstance(variable, KINDS):
            continue
        ours = ".".join(map(str, path))
        of_variable = {
            name: piece
            for name, p in names.places.items()
            for piece in p.view.pieces
            if piece[0] == id(variable)
        }
        if not of_variable:
            expected = "without parameters that PyTorch Geometric lacks"
            raise bad_input(where, "layer", expected, f"{ours} of {type(layer).__name__}")
        for unset in dict.fromkeys(p for p in of_variable.values() if p not in pieces):
            theirs = [name for name, piece in of_variable.items() if piece == unset]
            missing[theirs[0]] = f"{' or '.join(map(repr, theirs))}, for {ours}"
    if missing:
        expected = f"with {', and '.join(missing.values())} of {type(layer).__name__}"
        if where == "to_pyg":
            raise bad_input(where, "names", expected, "no such name")
        shapes = (f"{name!r}: np.zeros({names.places[name].shape_there()})" for name in missing)
        way = f"make the layer without it, or for zeros pass state_dict | {{{', '.join(shapes)}}}"
        raise bad_input(where, "state_dict", expected, f"no such name; {way}")


def _check_orders(names: _Names, state: Mapping[str, Any]) -> None:
    """Raises ValueError if names that define the order of stacked arrays have another order."""
    for order in names.orders:
        present = [name for name in state if name in order.theirs]
        if present != list(order.theirs):
            expected = f"with the {order.what} in the order of the layer's, {list(order.theirs)}"
            raise bad_input("from_pyg", "state_dict", expected, present)


def _check_layer(where: str, layer: Any) -> None:
    if not isinstance(layer, nnx.Module):
        expected = "a layer or a network, which is an nnx.Module"
        got = f"the class {layer.__name__}" if isinstance(layer, type) else type(layer).__name__
        raise bad_input(where, "layer", expected, got)
