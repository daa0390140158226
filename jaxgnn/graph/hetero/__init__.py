"""``HeteroGraph`` and ``RelationalGraph``: nodes and edges of several types."""
