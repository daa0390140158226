"""SIMT code: kernels as functions of a warp, recorded and run through Mosaic GPU.

``warp`` is their vocabulary, ``values`` what they compute with, ``mosaic_warp`` what becomes of it
on a GPU, and ``launching`` starts them. Here is what kernels of every family call.
"""

from pallas_kernels.simt.launching import Grid, inline, launch

__all__ = ["Grid", "inline", "launch"]
