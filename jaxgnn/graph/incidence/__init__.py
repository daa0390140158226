"""``Incidence``: hypergraphs."""
