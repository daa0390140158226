"""Times ``ops.hypergraph_conv`` against torch-geometric's ``HypergraphConv``.

Run ``python -m experiments.benchmarks.hypergraph_conv``. There are three parts:

- ``hypergraph_conv``: one layer on a large random hypergraph;
- ``expert_coupling``: ``nn.ExpertCoupler`` on tokens of eight experts with all pairs as hyperedges:
  layers, gelu, sums, and the mean over the experts, with the gradients to all arrays; ``pallas``
  uses the mixing kernels;
- ``expert_lm``: a whole training step of ``models.ExpertGraphLM`` with AdamW.

The weighting is torch-geometric's, which costs as much as the paper's. Results of both libraries
are compared before they are timed. Bytes: counted by ``_hypergraphs``; for a training step, those
that AdamW has to read and write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.benchmarks import _hypergraphs
from experiments.benchmarks._cases import DIRECTIONS, Candidate, Case, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._hypergraphs import (
    COUPLINGS,
    HYPERGRAPHS,
    STEPS,
    Coupling,
    Hypergraph,
    Step,
)
from experiments.benchmarks._session import Options, Session, run_op
from jaxgnn import nn, ops
from jaxgnn.models import ExpertGraphLM

# Relative to the largest entry of each array; torch's bfloat16 sums have many rounding errors.
_TOLERANCES = {"float32": 2e-2, "bfloat16": 1e-1}


def cases(workload: Coupling | Hypergraph | Step) -> Iterator[Case]:
    """Yields every dtype, and every direction of the ops."""
    for dtype in workload.dtypes:
        if isinstance(workload, Step):
            yield _step_case(workload, dtype)
        else:
            yield from _op_cases(workload, dtype)


def _op_cases(workload: Coupling | Hypergraph, dtype: str) -> Iterator[Case]:
    inputs = _hypergraphs.inputs(workload, dtype)
    itemsize = jnp.dtype(dtype).itemsize

    def build(name: ops.Name | None):
        coupled = isinstance(workload, Coupling)
        return _coupling(workload, dtype, name) if coupled else _convolution(name)

    for direction in _hypergraphs.DIRECTIONS:
        ours = Candidate(DIRECTIONS[direction](build(None)), inputs)
        peers = _hypergraphs.peers(workload, inputs, direction)
        what = f"{workload.name} {dtype} {direction}"
        if "PyG" in peers and not _comparable(what, ours, peers["PyG"], _TOLERANCES[dtype]):
            peers = {}
        if isinstance(workload, Coupling):
            nbytes = _hypergraphs.coupling_bytes(workload, direction, itemsize)
            op, flops = "expert_coupling", _hypergraphs.coupling_flops(workload, direction)
        else:
            nbytes = _hypergraphs.hypergraph_bytes(workload, direction, itemsize)
            op, flops = "hypergraph_conv", None
        yield Case(
            op=op,
            workload=workload,
            direction=direction,
            dtype=dtype,
            nbytes=nbytes,
            candidates={**implementations(build, direction, inputs), "auto": ours, **peers},
            edges=workload.incidence.num_incidences,
            flops=flops,
        )


def _convolution(name: ops.Name | None):
    def layer(incidence, arrays):
        x, (logits,), (kernel,), (bias,) = arrays
        weight = jax.nn.softplus(logits)
        options: dict[str, Any] = {"kernel": kernel, "bias": bias, "implementation": name}
        return ops.hypergraph_conv(x, incidence, weight, weighting="pyg", **options), None

    return layer


def _coupling(workload: Coupling, dtype: str, name: ops.Name | None):
    coupler = nnx.eval_shape(
        lambda: nn.ExpertCoupler(
            workload.dim,
            workload.experts,
            layers=workload.layers,
            combiner=mean_over_experts,
            weighting="pyg",
            dtype=jnp.dtype(dtype),
            # The name alone would select the kernel of the sums.
            path="mixing" if name == "pallas" else "auto",
            implementation=name,
            rngs=nnx.Rngs(0),
        )
    )
    graphdef = nnx.split(coupler)[0]

    def layers(_, arrays):
        x, *groups = arrays
        state = {
            "layers": {
                i: {"weights": {"logits": logits}, "kernel": kernel, "bias": bias}
                for i, (logits, kernel, bias) in enumerate(zip(*groups, strict=True))
            }
        }
        return nnx.merge(graphdef, state)(x), None

    return layers


def mean_over_experts(h: jax.Array) -> jax.Array:
    """The mean over the experts: the combiner without its linear map and norm."""
    return jnp.mean(h, axis=-2)


def _comparable(what: str, ours: Candidate, peer: Candidate, tolerance: float) -> bool:
    """Whether the peer runs here and computes the same; prints if not."""
    try:
        return agree(what, ours, peer, tolerance)
    except RuntimeError as error:  # an error in torch, such as out of memory, costs only its rows
        print(f"{what}: no rows of PyG: {error}", flush=True)
        return False


def agree(what: str, ours: Candidate, peer: Candidate, tolerance: float) -> bool:
    """Whether results and gradients agree; prints their largest difference.

    Args:
      what: name of the comparison.
      ours: our candidate.
      peer: another library's candidate.
      tolerance: largest allowed difference of an array, relative to its largest entry.
    """
    result = jax.jit(ours.run)(*ours.inputs[0])
    expected = [np.asarray(array, np.float32) for array in jax.tree.leaves(result)]
    del result  # the peer needs the memory
    theirs = _hypergraphs.peer_arrays(peer.run(*peer.inputs[0]))
    differences = [
        np.abs(e - t.reshape(e.shape)).max() / np.abs(e).max()
        for e, t in zip(expected, theirs, strict=True)
    ]
    # NumPy's maximum of values with a NaN is NaN, unlike Python's, and then counts as different.
    largest = float(np.max(differences))
    same = largest <= tolerance
    verdict = "" if same else f", more than {tolerance:.0e}: no rows of PyG"
    print(f"{what}: PyG differs from ours by {largest:.1e} of the largest entry{verdict}")
    return same


# -- a training step -----------------------------------------------------------------------------


def _step_case(workload: Step, dtype: str) -> Case:
    names: tuple[ops.Name | None, ...] = ("xla", None)
    made = {name or "auto": _step(workload, dtype, name) for name in names}
    parameters = sum(p.size for p in jax.tree.leaves(made["auto"].inputs[0][0][0]))
    return Case(
        op="expert_lm",
        workload=workload,
        direction="training step",
        dtype=dtype,
        # The gradient written and read; parameters and two moments read and written.
        nbytes=8 * 4 * parameters,
        candidates=made,
    )


def _step(workload: Step, dtype: str, name: ops.Name | None) -> Candidate:
    """``(state, tokens) -> (state, loss)``, compiled; the input state is not donated."""
    model = nnx.jit(_make_model, static_argnums=(0, 1, 2))(workload, dtype, name)
    graphdef, parameters = nnx.split(model)
    parameters = nnx.to_pure_dict(parameters)
    optimizer = optax.adamw(1e-3)

    def loss_of(parameters, tokens):
        logits = nnx.merge(graphdef, parameters)(tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(state, tokens):
        parameters, moments = state
        loss, gradient = jax.value_and_grad(loss_of)(parameters, tokens)
        # Optax mixes dtypes, which JAX refuses under strict promotion.
        with jax.numpy_dtype_promotion("standard"):
            updates, moments = optimizer.update(gradient, moments, parameters)
            return (optax.apply_updates(parameters, updates), moments), loss

    shape = workload.batch, workload.nodes // workload.batch + 1
    tokens = jax.random.randint(jax.random.key(0), shape, 0, workload.vocabulary)
    return Candidate(step, [((parameters, optimizer.init(parameters)), tokens)])


def _make_model(workload: Step, dtype: str, name: ops.Name | None) -> ExpertGraphLM:
    return ExpertGraphLM(
        workload.vocabulary,
        workload.dim,
        num_layers=workload.layers,
        num_heads=4,
        num_experts=workload.experts,
        coupler_layers=workload.layers,
        implementation=name,
        dtype=jnp.dtype(dtype),
        rngs=nnx.Rngs(0),
    )


TABLES: tuple[Mapping, ...] = (COUPLINGS, HYPERGRAPHS, STEPS)

if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, *TABLES)), Options, __doc__)
