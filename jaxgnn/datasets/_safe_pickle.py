"""Pickles of numbers, without running what else a pickle may say."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets._files import require_file

# How numpy takes arrays and numbers to pieces, by the names that pickles have for the parts.
# Modules have moved since the files were written.
_PARTS_OF_NUMPY = {
    ("multiarray", "_reconstruct"): np.ones(1).__reduce__()[0],  # pyrefly: ignore
    ("multiarray", "scalar"): np.float64(0).__reduce__()[0],  # pyrefly: ignore
    ("numeric", "_frombuffer"): np.ones(1).__reduce_ex__(5)[0],  # pyrefly: ignore
}
_CORES = ("numpy.core", "numpy._core")
_SPARSE = ("scipy.sparse.csr", "scipy.sparse._csr", "scipy.sparse")
_BUILTINS = ("builtins", "__builtin__")


class StoredCSR:
    """What a pickle of scipy's `csr_matrix` holds, not yet looked at."""

    def __init__(self):
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: Any):
        """Takes the attributes of the matrix, as pickle hands them over."""
        if not isinstance(state, dict):
            raise ValueError(f"a csr_matrix of a {type(state).__name__}")
        self.fields = state


def read_numbers(path: Path, contents: str) -> Any:
    """Reads a pickle of numbers, text, containers, numpy arrays and sparse matrices.

    A pickle is a program, which may call whatever can be imported. Of this one nothing runs but the
    constructors of numpy's arrays, numbers and dtypes, of sets, and of `StoredCSR`, which takes the
    place of scipy's class. Strings of Python 2 are read as latin-1.

    Args:
        path: the file.
        contents: what it should hold, for the message when it is missing.

    Returns:
        The object; sparse matrices as `StoredCSR`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no pickle, or refers to anything else; the message names it.
    """
    require_file(path, contents)
    with open(path, "rb") as file:
        try:
            return _Numbers(file, encoding="latin1").load()
        except _Refused as error:
            raise ValueError(
                f"{path}: refers to {error}, which is not read from a data file: a pickle may hold "
                "numbers, text, containers, numpy arrays and scipy.sparse.csr_matrix"
            ) from None
        # Whatever a broken pickle makes the constructors raise.
        except Exception as error:
            raise ValueError(f"{path}: cannot be read as a pickle: {error!r}") from error


class _Refused(Exception):
    """The name of something that no data file needs."""


class _Numbers(pickle.Unpickler):
    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        # New classes and functions each time: a pickle may set attributes of what it names.
        stored = type("StoredCSR", (StoredCSR,), {})
        self._known: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): lambda text, encoding: _latin1(text, encoding),
            **{(f"{c}.{m}", name): f for c in _CORES for (m, name), f in _PARTS_OF_NUMPY.items()},
            **{(module, "csr_matrix"): stored for module in _SPARSE},
            **{(m, kind.__name__): kind for m in _BUILTINS for kind in (set, frozenset)},
        }

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle may call, by the names that it uses."""
        if (module, name) not in self._known:
            raise _Refused(f"{module}.{name}")
        return self._known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Nothing is stored outside the file."""
        raise _Refused(f"the persistent object {pid!r}")


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if encoding != "latin1":
        raise _Refused(f"the codec {encoding!r}")
    return text.encode("latin1")
