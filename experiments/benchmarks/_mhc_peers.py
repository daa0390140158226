"""The layer of ``mhc_layer`` in plain torch, and with the kernels of Liger and TransformerEngine.

On a GPU the kernels of each are recorded once as a CUDA graph, whose replays are timed. Launched
one by one they would wait for the host, which this comparison excludes. Parameters are float32
except where a comment says otherwise, and the same gradients as ours are computed. The
conventions differ, and so do the values; the amount of work does not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax

from experiments.benchmarks._baselines import to_torch, torch_call, torch_here, wait_for_torch
from experiments.benchmarks._cases import Candidate
from jaxgnn import ops

# layer(*leaves) -> y, the leaves that have gradients, dy
Call = tuple[Callable[..., Any], tuple[Any, ...], Any]

_OURS = ops.MHCConvention()


def candidates(direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    """Candidates that are installed and run here; prints once why the others do not.

    Args:
      direction: ``"forward"`` or ``"forward+backward"``.
      inputs: sets of ``(None, (x, phi, alpha, bias), dy)``.
    """
    if torch_here() is None:
        _say(f"no rows of {', '.join(PEERS)}: torch not installed, or without this device")
        return {}
    made = {}
    for name, prepare in PEERS.items():
        try:
            made[name] = _candidate(prepare, direction, inputs)
        except Exception as error:  # an error in another library costs only its rows
            _say(f"no rows of {name}: {error}")
    return made


@cache
def _say(text: str) -> None:
    """Prints a message once a process."""
    print(text, flush=True)


def _candidate(prepare: Callable[..., Call], direction: str, inputs: list[tuple]) -> Candidate:
    calls = []
    for _, arrays, dy in inputs:
        layer, leaves, dy = prepare(*map(to_torch, (*arrays, dy)))
        call = torch_call(direction, layer, leaves, dy)
        calls.append(call if jax.default_backend() == "cpu" else _recorded(call))
    turns = [(call,) for call in calls]
    return Candidate(lambda call: call(), turns, jit=False, wait=wait_for_torch)


def _recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """Records a call's kernels as a CUDA graph, after runs that compile and tune them."""
    torch = importlib.import_module("torch")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay():
        graph.replay()
        return call  # keeps the arrays that the graph reads

    return replay


def _plain(x, phi, alpha, bias, dy) -> Call:
    """The computation of ``mhc_layer``, one torch function after another."""

    def layer(x, phi, alpha, bias):
        n, v = x.shape[-2], x.float()
        inv_rms = (v.square().mean((-2, -1)) + _OURS.norm_eps).rsqrt()
        t = (v.flatten(-2) @ phi.T) * inv_rms[..., None]
        parts = zip(alpha, t.split([n, n, n * n], -1), bias.split([n, n, n * n]), strict=True)
        pre, post, res = (a * t + b for a, t, b in parts)
        h_in = ((pre.sigmoid() + _OURS.pre_eps)[..., None] * v).sum(-2).to(x.dtype)
        h_post = _OURS.post_scale * post.sigmoid()
        h_res = _plain_sinkhorn(res.unflatten(-1, (n, n)))
        return (h_res @ v + h_post[..., None] * h_in.float()[..., None, :]).to(x.dtype)

    return layer, (x, phi, alpha, bias), dy


def _plain_sinkhorn(logits):
    m = logits.softmax(-2) + _OURS.eps
    m = m / (m.sum(-1, keepdim=True) + _OURS.eps)
    for _ in range(_OURS.iterations - 1):
        m = m / (m.sum(-2, keepdim=True) + _OURS.eps)
        m = m / (m.sum(-1, keepdim=True) + _OURS.eps)
    return m


def _liger(x, phi, alpha, bias, dy) -> Call:
    """The layer of liger-kernel 0.8.5, which normalises columns last and adds nothing to ``h_pre``.

    Its phi is transposed and has the dtype of x, for tensor cores. Its gains are three scalars.
    """
    liger = importlib.import_module("liger_kernel.transformers.functional")
    allow_fp32 = str(x.dtype) == "torch.float32"

    def layer(x, phi, bias, *gains):
        return liger.liger_mhc_forward(x, lambda h: h, phi, bias, *gains, allow_fp32=allow_fp32)

    leaves = (x, phi.T.contiguous().to(x.dtype), bias, *(gain.clone() for gain in alpha))
    return layer, leaves, dy


def _transformer_engine(x, phi, alpha, bias, dy, *, sum_in_float32: bool) -> Call:
    """The layer of transformer-engine 2.20.2, with faster, non-deterministic sums over the width.

    Streams are the last axis, [sequence, batch, width, n]. They are mixed by the transposed matrix,
    which is computed in logarithms, columns last. With ``sum_in_float32`` its kernels add the
    gradients of x in a float32 buffer, instead of autograd's sums in the dtype of x.
    """
    kernels = importlib.import_module("transformer_engine.pytorch.triton.mhc")
    torch = importlib.import_module("torch")
    n = x.shape[-2]

    def streams_last(array):
        return array.transpose(-1, -2).contiguous()[:, None]

    def layer(x, phi, alpha, bias):
        buffer = torch.empty_like(x, dtype=torch.float32) if sum_in_float32 else None
        options = {"use_tf32": True, "fused_grad_x_acc_buffer": buffer}
        h_in, h_post, h_res = kernels.mhc_generate_mix_and_aggregate(
            x, phi, alpha, bias, use_split_k=True, **options
        )
        return kernels.mhc_fused_expand_combine(h_in, None, h_post, x, h_res, n, **options)

    phi = phi.unflatten(1, (n, -1)).transpose(1, 2).flatten(1).contiguous()
    return layer, (streams_last(x), phi, alpha, bias[None]), streams_last(dy)


PEERS: Mapping[str, Callable[..., Call]] = {
    "torch": _plain,
    "Liger": _liger,
    "TE": partial(_transformer_engine, sum_in_float32=False),
    "TE f32 sums": partial(_transformer_engine, sum_in_float32=True),
}
