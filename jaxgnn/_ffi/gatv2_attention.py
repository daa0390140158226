"""Typed calls of the kernels of ``gatv2_attention``, on a CPU."""

from __future__ import annotations

from functools import partial

from jaxgnn._ffi import _attention

forward = partial(_attention.forward, "gatv2_attention")
weights = partial(_attention.weights, "gatv2_attention")
backward = partial(_attention.backward, "gatv2_attention")
