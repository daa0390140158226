"""An extension of mkdocstrings that reads docstrings of this project."""

import importlib
import inspect
import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Reads sections `Example:` as code, like `Examples:`, and prints `::` as one colon.

    Otherwise Markdown reads `>>>` as three quotations, and prints both colons.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.M)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Gives a layer, and its call, what the library adds to them when it is imported."""
        if not cls.path.startswith(("jaxgnn.nn.", "jaxgnn.models.")) or cls.docstring is None:
            return
        layer = getattr(importlib.import_module(cls.module.path), cls.name)
        call = cls.members.get("__call__")
        if isinstance(call, griffe.Function) and call.docstring is not None:
            call.docstring.value = inspect.cleandoc(layer.__call__.__doc__)
            self.on_object(obj=call)
        if "__signature__" not in vars(layer):
            return
        cls.docstring.value = inspect.cleandoc(layer.__doc__)
        self.on_object(obj=cls)
        init = cls.members.get("__init__")
        if not isinstance(init, griffe.Function) or "common" not in init.parameters:
            return
        del init.parameters["common"]
        for parameter in layer.__signature__.parameters.values():
            if parameter.name not in init.parameters:
                default = getattr(parameter.default, "__name__", repr(parameter.default))
                init.parameters.add(
                    griffe.Parameter(
                        parameter.name,
                        annotation=parameter.annotation,
                        kind=griffe.ParameterKind.keyword_only,
                        default=default,
                    )
                )
