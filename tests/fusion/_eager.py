"""Running a jaxpr one primitive after the other, of which each is compiled once for all jaxprs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}


def one_by_one(closed: Any) -> Callable[..., list[Any]]:
    """A function of arrays that runs a closed jaxpr outside of jit, and can be differentiated.

    Programs of a few small arrays take far less time so than their compilation takes.
    """

    def run(*arrays: Any) -> list[Any]:
        return _run(closed.jaxpr, closed.consts, arrays)

    return run


def _run(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        primitive, params = equation.primitive, equation.params
        reads = [read(a) for a in equation.invars]
        if primitive.name in _CALLS:
            body = params[_CALLS[primitive.name]]
            made = _run(body.jaxpr, body.consts, reads)
        else:
            made = primitive.bind(*reads, **primitive.get_bind_params(params))
            made = made if primitive.multiple_results else [made]
        values.update(zip(equation.outvars, made, strict=True))
    return [read(o) for o in jaxpr.outvars]
