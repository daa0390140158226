"""Binding of rewritten and compiled functions to objects, as Python binds methods."""

from __future__ import annotations

import abc
import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


class Method(abc.ABC):
    """A callable that becomes a method where it is an attribute of a class.

    An object that is a pytree, such as a module, becomes the first argument. So its arrays may
    change between calls. For any other object the function is made again and captures the object,
    whose attributes count as unchanging, as everything that a function captures. Such a function is
    freed with its object.
    """

    def __init__(self) -> None:
        self._of_objects: dict[int, tuple[weakref.ref[Any], Callable[..., Any]]] = {}

    @abc.abstractmethod
    def of_function(self, function: Callable[..., Any]) -> Method:
        """Makes the same callable of another function."""

    @property
    @abc.abstractmethod
    def function(self) -> Callable[..., Any]:
        """The function that the callable was made of."""

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
        """Binds an instance; the class itself gets the callable as it is."""
        if instance is None:
            return self
        if is_pytree(instance):
            return types.MethodType(self, instance)
        key = id(instance)
        if key not in self._of_objects:
            of_objects = self._of_objects
            reference = weakref.ref(instance, lambda _: of_objects.pop(key, None))
            of_objects[key] = reference, self.of_function(_bound(self.function, reference))
        return BoundMethod(instance, self._of_objects[key][1])


@dataclass(frozen=True)
class BoundMethod:
    """A method of an object that is no pytree.

    Attributes:
      instance: the object, which lives as long as the method.
      inner: the function of the other arguments.
    """

    instance: Any
    inner: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self.inner(*args, **kwargs)


def unbound(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """The callable behind a method of either kind, and the arguments that are bound to it."""
    if isinstance(function, BoundMethod):
        return function.inner, ()
    if isinstance(function, types.MethodType) and isinstance(function.__func__, Method):
        return function.__func__, (function.__self__,)
    return function, ()


def is_pytree(value: Any) -> bool:
    """Whether a value is a container that JAX flattens, and not a leaf."""
    return jax.tree.structure(value) != jax.tree.structure(0)


def have_changed(before: tuple[list[Any], Any], tree: Any) -> bool:
    """Whether a pytree has other leaves, or another structure, than when it was flattened."""
    leaves, structure = before
    now, structure_now = jax.tree.flatten(tree)
    return structure != structure_now or any(a is not b for a, b in zip(leaves, now, strict=True))


def _bound(function: Callable[..., Any], reference: weakref.ref[Any]) -> Callable[..., Any]:
    """The function with its first argument given, which is not kept alive."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return function(reference(), *args, **kwargs)

    try:
        made = functools.update_wrapper(method, function, updated=())
    except AttributeError:
        return method
    del made.__wrapped__  # whose signature has the first argument
    return made
