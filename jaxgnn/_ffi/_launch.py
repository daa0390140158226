"""Calls of hand-written CUDA kernels, the sources in ``jaxgnn/_ffi/cuda``.

A source is a file that names its kernels' parameters by the macro ``PARAMETERS``. The call writes
that macro, and the types and constants of the file, in front of it. So a new kernel is a file and a
call; ``ffi/cuda/launch.cc`` launches all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxgnn._ffi import _programs
from jaxgnn._ffi._call import Shape, call_many
from pallas_kernels.chip import Chip

TARGETS = {"jaxgnn_launch": ("cuda",)}
WARP = 32
_BLOCKS_OF_MULTIPROCESSOR = 32
FOLDER = Path(__file__).parent / "cuda"
_FAMILY = "cuda"
# A file, definitions and parameters. Names come from exported files too, and can hold no code.
_DESCRIPTION = re.compile(r"(\w+)\|([\w =;-]*)\|([\w *,]*)")
_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)
# Names of types in sources. Offsets of edges may be int64, other integers are never wider.
_TYPES = {
    "float32": "float",
    "bfloat16": "BFloat16",
    "float16": "Float16",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Launch(NamedTuple):
    """The launch of a kernel; ``ffi/cuda/launch.cc`` has the same fields after the name.

    Attributes:
      kernel: name of the kernel.
      tasks: number of tasks that the blocks share; -1 for the rows of a call by row.
      tasks_per_block: number of tasks that a block does at a time.
      most_blocks: largest number of blocks, which then stride over the tasks.
      blocks_y: number of blocks in the second direction of the grid.
      threads_x: threads of a block in the first direction.
      threads_y: threads of a block in the second direction.
      shared_bytes: dynamic shared memory of a block.
      carveout: per cent of a multiprocessor's memory that should be shared memory; -1 for the
        driver's choice.
    """

    kernel: str
    tasks: int
    tasks_per_block: int
    most_blocks: int
    blocks_y: int = 1
    threads_x: int = WARP
    threads_y: int = 8
    shared_bytes: int = 0
    carveout: int = -1

    @classmethod
    def striding(cls, kernel: str, tasks: int, tasks_per_block: int = 8, **options: int) -> Launch:
        """A launch of as many blocks as keep the GPU busy while each strides over its tasks."""
        most = _BLOCKS_OF_MULTIPROCESSOR * Chip.current().multiprocessors
        return cls(kernel, tasks, tasks_per_block, most, **options)


def launch(
    program: str,
    results: Sequence[tuple[Shape, Any]],
    operands: Sequence[Array | None],
    launches: Sequence[Launch],
    numbers: Sequence[int],
    *,
    by_row: bool = False,
) -> Sequence[Array]:
    """Calls the kernels of a program one after the other, all with the same parameters.

    These are the operands, the results, by row the number of rows, and the numbers.

    Args:
      program: name of the program.
      results: shape and dtype of each result; nothing runs if the first one has no entries.
      operands: arrays; None or an array without entries is a null pointer.
      launches: the launches, in order.
      numbers: integers.
      by_row: whether all axes of arrays but the last count rows, whatever their number. ``vmap``
        then adds rows; else it repeats the launches for each member.
    """
    _programs.prepare(program)
    (shape, _), *_ = results
    return call_many(
        "jaxgnn_launch",
        results,
        *operands,
        vmap_method="broadcast_all" if by_row else "expand_dims",
        program=program,
        kernels=",".join(launch.kernel for launch in launches),
        launches=tuple(int(field) for launch in launches for field in launch[1:]),
        numbers=tuple(int(number) for number in numbers),
        rank=np.int64(1 if by_row else len(shape)),
        by_row=np.bool_(by_row),
    )


def run(
    file: str,
    results: Mapping[str, tuple[Shape, Any]],
    operands: Mapping[str, Array | None],
    launches: Sequence[Launch],
    numbers: Mapping[str, int],
    *,
    types: Mapping[str, Any],
    constants: Mapping[str, int] | None = None,
    by_row: bool = False,
) -> Sequence[Array]:
    """Calls kernels of ``jaxgnn/_ffi/cuda/<file>.cu``.

    Args:
      file: name of the source, without its ending.
      results: name, shape and dtype of each result.
      operands: arrays by the names of their parameters. An array without entries is a null pointer,
        None one to float32.
      launches: the launches, in order.
      numbers: integers by the names of their parameters.
      types: dtypes by the names that the source has for them.
      constants: integers that the source is compiled for.
      by_row: as in ``launch``; the first number is then ``rows``.
    """
    parameters = [
        *(f"const {_type('float32' if a is None else a.dtype)}* {n}" for n, a in operands.items()),
        *(f"{_type(dtype)}* {name}" for name, (_, dtype) in results.items()),
        *(f"int64_t {name}" for name in (["rows"] if by_row else []) + list(numbers)),
    ]
    definitions = [
        *(f"using {name} = {_type(dtype)};" for name, dtype in types.items()),
        *(f"constexpr int {name} = {int(value)};" for name, value in (constants or {}).items()),
    ]
    return launch(
        f"{_FAMILY}:{file}|{' '.join(definitions)}|{', '.join(parameters)}",
        list(results.values()),
        list(operands.values()),
        launches,
        list(numbers.values()),
        by_row=by_row,
    )


def _type(dtype: Any) -> str:
    return _TYPES[jnp.dtype(dtype).name]


def _write(description: str) -> str:
    """The source of a program of ``run``.

    Raises:
      ValueError: if the description is not that of a program.
    """
    parts = _DESCRIPTION.fullmatch(description)
    if parts is None:
        raise ValueError(f"the description of a CUDA program is damaged: {description[:200]!r}")
    file, definitions, parameters = parts.groups()
    head = f"{definitions}\n#define PARAMETERS {parameters}\n"
    included: set[str] = set()
    return f"{_text('number.h', included)}{head}{_text(f'{file}.cu', included)}"


def _text(file: str, included: set[str]) -> str:
    """A source with its includes in their places, each once, and lines counted as in its files."""
    if file in included:
        return ""
    included.add(file)
    parts = _INCLUDE.split((FOLDER / file).read_text())
    text, line = f'#line 1 "{file}"\n{parts[0]}', 1 + parts[0].count("\n")
    for name, rest in zip(parts[1::2], parts[2::2], strict=True):
        line += 1
        text += f'{_text(name, included)}#line {line} "{file}"\n{rest}'
        line += rest.count("\n")
    return text


_programs.register(_FAMILY, _write)
