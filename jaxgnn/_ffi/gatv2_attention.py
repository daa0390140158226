"""Typed calls of the kernels of ``gatv2_attention``, on a CPU."""

from __future__ import annotations

from functools import partial

from jaxgnn._ffi import _attention

forward = partial(_attention.forward, "gatv2_attention")
weights = partial(_attention.weights, "gatv2_attention")
backward_rows = partial(_attention.backward_rows, "gatv2_attention")
backward_columns = partial(_attention.backward_columns, "gatv2_attention")
