"""Safe replacements for the names in a pickle of numbers, which check their arguments."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxgnn._arrays.npy_format import array_of, plain_dtype

_ORDER = re.compile(r"[<>=|]")
_STATE_OF_DTYPE = 8
_STATE_OF_ARRAY = 5
_SIZE_OF_ARRAY = 200  # Bytes of the array object and its owner.
_CSR_FIELDS = ("_shape", "data", "indices", "indptr")


class Budget:
    """Budget of bytes for the objects of a pickle."""

    def __init__(self, size: int):
        self.size = self._left = size

    def spend(self, size: int) -> None:
        """Takes bytes from the budget; raises ValueError if it is exceeded."""
        self._left -= size
        if self._left < 0:
            raise ValueError(f"its objects would take more than {self.size} bytes")


class Refused(Exception):
    """A name that no data file needs, and that is rejected."""


class Part:
    """Replacement for a name: a function of a tuple, or only a name that can not be called."""

    def __init__(self, name: str, call: Callable[[tuple[Any, ...], Budget], Any] | None = None):
        self.name = name
        self._call = call

    def __call__(self, arguments: Any, budget: Budget) -> Any:
        """Calls the function with the arguments of a pickle."""
        if self._call is None:
            raise ValueError(f"{self.name} is not called when a data file is read")
        if type(arguments) is not tuple:
            raise ValueError(f"{self.name} is called with a {type(arguments).__name__}")
        return self._call(arguments, budget)


class StoredSet:
    """The members of a set in the order of the pickle, repeats included."""

    def __init__(self, members: list[Any]):
        self.members = members


class StoredArray:
    """A numpy array, whose state is set later."""

    def __init__(self, value: np.ndarray | None = None):
        self._value = value

    @property
    def value(self) -> np.ndarray:
        """The array that the pickle has filled; raises ValueError if it is not filled yet."""
        if self._value is None:
            raise ValueError("an array without numbers")
        return self._value

    def build(self, state: Any, budget: Budget) -> None:
        """Sets version, shape, dtype, order and bytes."""
        if self._value is not None or type(state) is not tuple or len(state) != _STATE_OF_ARRAY:
            raise ValueError("expected one state of an array, of five entries")
        version, shape, dtype, columns_first, data = state
        if version != 1 or columns_first not in (0, 1):
            raise ValueError(f"expected an array of version 1, got {version!r}")
        self._value = _array(data, dtype, shape, bool(columns_first), budget)


class StoredDtype:
    """A dtype of plain numbers or strings; its state is its byte order.

    Args:
      value: the dtype.
      is_own: whether it was created for this pickle; numpy gives no state to shared ones.
    """

    def __init__(self, value: np.dtype, is_own: bool):
        self.value = value
        self._is_own = is_own

    def build(self, state: Any, budget: Budget) -> None:
        """Sets the state, which may only add the byte order to the dtype."""
        if type(state) is not tuple or len(state) != _STATE_OF_DTYPE:
            raise ValueError("expected a state of a dtype, of eight entries")
        version, order, *parts, size, alignment, flags = state
        plain = (
            self._is_own
            and version == 3
            and isinstance(order, str)
            and _ORDER.fullmatch(order) is not None
            and (order == "|") == (self.value.byteorder == "|")
            and all(part is None for part in parts)
            and all(type(number) is int for number in (size, alignment, flags))
            and size in (-1, self.value.itemsize)
            and alignment in (-1, self.value.alignment)
            and flags in (0, self.value.flags)
        )
        if not plain:
            raise ValueError(f"expected the state of {self.value}, which has no parts and no flags")
        byte_order: Any = order
        self.value = self.value.newbyteorder(byte_order)


class StoredCSR:
    """The unchecked arrays of a pickled ``csr_matrix`` or ``csr_array`` of scipy."""

    def __init__(self):
        self.fields: dict[str, Any] = {}

    def build(self, state: Any, budget: Budget) -> None:
        """Sets the attributes that hold the numbers of the matrix."""
        if self.fields or type(state) is not dict:
            raise ValueError(f"a csr_matrix of a {type(state).__name__}")
        self.fields = {name: state[name] for name in _CSR_FIELDS if name in state}


def _array(data: Any, dtype: Any, shape: Any, columns_first: bool, budget: Budget) -> np.ndarray:
    if type(dtype) is not StoredDtype:
        raise ValueError(f"expected a dtype, got a {type(dtype).__name__}")
    raw = _raw(data, budget)
    swapped = dtype.value.newbyteorder("=") != dtype.value
    budget.spend(_SIZE_OF_ARRAY + (len(raw) if swapped else 0))
    return array_of(raw, dtype.value, shape, columns_first=columns_first)


def _raw(data: Any, budget: Budget) -> bytes:
    """Returns bytes; Python 2 stores them as text with one byte per character."""
    if type(data) is str:
        budget.spend(len(data))
        return data.encode("latin1")
    if type(data) is not bytes:
        raise ValueError(f"expected bytes, got a {type(data).__name__}")
    return data


def _dtype(arguments: tuple[Any, ...], budget: Budget) -> StoredDtype:
    name, *options = arguments
    if len(options) > 2 or any(option not in (0, 1) for option in options):
        raise ValueError("expected a dtype's name and two options")
    budget.spend(_SIZE_OF_ARRAY)
    return StoredDtype(plain_dtype(name), is_own=len(options) == 2 and bool(options[1]))


def _reconstruct(arguments: tuple[Any, ...], budget: Budget) -> StoredArray:
    kind, shape, code = arguments
    is_empty = shape == (0,) and type(shape[0]) is int
    if not _is_part(kind, "ndarray") or not is_empty or code not in (b"b", "b"):
        raise ValueError("expected an empty array to be filled")
    budget.spend(_SIZE_OF_ARRAY)
    return StoredArray()


def _from_buffer(arguments: tuple[Any, ...], budget: Budget) -> StoredArray:
    data, dtype, shape, order = arguments
    if order not in ("C", "F"):
        raise ValueError(f"expected an array in the order 'C' or 'F', got a {type(order).__name__}")
    return StoredArray(_array(data, dtype, shape, order == "F", budget))


def _scalar(arguments: tuple[Any, ...], budget: Budget) -> Any:
    dtype, data = arguments
    value = _array(data, dtype, (), False, budget).item()
    # The array was only temporary.
    budget.spend(-_SIZE_OF_ARRAY + 40 + 4 * len(data))
    return value


def _set(arguments: tuple[Any, ...], budget: Budget) -> StoredSet:
    (members,) = arguments or ([],)
    if type(members) is StoredSet:
        members = members.members
    if not isinstance(members, list | tuple):
        raise ValueError(f"a set of a {type(members).__name__}")
    budget.spend(150 + 8 * len(members))
    return StoredSet(list(members))


def _default_dict(arguments: tuple[Any, ...], budget: Budget) -> dict[Any, Any]:
    """Returns an empty dict of lists; the default for missing keys is ignored."""
    if len(arguments) > 1 or not all(_is_part(kind, "list") for kind in arguments):
        raise ValueError("expected a defaultdict of lists")
    budget.spend(_SIZE_OF_ARRAY)
    return {}


def _no_bytes(arguments: tuple[Any, ...], budget: Budget) -> bytes:
    """Empty bytes, in the form that Python 3 writes for Python 2."""
    if arguments:
        raise ValueError("expected bytes without arguments")
    return b""


def _encode(arguments: tuple[Any, ...], budget: Budget) -> bytes:
    """Returns bytes, in the form that Python 3 writes for Python 2."""
    text, encoding = arguments
    if encoding != "latin1":
        raise Refused(f"the codec {encoding!r}")
    if type(text) is not str:
        raise ValueError(f"expected text, got a {type(text).__name__}")
    budget.spend(50)
    return _raw(text, budget)


def new_csr(kind: Any, arguments: Any) -> StoredCSR:
    """Makes an object of the only two classes that a pickle may instantiate."""
    is_csr = any(_is_part(kind, name) for name in _CSR_CLASSES)
    if not is_csr or arguments != ():
        raise ValueError("expected a csr_matrix to be filled")
    return StoredCSR()


def _new_object(arguments: tuple[Any, ...], budget: Budget) -> StoredCSR:
    """Creates an object as in protocols 0 and 1."""
    kind, base, state = arguments
    if not _is_part(base, "object") or state is not None:
        raise ValueError("expected a plain object to be filled")
    budget.spend(_SIZE_OF_ARRAY)
    return new_csr(kind, ())


def _is_part(value: Any, name: str) -> bool:
    return type(value) is Part and value.name == name


_CSR_CLASSES = ("csr_matrix", "csr_array")
_CSR_MODULES = ("scipy.sparse.csr", "scipy.sparse._csr", "scipy.sparse")
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUILTINS = ("builtins", "__builtin__")
# Modules have old names in old pickles.
_MODULES = (
    (Part("ndarray"), ("numpy",)),
    (Part("dtype", _dtype), ("numpy",)),
    (Part("_reconstruct", _reconstruct), _MULTIARRAY),
    (Part("scalar", _scalar), _MULTIARRAY),
    (Part("_frombuffer", _from_buffer), ("numpy.core.numeric", "numpy._core.numeric")),
    *((Part(name), _CSR_MODULES) for name in _CSR_CLASSES),
    (Part("_reconstructor", _new_object), ("copyreg", "copy_reg")),
    (Part("encode", _encode), ("_codecs",)),
    (Part("defaultdict", _default_dict), ("collections",)),
    (Part("list"), _BUILTINS),
    (Part("object"), _BUILTINS),
    (Part("bytes", _no_bytes), _BUILTINS),
    (Part("set", _set), _BUILTINS),
    (Part("frozenset", _set), _BUILTINS),
)
PARTS = {(module, part.name): part for part, modules in _MODULES for module in modules}
"""Replacements by module and name in a pickle."""
