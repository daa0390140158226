"""Values that no layer and no model accepts, by the names of options."""

import inspect
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxgnn import nn

_NO_WIDTHS = [0, -1, 2.0, "8", True]
_NO_NUMBERS = [0, 1.5, "2", True]
_NO_FLAGS = ["yes", 1, None]
_NO_NAMES = ["none", 1]
_NO_NUMBERS_OF_SPECIES = ["1", None, jnp.nan, (1.0, jnp.inf), (1.0, 2.0, 3.0), [[1.0], [2.0]]]

BAD = {
    "activation": ["rellu", 3],
    "add_self_loops": ["yes", 1],
    "aggregation": _NO_NAMES,
    "aggregators": [[], ["median"], ["max", "max"], "max", None],
    "alpha": ["0", jnp.nan],
    "alpha_init": ["0", jnp.inf],
    "attention_dropout": [-0.1, 1.0, "0.5"],
    "attention_mode": _NO_NAMES,
    "average_degree": [None, 2.5, (2.5, 1.1), nn.DegreeAverages(0.0, 1.0)],
    "attention_type": _NO_NAMES,
    "beta": [None, jnp.nan],
    "bias_init": ["zeros"],
    "box": [1, 3.0, "3"],
    "by": _NO_NAMES,
    "combiner": ["mean"],
    "concat": _NO_FLAGS,
    "convention": ["peper", 3, []],
    "correlation": [0, 4, "3", None],
    "coupler_layers": _NO_NUMBERS,
    "coupling": [*_NO_NAMES, []],
    "cutoff": [0, -1.0, "1", jnp.nan],
    "divide_input": _NO_FLAGS,
    "dropout": [-0.1, 1.0, jnp.nan, "0.5", None],
    "dtype": ["flot32", jnp.int32, 3],
    "dynamic": _NO_FLAGS,
    "early_stop": [-1, 1.5, "4"],
    "edge_dim": _NO_NUMBERS,
    "edge_dropout": [-0.1, 1.0, "0.5"],
    "edge_features": [-1, 1.5, "2"],
    "edge_values": _NO_FLAGS,
    "embedding": _NO_NAMES,
    "embedding_features": _NO_WIDTHS,
    "envelope_power": [1, 2.5, "6"],
    "epsilon": [0, -1.0, "1", jnp.nan],
    "features": _NO_WIDTHS,
    "features_argument": [-1, 0.0],
    "fill_value": ["median", None, jnp.nan, [], ["1"], [0.0, jnp.inf], [1.0, 2.0]],
    "gate": [None, 3],
    "gate_activation": ["rellu", 3],
    "global_features": _NO_WIDTHS,
    "gradient": _NO_NAMES,
    "group_sizes": [[-1, 2], [1.5], 3],
    "heads": _NO_NUMBERS,
    "hidden_features": _NO_WIDTHS,
    "hyper_connections": _NO_NUMBERS,
    "identity": [1.0, "0.9", jnp.nan],
    "implementation": ["cuda", 1],
    "individually": _NO_FLAGS,
    "in_features": _NO_WIDTHS,
    "initial": [0.0, "1", jnp.nan],
    "input_features": [-1, 1.5],
    "irreps": ["2x0z", 3, "", "2x1o"],
    "irreps_in": ["2x0z", 3, ""],
    "irreps_out": ["2x0z", 3, ""],
    "irreps_sh": ["2x0z", 3, "2x0e"],
    "k": [0, 2.5, "2", True],
    "keep_outputs": _NO_FLAGS,
    "kernel_init": [1.0],
    "kernel_mode": _NO_NAMES,
    "kind": ["cnn", 1, []],
    "laplacian_features": [-1, 1.5],
    "layer": [None, 3],
    "layer_index": [1.5, "0"],
    "layers": _NO_NUMBERS,
    "linear": _NO_FLAGS,
    "message_features": _NO_WIDTHS,
    "messages": [None, 3],
    "metadata": [None, (), ((), ()), (("a",), [("a", "b", "c")]), (("a",), ["a"])],
    "missing": _NO_NAMES,
    "mixing": _NO_NAMES,
    "max_degree": [-1, 1.5, "2"],
    "mlp": ["relu"],
    "mode": _NO_NAMES,
    "momentum": [-0.1, 1.1, "0.9", None],
    "negative_slope": ["0.2", jnp.nan],
    "norm": _NO_FLAGS,
    "normalization": _NO_NAMES,
    "normalize": _NO_FLAGS,
    "num": _NO_NUMBERS,
    "num_bases": _NO_NUMBERS,
    "num_basis": _NO_NUMBERS,
    "num_blocks": [*_NO_NUMBERS, 3],
    "num_experts": _NO_NUMBERS,
    "num_filters": _NO_NUMBERS,
    "num_gaussians": [1, 2.5, "2"],
    "num_heads": [0, 3, 2.0, "2"],
    "num_hyperedges": [-1, 1.5, "2"],
    "num_interactions": _NO_NUMBERS,
    "num_layers": _NO_NUMBERS,
    "num_neighbours": [0, -1.0, "1", jnp.nan],
    "num_relations": _NO_NUMBERS,
    "num_species": _NO_NUMBERS,
    "num_steps": _NO_NUMBERS,
    "num_streams": _NO_NUMBERS,
    "num_terms": _NO_NUMBERS,
    "out_features": _NO_WIDTHS,
    "param_dtype": ["flot32", jnp.int32],
    "path": _NO_NAMES,
    "place": _NO_NUMBERS,
    "post_layers": _NO_NUMBERS,
    "pre_layers": _NO_NUMBERS,
    "precision": ["tf", 3],
    "rate": [-0.1, 1.0, "0.5", None],
    "radial_features": [[0], [2.5], 3],
    "ratio": [0.0, 1.5, "0.5", jnp.nan],
    "recompute": _NO_FLAGS,
    "recompute_every": [0, "often", 1.5, True],
    "recompute_weights": ["yes", 1],
    "reduce": ["min", 1],
    "requires_grad": _NO_FLAGS,
    "residual": _NO_FLAGS,
    "rngs": [None, jax.random.key(0), 0],
    "root_weight": _NO_FLAGS,
    "scalers": [[], ["log"], "identity", ["linear", "linear"]],
    "scale": [0.0, -1, "1", None],
    "scan_layers": _NO_FLAGS,
    "shares": [3, "12", (1.0,), (1.0, 0.0), (1.0, jnp.nan), (1.0, 1.0, 1.0)],
    "share_weights": _NO_FLAGS,
    "species_scale": _NO_NUMBERS_OF_SPECIES,
    "species_shift": _NO_NUMBERS_OF_SPECIES,
    "species_weights": _NO_FLAGS,
    "strength": ["0.5", jnp.nan],
    "subtract_lone_atoms": _NO_FLAGS,
    "summed": _NO_NAMES,
    "strategy": ["pairs", [{0, 99}]],
    "towers": _NO_NUMBERS,
    "undirected": _NO_FLAGS,
    "update": [None, 3],
    "use_affine": _NO_FLAGS,
    "use_attention": _NO_FLAGS,
    "use_bias": _NO_FLAGS,
    "use_linear_bias": _NO_FLAGS,
    "use_scale": _NO_FLAGS,
    "value": [3, "x"],
    "virtual_nodes": [-1, 1.5],
    "vocabulary": _NO_WIDTHS,
    "walk_features": [-1, 1.5],
    "weighting": _NO_NAMES,
    "widths": [[], [0], [2.5], 3],
    "mlp_features": [[0], [2.5]],
}
# Options that mean something else in one layer than in others.
OWN = {
    **{
        (name, "in_features"): [*_NO_WIDTHS, (8,), (8, 0), (8, "8"), (8, 8, 8)]
        for name in (
            "GATConv",
            "GATv2Conv",
            "LEConv",
            "RGCNConv",
            "ResGatedGraphConv",
            "SAGEConv",
            "TransformerConv",
        )
    },
    ("APPNP", "alpha"): [-0.1, 1.1, "0.1"],
    ("GCNIIConv", "alpha"): [-0.1, 1.1, "0.1"],
    ("GCNIIConv", "strength"): [0, "0.5", jnp.nan],
    ("HeteroConv", "layers"): [{}, 3, {"cites": jnp.tanh}, {("a", "b", "c"): None}],
    ("HeteroConv", "reduce"): _NO_NAMES,
    ("HGTConv", "in_features"): [*_NO_WIDTHS, {"author": 8}, {"paper": 0}],
    **{
        (name, "reduce"): ["median", 1, ("max", "min")]
        for name in ("EdgeConv", "GatedGraphConv", "SAGEConv")
    },
    **{
        (name, option): values
        for name in ("EncodeProcessDecode", "GraphNetBlock", "InteractionNetwork")
        for option, values in {
            "norm": ["batch", 1, True],
            "out_features": [0, -1, 2.0, "8"],
            "reduce": ["max", 1],
        }.items()
    },
    ("NequIP", "norm"): ["batch", 1, True],
    ("InteractionNetwork", "features"): [*_NO_WIDTHS, (8,), (8, 0), (8, "8"), (8, 8, 8)],
    ("MessagePassing", "reduce"): ["median", 1, [], ["max", "median"]],
    ("EdgeConv", "mlp"): [None, "relu"],
    ("TransformerConv", "beta"): _NO_FLAGS,
    ("GaussianBasis", "num"): [1, 2.5, "2"],
    ("GCNII", "alpha"): [-0.1, 1.0, "0.1"],
    ("FusedMLP", "features"): [[8], [8, 0], 8, [8, "4"]],
    ("EdgeMLP", "features"): [0, 2.0, (8,), (8, 0), "8"],
    ("GraphTransformer", "mlp_features"): _NO_WIDTHS,
    ("MLPUpdate", "hidden_features"): [[0], [2.5]],
    ("HyperStack", "layers"): [[], [nnx.Dropout(0.5)], 3],
    ("CausalLM", "recompute_every"): [2],
}


