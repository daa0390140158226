"""Names and shapes of layers' parameters in PyTorch Geometric.

``ROWS`` has a row for each class of layer. A row is a list of parameters and of parts, which are
modules inside the layer with their own rows. Networks need no row: a module without a row is read
by its attributes, whose names are those of the PyTorch module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxgnn import nn
from jaxgnn._errors import bad_input
from jaxgnn.models import MaxKGNN


class Form(NamedTuple):
    """Conversion of an array of PyTorch Geometric to one of this library, and back."""

    here: Callable[[np.ndarray], np.ndarray]
    there: Callable[[np.ndarray], np.ndarray]


SAME = Form(lambda a: a, lambda a: a)
TRANSPOSED = Form(lambda a: a.T, lambda a: a.T)
ONE_MORE_AXIS = Form(lambda a: a[0], lambda a: a[None])  # [1, ...] there, [...] here


class Match(NamedTuple):
    """A parameter here, and its name there.

    Attributes:
      ours: path of attributes from the layer to the parameter, such as ``"src_linear.kernel"``.
        ``*`` stands for all items of a list: the array there has them along its first axis.
      theirs: name in the state dict, after the prefix of the layer.
      form: how one array becomes the other.
      shared: parameter that must be equal where the layer lacks ``ours``, since it shares them.
      older: whether this name is read and not written: that of an earlier release, or of another
        layer there that is the same one here.
      at: place on the first axis of the parameter, of which the array there is this part; None for
        all of it.
    """

    ours: str
    theirs: str
    form: Form = SAME
    shared: str | None = None
    older: bool = False
    at: int | None = None


class Number(NamedTuple):
    """A number of the layer, the field of a record, that is an optional array [1] there."""

    ours: str  # the record and the field, separated by a dot
    theirs: str


class Part(NamedTuple):
    """A module inside a layer, and its prefix in the state dict."""

    ours: str  # path of attributes from the layer, such as "convolutions.0"
    theirs: str
    unused: bool = False  # whether the arrays there are ignored if the layer lacks the module
    older: bool = False  # whether this prefix is read and not written


class Ignored(NamedTuple):
    """The name of an array that is ignored here."""

    theirs: str


class InOrder(NamedTuple):
    """Names in the order of a state dict, by which other arrays are stacked."""

    theirs: tuple[str, ...]
    what: str  # description of the named things


KINDS = nnx.Param, nnx.BatchStat  # The variables that a state dict holds.

type Entry = Match | Number | Part | Ignored | InOrder
type Row = Sequence[Entry]


def _matches(names: dict[str, str], form: Form = SAME, **options: Any) -> list[Match]:
    return [Match(ours, theirs, form, **options) for ours, theirs in names.items()]


def _kernel(ours: str, theirs: str, **options: Any) -> Match:
    """Returns the matrix of a linear layer, [in, out] here and [out, in] there."""
    return Match(f"{ours}.kernel", f"{theirs}.weight", TRANSPOSED, **options)


def _parts(names: dict[str, str]) -> list[Part]:
    return [Part(ours, theirs) for ours, theirs in names.items()]


_BIAS = Match("bias", "bias")
_LINEAR = [Match("kernel", "weight", TRANSPOSED), _BIAS]
_LIN = [_kernel("linear", "lin"), _BIAS]
_NORM = [Match("scale", "weight"), _BIAS]
_BATCH_NORM = [
    *_NORM,
    *_matches({"mean": "running_mean", "var": "running_var"}),
    Ignored("num_batches_tracked"),
]
_SAGE = [
    _kernel("neighbor_linear", "lin_l"),
    _kernel("self_linear", "lin_r"),
    Match("self_linear.bias", "lin_l.bias"),
    _kernel("neighbor_linear", "lin_rel", older=True),  # GraphConv, which is one of sums
    _kernel("self_linear", "lin_root", older=True),
    Match("self_linear.bias", "lin_rel.bias", older=True),
]
_OF_EDGES = [*_parts({"edge_linear": "lin_edge", "residual_linear": "res"}), _BIAS]
_ATTENTION = {f"{end}_attention": f"att_{end}" for end in ("src", "dst", "edge")}
_GAT_ATTENTION = [*_matches(_ATTENTION, ONE_MORE_AXIS), *_OF_EDGES]
_GAT = [
    _kernel("src_linear", "lin"),
    _kernel("src_linear", "lin_src", older=True),
    _kernel("dst_linear", "lin_dst", shared="src_linear.kernel", older=True),
    *_GAT_ATTENTION,
]
_BIPARTITE_GAT = [
    _kernel("src_linear", "lin_src"),
    _kernel("dst_linear", "lin_dst"),
    *_GAT_ATTENTION,
]
_GATV2 = [
    Part("src_linear", "lin_l"),
    _kernel("dst_linear", "lin_r", shared="src_linear.kernel"),
    Match("dst_linear.bias", "lin_r.bias", shared="src_linear.bias"),
    Match("attention", "att", ONE_MORE_AXIS),
    *_OF_EDGES,
]
_TRANSFORMER = [
    *_parts({f"{x}_linear": f"lin_{x}" for x in ("query", "key", "value", "edge", "beta")}),
    Part("root_linear", "lin_skip", unused=True),  # also there with root_weight=False
]
_GATED = [
    *_parts({f"{x}_linear": f"lin_{x}" for x in ("key", "query", "value")}),
    Part("root_linear", "lin_skip"),
    _BIAS,
]
_GIN = [Match("epsilon", "eps", ONE_MORE_AXIS), Part("mlp", "nn")]
_GATED_GRAPH = [
    Match("linears.*.kernel", "weight"),
    Match("message_gates.kernel", "rnn.weight_ih", TRANSPOSED),
    Match("message_gates.bias", "rnn.bias_ih"),
    Match("state_gates.kernel", "rnn.weight_hh", TRANSPOSED),
    Match("state_gates.bias", "rnn.bias_hh"),
]
_RGCN = {"kernel": "weight", "coefficients": "comp", "root_linear.kernel": "root", "bias": "bias"}
_CF = {"sender_linear": "lin1", "linear": "lin2", "filter_hidden": "nn.0", "filter_linear": "nn.2"}
_SCHNET = {
    "conv": "conv",
    "conv.filter_hidden": "mlp.0",  # its name is conv.nn.0 there
    "conv.filter_linear": "mlp.2",
    "linear": "lin",
}


def _pna(layer: nn.PNAConv) -> Row:
    """A tower is a ``Sequential`` there, and an index on the first axis of the parameters here."""
    networks = {"pre": 1 + len(layer.pre_others), "post": 1 + len(layer.post_others)}
    towers = [
        Match(f"{path}.{ours}", f"{name}_nns.{tower}.{2 * i}.{theirs}", form, at=tower)
        for name, count in networks.items()
        for i in range(count)
        for path in [f"{name}_others.{i - 1}" if i else name]
        for tower in range(layer.towers)
        for ours, theirs, form in (("kernel", "weight", TRANSPOSED), ("bias", "bias", SAME))
    ]
    averages = [
        Number(f"average_degree.{ours}", f"aggr_module.avg_deg_{theirs}")
        for ours, theirs in {"linear": "lin", "log": "log"}.items()
    ]
    return [Part("edge_linear", "edge_encoder"), *towers, Part("linear", "lin"), *averages]


def _key_first(a: np.ndarray) -> np.ndarray:
    """Reorders queries, keys and values on the first axis to keys, queries and values, and back."""
    first, second, third = np.split(a, 3)
    return np.concatenate([second, first, third])


def _hgt(layer: nn.HGTConv) -> Row:
    """Matrices of relations are stacked there by head and then by relation, here the other way."""
    counts = len(layer.edge_types), layer.heads

    def transposed(a: np.ndarray, first: int, second: int) -> np.ndarray:
        return a.reshape(first, second, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape)

    by_head = Form(lambda a: transposed(a, *counts[::-1]), lambda a: transposed(a, *counts))
    linear = Form(lambda a: _key_first(a).T, lambda a: _key_first(a.T))
    row: list[Entry] = []
    for i, node_type in enumerate(layer.node_types):
        name = node_type.replace(".", "#")
        row += [
            Match(f"qkv_linears.{i}.kernel", f"kqv_lin.lins.{name}.weight", linear),
            Match(f"qkv_linears.{i}.bias", f"kqv_lin.lins.{name}.bias", Form(*[_key_first] * 2)),
            Part(f"out_linears.{i}", f"out_lin.lins.{name}"),
            Match("skips", f"skip.{name}", ONE_MORE_AXIS, at=i),
        ]
    priors = [f"p_rel.{'__'.join(t).replace('.', '#')}" for t in layer.edge_types]
    row += [Match("priors", name, ONE_MORE_AXIS, at=i) for i, name in enumerate(priors)]
    row += [Match("key_kernel", "k_rel.weight", by_head)]
    row += [Match("value_kernel", "v_rel.weight", by_head)]
    return [*row, InOrder(tuple(priors), "relations")]


def _hetero(layer: nn.HeteroConv) -> Row:
    keys = (f"<{'___'.join(edge_type)}>".replace(".", "#") for edge_type in layer.edge_types)
    return [Part(f"layers.{i}", f"convs.{key}") for i, key in enumerate(keys)]


def _gat(layer: nn.GATConv) -> Row:
    return _GAT if layer.dst_linear is None else _BIPARTITE_GAT


def _mlp(mlp: nn.FusedMLP) -> Row:
    """Linear layers at every second index of a ``Sequential``, or in the list of an ``MLP``."""
    places = range(len(mlp.layers))
    return [
        *(Part(f"layers.{i}", f"{2 * i}") for i in places),
        *(Part(f"layers.{i}", f"lins.{i}", older=True) for i in places),
    ]


def _sequential(network: nnx.Sequential) -> Row:
    modules = [i for i, layer in enumerate(network.layers) if isinstance(layer, nnx.Module)]
    return [Part(f"layers.{i}", f"{i}") for i in modules]


# The layers of MaxK-GNN's published networks, built from DGL's; {i} is the layer's number.
_MAXK: dict[str, list[Match | Part]] = {
    "sage": [
        _kernel("convolutions.{i}.self_linear", "layers.{i}.fc_self"),
        Match("convolutions.{i}.self_linear.bias", "layers.{i}.fc_self.bias"),
        Match("convolutions.{i}.self_linear.bias", "layers.{i}.bias", older=True),
        _kernel("convolutions.{i}.neighbor_linear", "layers.{i}.fc_neigh"),
        Part("norms.{i}", "layers.{i}.norm"),
    ],
    "gcn": [
        Part("convolutions.{i}.linear", "linlayers.{i}"),
        Match("convolutions.{i}.bias", "gcnlayers.{i}.bias"),
        Part("norms.{i}", "normlayers.{i}"),
    ],
    "gin": [
        Part("convolutions.{i}.linear", "linlayers.{i}"),
        Match("convolutions.{i}.epsilon", "gcnlayers.{i}.eps", ONE_MORE_AXIS),
        Part("norms.{i}", "normlayers.{i}"),
    ],
}


def _maxk_gnn(model: MaxKGNN) -> Row:
    if model.body is not None:
        expected = "made without hyper_connections and scan_layers, to have the published names"
        raise bad_input("jaxgnn.interop", "layer", expected, "a MaxKGNN with one of them")
    layers = [
        entry._replace(ours=entry.ours.format(i=i), theirs=entry.theirs.format(i=i))
        for i in range(model.num_layers)
        for entry in _MAXK[model.kind]
    ]
    return [Part("lin_in", "lin_in"), *layers, Part("lin_out", "lin_out")]


ROWS: dict[type, Row | Callable[[Any], Row]] = {
    nn.SAGEConv: _SAGE,
    nn.GCNConv: _LIN,
    nn.GINConv: _GIN,
    nn.GATConv: _gat,
    nn.GATv2Conv: _GATV2,
    nn.TransformerConv: _TRANSFORMER,
    nn.ResGatedGraphConv: _GATED,
    nn.GatedGraphConv: _GATED_GRAPH,
    nn.PNAConv: _pna,
    nn.HGTConv: _hgt,
    nn.GINEConv: [*_GIN, Part("edge_linear", "lin")],
    nn.EdgeConv: _parts({"mlp": "nn"}),
    nn.CFConv: _parts(_CF),
    nn.SchNetInteraction: _parts(_SCHNET),
    nn.SGConv: [_kernel("linear", "lin"), Match("bias", "lin.bias")],
    nn.ChebConv: [Part("linears", "lins"), _BIAS],
    nn.LEConv: _parts({"sender_linear": "lin1", "receiver_linear": "lin2", "self_linear": "lin3"}),
    nn.GCNIIConv: _matches({"linear.kernel": "weight1", "initial_linear.kernel": "weight2"}),
    nn.RGCNConv: _matches(_RGCN),
    nn.HeteroConv: _hetero,
    nn.SuperGATConv: [
        *_LIN,
        *_matches({"src_attention": "att_l", "dst_attention": "att_r"}, ONE_MORE_AXIS),
    ],
    nn.AGNNConv: [Match("beta", "beta", ONE_MORE_AXIS)],
    nn.HypergraphConv: [
        Match("kernel", "lin.weight", TRANSPOSED),
        Match("attention", "att", ONE_MORE_AXIS),
        _BIAS,
    ],
    nn.FusedLinear: _LINEAR,
    nn.FusedMLP: _mlp,
    nn.BatchNorm: [Part("norm", "module")],
    nn.LayerNorm: _NORM,
    nn.GraphNorm: [*_NORM, Match("mean_scale", "mean_scale")],
    MaxKGNN: _maxk_gnn,
    nnx.Linear: _LINEAR,
    nnx.LayerNorm: _NORM,
    nnx.BatchNorm: _BATCH_NORM,
    nnx.Embed: [Match("embedding", "weight")],
    nnx.Sequential: _sequential,
}


def row_of(module: nnx.Module) -> Row:
    """The row of a module's class; for a user's class, a row with the names of its attributes.

    Raises:
      ValueError: for layers of this library with parameters but without a row.
    """
    for kind in type(module).__mro__:
        if kind in ROWS:
            row = ROWS[kind]
            return row(module) if callable(row) else row
    if type(module).__module__.startswith("jaxgnn.") and _has_variables(module):
        kinds = ", ".join(kind.__name__ for kind in ROWS if kind.__module__.startswith("jaxgnn."))
        expected = f"of a class whose parameters are known ({kinds})"
        raise bad_input("jaxgnn.interop", "layer", expected, f"a {type(module).__name__}")
    return _row_of_attributes(module)


def _row_of_attributes(module: nnx.Module) -> Row:
    if isinstance(module, nnx.List):
        children = {str(i): child for i, child in enumerate(module)}
    else:
        children = vars(module)
    parts = [Part(name, name) for name, child in children.items() if isinstance(child, nnx.Module)]
    matches = [Match(name, name) for name, child in children.items() if isinstance(child, KINDS)]
    return [*parts, *matches]


def _has_variables(module: nnx.Module) -> bool:
    return any(isinstance(node, KINDS) for _, node in nnx.iter_graph(module))
