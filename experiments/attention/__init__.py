"""Attention on graphs: GAT, GATv2 and a graph transformer beside MaxK-SAGE."""
