"""GPUs that tests choose tiles for: one that kernels are tuned for, and smaller ones."""

import dataclasses

from pallas_kernels import chip
from pallas_kernels.chip import Chip

H100 = Chip.named("H100")


def on_a_chip(monkeypatch, **figures):
    """Kernels that are made from now on are for an H100 with other figures; returns it."""
    other = dataclasses.replace(H100, **figures)
    monkeypatch.setattr(chip, "_current", lambda: other)
    return other
