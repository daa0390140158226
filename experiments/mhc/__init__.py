"""mHC: a language model with and without hyper-connections, and deep graph networks."""
