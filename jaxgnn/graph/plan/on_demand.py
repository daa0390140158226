"""The field ``plan`` of graphs from constructors, which is built when it is first read."""

from __future__ import annotations

from typing import Any

from jaxgnn.graph.plan.parts import parts_of_leaves
from jaxgnn.graph.plan.plan import GraphPlan


class PlanOnDemand:
    """A descriptor of the field ``plan`` of ``CSRGraph``.

    A jitted function can not keep the parts that it computes. So a graph that is passed to one
    should already have the parts that its ops need, and all graphs from constructors should be the
    same pytree. On the other hand, an op that gets the concrete graph builds only the parts that it
    needs, which may be fewer.

    Therefore the plan of a graph from a constructor is built when the field is first read, which
    flattening the graph does. It has the schedules, the transpose, and with weights the
    permutation: the parts that ``spmm`` and its gradients need. Other parts that have been built,
    and earlier reads of this field, change nothing.
    """

    def __get__(self, graph: Any, owner: Any = None) -> GraphPlan | None:
        if graph is None:
            return None
        plan = graph.__dict__.get("plan") or graph.__dict__.get(_LEAVES)
        if plan is None and makes_plan(graph):
            parts = parts_of_leaves(weighted=graph.weights is not None)
            plan = graph.__dict__[_LEAVES] = graph.concrete_parts().plan(parts)
        return plan

    def __set__(self, graph: Any, plan: GraphPlan | None) -> None:
        graph.__dict__["plan"] = plan


_MARK, _LEAVES = "_makes_plan_on_demand", "_plan_of_leaves"


def plan_on_demand[Graph](graph: Graph, like: Any = None) -> Graph:
    """Makes ``graph`` build its plan on first read; with ``like``, only if that graph does."""
    if like is None or makes_plan(like):
        graph.__dict__[_MARK] = True
    return graph


def makes_plan(graph: Any) -> bool:
    """Whether the graph is from a constructor, which has checked it."""
    return _MARK in graph.__dict__


def given_plan(graph: Any) -> GraphPlan | None:
    """The plan that the graph was given, without building one; None if there is none."""
    return graph.__dict__.get("plan")
