"""SIMT code: kernels written as functions of a warp, recorded and launched through Mosaic GPU.

Kernels are written with the methods of ``warp`` and compute with the numbers and arrays of
``values``. ``mosaic_warp`` records the calls as instructions of a GPU, and ``launching`` launches
the result. This package exports the functions that kernels of every family call.
"""

from pallas_kernels.simt.launching import Grid, inline, launch

__all__ = ["Grid", "inline", "launch"]
