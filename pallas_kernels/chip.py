"""What kernels have to know of a GPU: one frozen record for each, given by name or by the device.

Every choice of a tile receives such a record. Lowering needs no device: without a GPU at hand, the
chip is the one that kernels are tuned for, or the one that ``JAXGNN_CHIP`` names.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace

import jax

_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True)
class Chip:
    """A GPU, by the figures of its vendor.

    Attributes:
      name: what it is called here, such as ``"H100"``.
      capability: its compute capability, such as ``"9.0"``.
      multiprocessors: how many it has.
      block_bytes: shared memory that one block of threads may ask for, in bytes.
      cache_bytes: its second-level cache, in bytes.
      registers: 32-bit registers of a multiprocessor.
    """

    name: str
    capability: str
    multiprocessors: int
    block_bytes: int
    cache_bytes: int
    registers: int = 2**16

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block for a kernel's own arrays, in bytes.

        Mosaic GPU, and the barriers of a kernel, may want the last KiB for themselves.
        """
        return self.block_bytes - _KIB

    @property
    def generation(self) -> int:
        """The first number of its compute capability; 0 if the device told none."""
        major = self.capability.partition(".")[0]
        return int(major) if major.isdigit() else 0

    @classmethod
    def named(cls, name: str) -> Chip:
        """The chip of this name, in capitals or not.

        Raises:
          ValueError: for a name that is not among ``CHIPS``.
        """
        found = CHIPS.get(name.upper())
        if found is None:
            raise ValueError(f"Chip: expected a name among {', '.join(CHIPS)}, got {name!r}")
        return found

    @classmethod
    def current(cls) -> Chip:
        """The chip of the first GPU at hand, or the one that kernels are made for without a GPU.

        That is the one that the environment variable ``JAXGNN_CHIP`` names, by default an H100. It
        is read once.
        """
        return _current()

    @classmethod
    def of_device(cls, device: jax.Device) -> Chip:
        """The chip of a GPU that JAX knows.

        One that is not among ``CHIPS`` has what JAX tells of it, and for the rest the figures of
        the known one of the same generation that has the smallest cache.
        """
        kind, capability = device.device_kind, str(getattr(device, "compute_capability", ""))
        for chip in CHIPS.values():
            if chip.name in kind.upper().replace(" ", "") and chip.capability == capability:
                return replace(chip, multiprocessors=_multiprocessors(device, chip))
        like = _of_generation(capability)
        count = _multiprocessors(device, like)
        return replace(like, name=kind, capability=capability, multiprocessors=count)


def _multiprocessors(device: jax.Device, like: Chip) -> int:
    """How many a device says it has: one of a pair of chips, or a part of one, has fewer."""
    return getattr(device, "core_count", None) or like.multiprocessors


def _of_generation(capability: str) -> Chip:
    """The least of the known chips whose capability begins alike, or else of all."""
    major = capability.partition(".")[0]
    alike = [chip for chip in CHIPS.values() if chip.capability.partition(".")[0] == major]
    return min(alike or CHIPS.values(), key=lambda chip: (chip.block_bytes, chip.cache_bytes))


@functools.cache
def _current() -> Chip:
    if jax.default_backend() == "gpu":
        return Chip.of_device(jax.local_devices()[0])
    return Chip.named(os.environ.get("JAXGNN_CHIP", "H100"))


_ALL = (
    Chip("A100", "8.0", 108, 163 * _KIB, 40 * _MIB),
    Chip("H100", "9.0", 132, 227 * _KIB, 50 * _MIB),
    Chip("H200", "9.0", 132, 227 * _KIB, 50 * _MIB),
    Chip("B200", "10.0", 148, 227 * _KIB, 126 * _MIB),
    Chip("RTX4090", "8.9", 128, 99 * _KIB, 72 * _MIB),
    Chip("RTX5090", "12.0", 170, 99 * _KIB, 96 * _MIB),
)
# Those whose figures are known, by name.
CHIPS = {chip.name: chip for chip in _ALL}
