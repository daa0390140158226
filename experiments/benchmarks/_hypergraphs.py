"""Timed hypergraphs and couplings of experts: bytes, inputs, and torch-geometric's layers."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import jax
import numpy as np

from experiments.benchmarks._baselines import to_torch, torch_call, torch_here, wait_for_torch
from experiments.benchmarks._cases import Candidate
from experiments.benchmarks._layers import with_tf32
from experiments.benchmarks._workloads import Platform, Scale, input_sets
from jaxgnn.graph import Incidence

# The backward passes need results of the forward passes, so they are timed together.
DIRECTIONS = ("forward", "forward+backward")


@dataclass(frozen=True)
class Coupling:
    """Tokens of experts that share one hypergraph, all pairs of experts.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of tokens; each token has all experts.
      dim: width of the features.
      experts: number of experts, which are the nodes of the hypergraph.
      layers: number of convolutions.
      dtypes: dtypes of the features.
    """

    name: str
    nodes: int
    dim: int = 256
    experts: int = 8
    layers: int = 2
    dtypes: tuple[str, ...] = ("float32", "bfloat16")

    @cached_property
    def incidence(self) -> Incidence:
        """The hypergraph of the experts, with all pairs as hyperedges."""
        pairs = itertools.combinations(range(self.experts), 2)
        return Incidence.from_hyperedges(pairs, self.experts)


@dataclass(frozen=True)
class Hypergraph:
    """One large hypergraph of uniformly random incidences.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of nodes.
      hyperedges: number of hyperedges.
      incidences: number of incidences, drawn independently with repeats.
      dim: width of the features.
      dtypes: dtypes of the features.
    """

    name: str
    nodes: int
    hyperedges: int
    incidences: int
    dim: int = 128
    dtypes: tuple[str, ...] = ("float32",)

    @cached_property
    def incidence(self) -> Incidence:
        """The hypergraph, built once."""
        return _uniform(self.nodes, self.hyperedges, self.incidences)


@dataclass(frozen=True)
class Step:
    """A training step of ``models.ExpertGraphLM``.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of tokens in a step.
      batch: number of texts in a step.
      dim: width of the features.
      experts: number of experts in each layer.
      layers: number of layers of the model, and of hypergraph convolutions in each of them.
      vocabulary: number of different tokens.
      dtypes: dtypes of the computation.
    """

    name: str
    nodes: int
    batch: int
    dim: int = 256
    experts: int = 8
    layers: int = 2
    vocabulary: int = 50_257
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def _tokens(count: int, **options) -> Coupling:
    return Coupling(f"{count} tokens", count, **options)


_SMALL = {"dim": 64, "dtypes": ("float32",)}
_MILLION = (Hypergraph("1M nodes", 1_000_000, 200_000, 5_000_000),)

COUPLINGS: dict[tuple[Platform, Scale], tuple[Coupling, ...]] = {
    ("cpu", "tiny"): (_tokens(6, dim=8, experts=4, dtypes=("float32",)),),
    ("cpu", "small"): (_tokens(1024, **_SMALL),),
    ("cpu", "full"): (_tokens(256), _tokens(4096, dtypes=("float32",))),
    ("gpu", "tiny"): (_tokens(64, **_SMALL),),
    ("gpu", "small"): (_tokens(32768),),
    ("gpu", "full"): (_tokens(256), _tokens(4096), _tokens(32768)),
}

HYPERGRAPHS: dict[tuple[Platform, Scale], tuple[Hypergraph, ...]] = {
    ("cpu", "tiny"): (Hypergraph("uniform-40-12", 40, 12, 90, 8),),
    ("cpu", "small"): (Hypergraph("20k nodes", 20_000, 4_000, 100_000, 64),),
    ("cpu", "full"): (Hypergraph("200k nodes", 200_000, 40_000, 1_000_000),),
    ("gpu", "tiny"): (Hypergraph("uniform-200-60", 200, 60, 900, 64),),
    ("gpu", "small"): _MILLION,
    ("gpu", "full"): _MILLION,
}

_SEED = (Step("8 experts 4x64", 256, 4),)

STEPS: dict[tuple[Platform, Scale], tuple[Step, ...]] = {
    ("cpu", "tiny"): (Step("2 experts 2x8", 16, 2, 8, 2, 1, 32, ("float32",)),),
    ("cpu", "small"): (Step("4 experts 4x64", 256, 4, 64, 4, 2, 256, ("float32",)),),
    ("cpu", "full"): _SEED,
    ("gpu", "tiny"): (Step("2 experts 2x8", 16, 2, 64, 2, 1, 32, ("float32",)),),
    ("gpu", "small"): _SEED,
    ("gpu", "full"): _SEED,
}


@cache
def _uniform(nodes: int, hyperedges: int, incidences: int) -> Incidence:
    rng = np.random.default_rng(0)
    index = rng.integers(0, np.array([[nodes], [hyperedges]]), (2, incidences), dtype=np.int32)
    return Incidence.from_hyperedge_index(index, nodes, hyperedges)


# -- bytes ---------------------------------------------------------------------------------------


def coupling_bytes(workload: Coupling, direction: str, itemsize: int) -> int:
    """Bytes of the experts' rows, once for each pass of plain XLA that must read or write them.

    With ``h`` and ``z = h Θ`` of a layer. Forward: the product (h in, z out); then mixing,
    activation and sum in one pass (z, h in, h out). Backward: the gradient before the activation
    (dh, z in, dy out); that of z (dy in, dz out); the products for the mixing matrix (dy, z), for Θ
    (h, dz) and for h (dz in, dh out). The last layer's h is averaged at once, and its gradient is
    the same for all experts, so neither is stored. Rows of the average are counted once in each
    direction.

    Args:
      workload: tokens, experts and layers.
      direction: ``"forward"`` or ``"forward+backward"``.
      itemsize: bytes of a feature.

    Raises:
      KeyError: if there is no such direction.
    """
    # Rows of all experts; then rows of their average.
    experts = {"forward": 5 * workload.layers - 1}
    experts["forward+backward"] = experts["forward"] + 11 * workload.layers - 1
    averages = {"forward": 1, "forward+backward": 2}
    rows = experts[direction] * workload.experts + averages[direction]
    return rows * workload.nodes * workload.dim * itemsize


def hypergraph_bytes(workload: Hypergraph, direction: str, itemsize: int) -> int:
    """Bytes of one direction: two gathered rows per incidence, ids, rows of both sides, product.

    The backward does the same on the transposed structure, with two products.

    Raises:
      KeyError: if there is no such direction.
    """
    row, index = workload.dim * itemsize, 4
    gathered = 2 * workload.incidences * (row + index)
    offsets = (workload.nodes + workload.hyperedges) * index
    written = (workload.nodes + workload.hyperedges) * row
    products = {"forward": 2, "forward+backward": 6}  # rows of the nodes, in and out
    ways = {"forward": 1, "forward+backward": 2}
    one_way = gathered + offsets + written
    return ways[direction] * one_way + products[direction] * workload.nodes * row


def coupling_flops(workload: Coupling, direction: str) -> int:
    """Multiplications and additions of the products with Θ, including mixing."""
    rows = workload.nodes * workload.experts
    layer = 2 * rows * workload.dim * (workload.dim + workload.experts)
    return {"forward": 1, "forward+backward": 3}[direction] * workload.layers * layer


# -- inputs --------------------------------------------------------------------------------------


def inputs(workload: Coupling | Hypergraph, dtype: str) -> list[tuple]:
    """Random sets of ``(incidence, (x, logits, kernels, biases), dy)``.

    The weights of the hyperedges are the softplus of float32 logits. A coupling has an x for each
    expert and a dy for each token; logits, kernels and biases are tuples, one entry a layer.
    """
    coupled = isinstance(workload, Coupling)
    layers = workload.layers if coupled else 1
    rows = (workload.nodes, workload.experts) if coupled else (workload.nodes,)
    dim, hyperedges = workload.dim, workload.incidence.num_hyperedges

    def make(key):
        keys = jax.random.split(key, 5)

        def normal(i, *shape):
            return jax.random.normal(keys[i], shape)

        kernels = (dim**-0.5 * normal(0, layers, dim, dim)).astype(dtype)
        biases = (0.1 * normal(1, layers, dim)).astype(dtype)
        parameters = (
            tuple(stacked) for stacked in (normal(2, layers, hyperedges), kernels, biases)
        )
        # Gradients of parameters are sums over the rows.
        dy = (workload.nodes**-0.5 * normal(4, workload.nodes, dim)).astype(dtype)
        return (normal(3, *rows, dim).astype(dtype), *parameters), dy

    return [(workload.incidence, *arrays) for arrays in input_sets(make)]


# -- torch-geometric -----------------------------------------------------------------------------


def peers(
    workload: Coupling | Hypergraph, sets: Sequence[tuple], direction: str
) -> dict[str, Candidate]:
    """torch-geometric's layers where they are installed; prints once if they are not.

    A coupling has two: ``PyG``, which computes the same as ours, and ``PyG convs``, which omits
    activation and sum between its convolutions.
    """
    reason = _unavailable()
    if reason is not None:
        _say(f"no rows of torch-geometric: {reason}")
        return {}
    coupled = isinstance(workload, Coupling)
    forms = {"PyG": coupled, "PyG convs": False} if coupled else {"PyG": False}
    convolve = _peer_convolution(workload)
    made = {}
    for name, activated in forms.items():
        calls = []
        for _, (x, *groups), dy in sets:
            leaves = [to_torch(array) for array in jax.tree.leaves((x, groups))]
            layer = partial(_peer_layers, convolve, workload, activated)
            calls.append((with_tf32(torch_call(direction, layer, leaves, to_torch(dy))),))
        made[name] = Candidate(lambda call: call(), calls, jit=False, wait=wait_for_torch)
    return made


def peer_arrays(result: Any) -> list[np.ndarray]:
    """The result of a candidate of ``peers`` as float32: y, then the gradients in our order."""
    y, gradients = result if isinstance(result, tuple) else (result, ())
    return [array.detach().float().cpu().numpy() for array in (y, *gradients)]


@cache
def _unavailable() -> str | None:
    """The reason that torch-geometric can not be compared; None if it can."""
    if torch_here() is None:
        return "torch not installed, or without this device"
    if importlib.util.find_spec("torch_geometric") is None:
        return "torch_geometric not installed"
    return None


@cache
def _say(text: str) -> None:
    """Prints a message once per process."""
    print(text, flush=True)


def _peer_convolution(workload: Coupling | Hypergraph) -> Callable:
    """``(x [nodes of all tokens, dim], logits, kernel, bias) -> y``, by ``HypergraphConv``."""
    torch = importlib.import_module("torch")
    geometric = importlib.import_module("torch_geometric.nn")
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    tokens = workload.nodes if isinstance(workload, Coupling) else 1
    index = torch.from_numpy(index_of_tokens(workload.incidence, tokens)).to(device)
    hyperedges = tokens * workload.incidence.num_hyperedges
    conv = geometric.HypergraphConv(workload.dim, workload.dim).to(device)

    def convolve(x, logits, kernel, bias):
        weight = torch.nn.functional.softplus(logits).to(x.dtype).repeat(tokens)
        parameters = {"lin.weight": kernel.T, "bias": bias}
        options = {"hyperedge_weight": weight, "num_edges": hyperedges}
        return torch.func.functional_call(conv, parameters, (x, index), options)

    return convolve


def index_of_tokens(incidence: Incidence, tokens: int) -> np.ndarray:
    """``hyperedge_index`` [2, tokens x incidences] int64 of disjoint copies, one for each token."""
    ids = np.stack([np.asarray(incidence.node_ids), np.asarray(incidence.hyperedge_ids)])
    sizes = np.array(incidence.shape)[:, None, None]
    offsets = sizes * np.arange(tokens)[:, None]
    return (ids[:, None, :] + offsets).reshape(2, -1).astype(np.int64)


def _peer_layers(convolve: Callable, workload: Coupling | Hypergraph, activated: bool, x, *rest):
    """The layers; for a coupling, followed by the mean over the experts."""
    functional = importlib.import_module("torch.nn.functional")
    shape, layers = x.shape, len(rest) // 3
    x = x.reshape(-1, shape[-1])
    for parameters in zip(*(rest[i * layers : (i + 1) * layers] for i in range(3)), strict=True):
        y = convolve(x, *parameters)
        x = x + functional.gelu(y, approximate="tanh") if activated else y
    return x.reshape(shape).mean(dim=1) if isinstance(workload, Coupling) else x
