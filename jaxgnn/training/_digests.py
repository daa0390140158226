"""Digests of arrays, and of JSON: what a checkpoint holds is compared with them when it is read.

Orbax stores arrays without checksums, and a byte that changes in a file may decode to other
numbers. Digests are those of the arrays, not of files: they do not depend on how many devices or
processes hold an array, nor on how orbax cuts it into files.
"""

import hashlib
import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ._step import PyTree, is_key, named


def array_digests(tree: PyTree) -> dict[str, str]:
    """SHA-256 of the bytes of each array of a pytree, by dotted name, in hexadecimal digits."""
    return {name: hashlib.sha256(_bytes(array)).hexdigest() for name, array in named(tree).items()}


def json_digest(content: Any) -> str:
    """SHA-256 of a value of JSON, in hexadecimal digits, for any order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _bytes(array: jax.Array) -> Any:
    """The values of an array in C order, as a buffer of bytes."""
    data = jax.random.key_data(array) if is_key(array) else array
    if not data.is_fully_addressable:
        is_whole = data.is_fully_replicated
        data = (
            data.addressable_data(0) if is_whole else multihost_utils.process_allgather(data, True)
        )
    return np.ascontiguousarray(np.asarray(data)).reshape(-1).view(np.uint8).data
