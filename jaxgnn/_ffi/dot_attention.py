"""Typed calls of the kernels of ``dot_attention``, on a CPU."""

from __future__ import annotations

from functools import partial

from jaxgnn._ffi import _attention

forward = partial(_attention.forward, "dot_attention")
weights = partial(_attention.weights, "dot_attention")
backward = partial(_attention.backward, "dot_attention")
