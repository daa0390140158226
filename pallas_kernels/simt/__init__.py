"""SIMT code: kernels as functions of a warp, recorded and run through Mosaic GPU.

``warp`` is their vocabulary, ``values`` what they compute with, ``mosaic_warp`` what becomes of it
on a GPU, and ``launching`` starts them. Here is what kernels of every family call.
"""

from pallas_kernels.simt.launching import (
    Grid,
    compute_capability,
    inline,
    launch,
    most_shared_bytes,
)

__all__ = ["Grid", "compute_capability", "inline", "launch", "most_shared_bytes"]
