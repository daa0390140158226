"""Convolutions with messages of edges, edge by edge in float64 numpy, as their papers have them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxgnn import CSRGraph, nn

IN, OUT, FEATURES = 6, 4, 3
ROWS, COLUMNS = 11, 8  # The bipartite graph; square ones have 11 nodes.


class Case(NamedTuple):
    """Edges in any order without padding, and features of nodes and edges, in float64.

    Attributes:
      senders: sender of each edge.
      receivers: receiver of each edge; the last three nodes receive nothing.
      edges: features of the edges.
      dst: features of the receivers.
      src: features of the senders.
    """

    senders: np.ndarray
    receivers: np.ndarray
    edges: np.ndarray
    dst: np.ndarray
    src: np.ndarray

    def graph(self, *, padding: int = 0) -> tuple[CSRGraph, Any]:
        """The graph, and the features of its slots, which are not numbers in padding."""
        width = [(0, padding)] + [(0, 0)] * (self.edges.ndim - 1)
        return CSRGraph.from_edges(
            np.pad(self.senders, (0, padding)),
            np.pad(self.receivers, (0, padding)),
            ROWS,
            num_senders=len(self.src),
            edge_mask=np.arange(len(self.senders) + padding) < len(self.senders),
            edge_data=np.pad(self.edges, width, constant_values=np.nan).astype(np.float32),
        )


def case(seed: int, *, columns: int | None = None, edge_dim: int | None = FEATURES) -> Case:
    """Random edges, repeated ones and loops among them; distances without an ``edge_dim``."""
    rng = np.random.default_rng(seed)
    receivers = rng.integers(0, ROWS - 3, 30)
    senders = rng.integers(0, columns or ROWS, 30)
    senders[:4] = receivers[:4] = [2, 2, 5, 5]
    shape = (30,) if edge_dim is None else (30, edge_dim)
    edges = rng.uniform(0.1, 1, shape) if edge_dim is None else rng.normal(size=shape)
    dst = rng.normal(size=(ROWS, IN))
    src = dst if columns is None else rng.normal(size=(columns, IN))
    # What float32 layers are given as well.
    arrays = (a.astype(np.float32).astype(np.float64) for a in (edges, dst, src))
    return Case(senders, receivers, *arrays)


def values(module: nnx.Module) -> dict[str, Any]:
    """The parameters of a module in float64, by their path with dots."""
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): np.asarray(v[...], np.float64) for path, v in state}


def linear(p: dict[str, Any], name: str, x: np.ndarray) -> np.ndarray:
    """The linear layer of this name."""
    return x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0)


def mlp(layer: Any, p: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """The layer's MLP, with the activation between its linear layers; nothing if it has none."""
    if layer.mlp is None:
        return x
    activation = {"relu": lambda z: np.maximum(z, 0), "silu": lambda z: z * sigmoid(z)}
    for i in range(len(layer.mlp.layers)):
        x = activation[layer.mlp.activation](x) if i else x
        x = linear(p, f"mlp.layers.{i}", x)
    return x


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def reduced(c: Case, messages: np.ndarray, reduce: str) -> np.ndarray:
    """Messages reduced at their receivers; zero where there are none."""
    y = np.zeros((ROWS, messages.shape[-1]))
    for row in np.unique(c.receivers):
        y[row] = getattr(np, reduce)(messages[c.receivers == row], axis=0)
    return y


