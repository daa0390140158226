"""Stand-ins for what the interpreter of Pallas GPU kernels does not take."""

import contextlib
import sys
from collections.abc import Iterator

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import tensor_cores as tc
from pallas_kernels.tensor_cores import launching


@contextlib.contextmanager
def interpreting(*, detect_races: bool = False) -> Iterator[None]:
    """Runs Pallas GPU kernels in the interpreter, where they have no module that is to be named."""
    parameters = plgpu.InterpretGPUParams(detect_races=detect_races)
    with pytest.MonkeyPatch.context() as patch, plgpu.force_gpu_interpret_mode(parameters):
        patch.setattr(launching, "name_module_of_body", lambda name: None)
        yield


def put_in_place(patch, **stand_ins):
    """Replaces names of ``pallas_kernels.tensor_cores``, for its own modules too."""
    for name, stand_in in stand_ins.items():
        home = sys.modules[getattr(tc, name).__module__]
        patch.setattr(tc, name, stand_in)
        if home.__name__.startswith("pallas_kernels."):
            patch.setattr(home, name, stand_in)
