"""Link prediction: which nodes of a graph should be joined."""
