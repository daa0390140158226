"""``CSRGraph`` and ``CBSR``: constructors, validation, transforms, other formats."""
