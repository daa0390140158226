"""The passes of graph attention networks over neighbours."""

from __future__ import annotations

from pallas_kernels.attention.passes import Passes
from pallas_kernels.attention.scores import Gat

PASSES = Passes("gat_attention", lambda form: Gat(form.slope))
