"""Every layer and model that takes a graph gives on four devices what it gives on one."""

import pytest
from flax import nnx

from jaxgnn import models, nn
from tests.distributed._layers import (
    CASES,
    UNCUT,
    assert_as_on_one_device,
    assert_uncut_as_on_one_device,
)

ON_ONE_DEVICE = {
    "a batch of graphs; batches are divided among devices by examples": (
        "AttentionPooling NequIP PaiNN SchNet Set2Set SortPool TopKPooling VirtualNode"
    ),
    "hyperedges, which have no parts on devices": (
        "AllDeepSetsConv AllSetTransformerConv HGNNPlusConv HNHNConv HyperGCNConv HypergraphConv "
        "HyperedgeWeights UniGATConv UniGCNConv UniGINConv UniSAGEConv HypergraphGNN"
    ),
    "sums at senders and over the whole graph, which are on other devices": "GraphNetBlock",
    "numbers of the whole graph, of pairs of nodes": "DotDecoder MLPDecoder",
    "puzzles or tokens, which are batches": (
        "CandidateNetwork CausalLM EquivariantRelationalNetwork ExpertGraphLM "
        "RecurrentRelationalNetwork SudokuGNN"
    ),
    "no graph: each row by itself": (
        "BesselBasis EquivariantLinear EquivariantRMSNorm ExpertCombiner ExpertCoupler FusedLinear "
        "FusedMLP GRUUpdate GaussianBasis Gate HyperConnection HyperHead HyperStack "
        "JumpingKnowledge LSTMUpdate MLPUpdate MaxK NodeUpdate PairwiseExpertCoupler "
        "SymmetricContraction"
    ),
}


def test_each_layer_and_model_is_compared_or_has_a_reason():
    public = {
        name
        for module in (nn, models)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nnx.Module)
    }
    compared = {name for case in CASES for name in case.replace(" of", ",").split(", ")}
    apart = {name for names in ON_ONE_DEVICE.values() for name in names.split()}
    assert public - compared - apart == set()
    assert not compared & apart and apart <= public


@pytest.mark.costly(4)
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("name", CASES)
def test_on_four_devices_values_and_gradients_are_those_of_one(name, exchange, four_devices):
    assert_as_on_one_device(name, 4, exchange)


@pytest.mark.parametrize("options", UNCUT)
def test_where_no_edge_is_cut_values_and_gradients_are_those_of_one_device(options, four_devices):
    assert_uncut_as_on_one_device(4, options)
