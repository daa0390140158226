"""Typed calls of the kernels of ``gat_attention``, on a CPU."""

from __future__ import annotations

from functools import partial

from jaxgnn._ffi import _attention

forward = partial(_attention.forward, "gat_attention")
weights = partial(_attention.weights, "gat_attention")
backward_rows = partial(_attention.backward_rows, "gat_attention")
backward_columns = partial(_attention.backward_columns, "gat_attention")
