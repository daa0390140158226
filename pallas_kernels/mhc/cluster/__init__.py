"""``mhc_pre`` by clusters of blocks that share the columns of a tile of tokens."""
