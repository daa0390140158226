"""Typed calls of the kernels of ``gat_attention``, on a CPU."""

from __future__ import annotations

from functools import partial

from jaxgnn._ffi import _attention

forward = partial(_attention.forward, "gat_attention")
weights = partial(_attention.weights, "gat_attention")
backward = partial(_attention.backward, "gat_attention")
