"""How mkdocstrings reads docstrings of this project, in addition to Google's style."""

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Sections `Example:` are code, as `Examples:` are, and `::` before a block is one colon.

    As they stand, Markdown takes `>>>` for three quotations, and prints both colons.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.M)
