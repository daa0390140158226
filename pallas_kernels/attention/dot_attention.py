"""The passes of dot-product attention over neighbours."""

from __future__ import annotations

from pallas_kernels.attention.passes import Passes
from pallas_kernels.attention.scores import Dot

PASSES = Passes("dot_attention", lambda form: Dot(form.scale))
