"""MaxK-GNN: training, comparison with ReLU, and sweeps over k."""
