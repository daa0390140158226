"""The rules, each in its own module, whose docstring says when it is sound."""
