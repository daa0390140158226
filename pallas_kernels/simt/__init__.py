"""SIMT code: kernels written as functions of a warp, recorded and launched through Mosaic GPU.

``warp`` is the vocabulary that kernels are written in and ``values`` the numbers and arrays that
they compute with. ``mosaic_warp`` records it as instructions of a GPU, and ``launching`` launches
the result. This package exports what kernels of every family call.
"""

from pallas_kernels.simt.launching import Grid, inline, launch

__all__ = ["Grid", "inline", "launch"]
