"""Stand-ins for what the interpreter of Pallas GPU kernels does not take."""

import sys

from pallas_kernels import tensor_cores as tc


def put_in_place(patch, **stand_ins):
    """Replaces names of ``pallas_kernels.tensor_cores``, for its own modules too."""
    for name, stand_in in stand_ins.items():
        home = sys.modules[getattr(tc, name).__module__]
        patch.setattr(tc, name, stand_in)
        if home.__name__.startswith("pallas_kernels."):
            patch.setattr(home, name, stand_in)
