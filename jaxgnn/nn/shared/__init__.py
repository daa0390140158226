"""Options, linear maps, dropout and activations that layers share."""
