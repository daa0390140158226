"""The passes of GATv2 over neighbours."""

from __future__ import annotations

from pallas_kernels.attention.passes import Passes
from pallas_kernels.attention.scores import GatV2

PASSES = Passes("gatv2_attention", lambda form: GatV2(form.slope))
