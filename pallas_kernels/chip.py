"""Figures of a GPU that kernels need: one frozen record for each, chosen by name or by device.

Every choice of a tile receives such a record. Lowering needs no device: without a GPU, the chip is
the one that kernels are tuned for, or the one that ``JAXGNN_CHIP`` names.
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
      name: its name here, such as ``"H100"``.
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

        Mosaic GPU, and the barriers of a kernel, may need the last KiB.
        """
        return self.block_bytes - _KIB

    @property
    def generation(self) -> int:
        """The first number of its compute capability; 0 if the device reports none."""
        major = self.capability.partition(".")[0]
        return int(major) if major.isdigit() else 0

    @classmethod
    def named(cls, name: str) -> Chip:
        """Returns the chip of this name, in upper or lower case.

        Raises:
          ValueError: for a name that is not among ``CHIPS``.
        """
        found = CHIPS.get(name.upper())
        if found is None:
            raise ValueError(f"Chip: expected a name among {', '.join(CHIPS)}, got {name!r}")
        return found

    @classmethod
    def current(cls) -> Chip:
        """Returns the chip of the first GPU, or without a GPU the one that kernels are lowered for.

        The latter is named by the environment variable ``JAXGNN_CHIP``, by default an H100. It is
        read once.
        """
        return _current()

    @classmethod
    def of_device(cls, device: jax.Device) -> Chip:
        """Returns the chip of a GPU that JAX has found.

        A GPU that is not among ``CHIPS`` takes the name, capability and number of multiprocessors
        that JAX reports, and the other figures of the known chip of the same generation with the
        least memory.
        """
        kind, capability = device.device_kind, str(getattr(device, "compute_capability", ""))
        for chip in CHIPS.values():
            if chip.name in kind.upper().replace(" ", "") and chip.capability == capability:
                return replace(chip, multiprocessors=_multiprocessors(device, chip))
        like = _of_generation(capability)
        count = _multiprocessors(device, like)
        return replace(like, name=kind, capability=capability, multiprocessors=count)


def _multiprocessors(device: jax.Device, like: Chip) -> int:
    """Returns how many multiprocessors a device reports, or those of the chip it is like.

    A device that is part of a chip, such as a MIG instance, reports fewer than the whole chip has.
    """
    return getattr(device, "core_count", None) or like.multiprocessors


def _of_generation(capability: str) -> Chip:
    """Returns the smallest known chip of the same major capability, or else of all."""
    major = capability.partition(".")[0]
    alike = [chip for chip in CHIPS.values() if chip.capability.partition(".")[0] == major]
    return min(alike or CHIPS.values(), key=lambda chip: (chip.block_bytes, chip.cache_bytes))


@functools.cache
def _current() -> Chip:
    if jax.default_backend() == "gpu":
        return Chip.of_device(jax.local_devices()[0])
    return Chip.named(os.environ.get("JAXGNN_CHIP", "H100"))


_ALL = (
    Chip("T4", "7.5", 40, 64 * _KIB, 4 * _MIB),
    Chip("A100", "8.0", 108, 163 * _KIB, 40 * _MIB),
    Chip("H100", "9.0", 132, 227 * _KIB, 50 * _MIB),
    Chip("H200", "9.0", 132, 227 * _KIB, 50 * _MIB),
    Chip("B200", "10.0", 148, 227 * _KIB, 126 * _MIB),
    Chip("RTX4090", "8.9", 128, 99 * _KIB, 72 * _MIB),
    Chip("RTX5090", "12.0", 170, 99 * _KIB, 96 * _MIB),
)
# The chips whose figures are known, by name.
CHIPS = {chip.name: chip for chip in _ALL}
