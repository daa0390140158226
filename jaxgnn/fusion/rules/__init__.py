"""Rules that replace code by ops, each in a module whose docstring says when it is sound."""
