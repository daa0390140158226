"""``GraphBatch``: several graphs as one, padded to few shapes."""