def gine(layer: nn.GINEConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``mlp((1 + ε) x_i + Σ_j relu(x_j + W e + b))``."""
    edges = c.edges if layer.edge_linear is None else linear(p, "edge_linear", c.edges)
    messages = np.maximum(c.src[c.senders] + edges, 0)
    return mlp(layer, p, (1 + p["epsilon"]) * c.dst + reduced(c, messages, "sum"))


def edge_conv(layer: nn.EdgeConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``reduce_j mlp([x_i ; x_j - x_i])``."""
    receivers = c.dst[c.receivers]
    both = np.concatenate([receivers, c.src[c.senders] - receivers], axis=1)
    return reduced(c, mlp(layer, p, both), layer.reduce)


def res_gated(layer: nn.ResGatedGraphConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``W x_i + b + Σ_j σ(k_i + q_j + g_ij) (v_j + u_ij)``."""
    gates = (
        linear(p, "key_linear", c.dst)[c.receivers] + linear(p, "query_linear", c.src)[c.senders]
    )
    messages = linear(p, "value_linear", c.src)[c.senders]
    if layer.edge_dim is not None:
        gates = gates + linear(p, "edge_gate_linear", c.edges)
        messages = messages + linear(p, "edge_value_linear", c.edges)
    root = linear(p, "root_linear", c.dst) if layer.root_linear is not None else 0
    return reduced(c, sigmoid(gates) * messages, "sum") + root + p.get("bias", 0)


def pna(layer: nn.PNAConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``W post([x_i ; S_1 a_i ; ...]) + b`` of all towers, with an array of all messages."""
    towers, degrees = layer.towers, np.bincount(c.receivers, minlength=ROWS)
    mean, log = layer.average_degree
    one = np.maximum(degrees, 1)
    scales = {
        "identity": np.ones(ROWS),
        "amplification": np.log(degrees + 1) / log,
        "attenuation": log / np.log(one + 1),
        "linear": degrees / mean,
        "inverse_linear": mean / one,
    }
    of_towers = []
    for tower in range(towers):
        ends = [c.dst, c.src]
        if layer.divide_input:
            ends = [np.split(x, towers, axis=1)[tower] for x in ends]
        parts = [ends[0][c.receivers], ends[1][c.senders]]
        if layer.edge_dim is not None:
            parts.append(linear(p, "edge_linear", c.edges))
        messages = _tower_layers(p, "pre", tower, np.concatenate(parts, axis=1))
        reductions = np.concatenate(
            [reduced(c, messages, name) for name in layer.aggregators], axis=1
        )
        joined = [ends[0], *(scales[name][:, None] * reductions for name in layer.scalers)]
        of_towers.append(_tower_layers(p, "post", tower, np.concatenate(joined, axis=1)))
    return linear(p, "linear", np.concatenate(of_towers, axis=1))


def _tower_layers(p: dict[str, Any], name: str, tower: int, x: np.ndarray) -> np.ndarray:
    """The layers ``pre`` or ``post`` of a tower, with ReLU between them."""
    y = x @ p[f"{name}.kernel"][tower] + p[f"{name}.bias"][tower]
    for i in range(sum(path.startswith(f"{name}_others.") for path in p) // 2):
        others = f"{name}_others.{i}"
        y = np.maximum(y, 0) @ p[f"{others}.kernel"][tower] + p[f"{others}.bias"][tower]
    return y


def softplus(x: np.ndarray) -> np.ndarray:
    """``log(½ e^x + ½)``."""
    return np.log(0.5 * np.exp(x) + 0.5)


def cfconv(layer: nn.CFConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``W₂ Σ_j (W₁ x_j) f(d_ij) C(d_ij) + b``."""
    centres = np.linspace(0, layer.cutoff, layer.num_gaussians)
    smeared = np.exp(-0.5 / (centres[1] - centres[0]) ** 2 * (c.edges[:, None] - centres) ** 2)
    filters = linear(p, "filter_linear", softplus(linear(p, "filter_hidden", smeared)))
    inside = 0.5 * (np.cos(np.pi * c.edges / layer.cutoff) + 1) * (c.edges < layer.cutoff)
    messages = linear(p, "sender_linear", c.src)[c.senders] * filters * inside[:, None]
    return linear(p, "linear", reduced(c, messages, "sum"))


def schnet_block(layer: nn.SchNetInteraction, p: dict[str, Any], c: Case) -> np.ndarray:
    """``W softplus(cfconv(x)) + b``."""
    of_conv = {n.removeprefix("conv."): v for n, v in p.items() if n.startswith("conv.")}
    return linear(p, "linear", softplus(cfconv(layer.conv, of_conv, c)))


def gated(layer: nn.GatedGraphConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``h <- GRU(reduce_j W_t h_j, h)``, from x with zeros behind it."""
    h = np.pad(c.src, [(0, 0), (0, layer.out_features - IN)])
    for step in range(len(layer.linears)):
        m = reduced(c, linear(p, f"linears.{step}", h)[c.senders], layer.reduce)
        read = np.split(linear(p, "message_gates", m), 3, axis=1)
        kept = np.split(linear(p, "state_gates", h), 3, axis=1)
        r, z = (sigmoid(a + b) for a, b in zip(read[:2], kept[:2], strict=True))
        h = (1 - z) * np.tanh(read[2] + r * kept[2]) + z * h
    return h


def sage(layer: nn.SAGEConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``W_self x_i + b + W_neigh reduce_j x_j``."""
    neighbours = reduced(c, c.src[c.senders], layer.reduce)
    return linear(p, "self_linear", c.dst) + linear(p, "neighbor_linear", neighbours)


def gin(layer: nn.GINConv, p: dict[str, Any], c: Case) -> np.ndarray:
    """``mlp((1 + ε) x_i + Σ_j x_j)``, behind a linear layer of both ends if there is one."""
    ends = [c.dst, c.src]
    if layer.linear is not None:
        ends = [linear(p, "linear", x) for x in ends]
    return mlp(layer, p, (1 + p["epsilon"]) * ends[0] + reduced(c, ends[1][c.senders], "sum"))


Formula = Callable[[Any, dict[str, Any], Case], np.ndarray]
