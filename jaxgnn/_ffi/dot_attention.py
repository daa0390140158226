"""Typed calls of the kernels of ``dot_attention``, on a CPU."""

from __future__ import annotations

from functools import partial

from jaxgnn._ffi import _attention

forward = partial(_attention.forward, "dot_attention")
weights = partial(_attention.weights, "dot_attention")
backward_rows = partial(_attention.backward_rows, "dot_attention")
backward_columns = partial(_attention.backward_columns, "dot_attention")