def bad_options(name: str, module: type[nnx.Module]) -> Iterator:
    """A parameter for each option of a module: its name, and values that it must not have."""
    # Those of a module without options are the ``args`` and ``kwargs`` of any object.
    parameters = inspect.signature(module.__init__).parameters
    for option in [o for o in parameters if o not in ("self", "args", "kwargs")]:
        values = OWN.get((name, option)) or BAD[option]
        yield pytest.param(name, option, values, id=f"{name}-{option}")


def assert_refused(make, option: str, values: list) -> None:
    """Making the module names the option, or that it is a number of features."""
    for value in values:
        with pytest.raises(ValueError, match=r"^\w+(\.\w+)?: .* must be ") as error:
            make(nnx.Rngs(0), **{option: value})
        complaint = str(error.value)
        assert any(name in complaint for name in _NAMES.get(option, (option,))), complaint


_WIDTH = "the number of features"
# Names of options in errors, where they differ.
_NAMES = {
    **{
        option: (_WIDTH, option)
        for option in ("features", "in_features", "out_features", "hidden_features", "widths")
    },
    **{
        option: (_WIDTH,)
        for option in ("message_features", "embedding_features", "global_features", "vocabulary")
    },
    "mlp_features": (_WIDTH,),
    "num_layers": (_WIDTH, "num_layers"),
    "hyper_connections": ("hyper_connections", "num_streams"),
    "coupler_layers": ("layers",),
    "strategy": ("strategy", "node_ids", "num_nodes"),
}
