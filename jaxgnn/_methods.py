"""Binding of callable objects to instances, as Python binds functions that are methods."""

from __future__ import annotations

import abc
import collections
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax

# Number of instances without weak references whose functions are kept.
_MOST_KEPT = 16


class Binding:
    """A callable that becomes a method where it is an attribute of a class, as functions do."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)  # pyrefly: ignore


class Method(Binding, abc.ABC):
    """A callable made of a function, which becomes a method where the function would.

    An instance that is a pytree, such as a module, becomes the first argument. So its arrays may
    change between calls. For any other instance the function is made again and captures it: its
    attributes count as unchanging, as everything that a function captures. Such a function is freed
    with its instance, or if no weak reference to it is possible, after those of sixteen others.

    Args:
      function: decides whether instances are bound. A static method, a bound method, a module and a
        ``functools.partial`` are called without them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._of_objects: dict[int, tuple[Callable[[], Any], Callable[..., Any]]] = {}
        self._kept: collections.deque[int] = collections.deque()
        self._binds = _binds(function)

    @abc.abstractmethod
    def of_function(self, function: Callable[..., Any]) -> Method:
        """Makes the same callable of another function, which lacks the first argument."""

    @property
    @abc.abstractmethod
    def function(self) -> Callable[..., Any]:
        """The function that the callable was made of."""

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, in the way of the callable."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or not self._binds:
            return self
        if is_pytree(instance):
            return super().__get__(instance, owner)
        key = id(instance)
        if key not in self._of_objects:
            reference = self._reference(instance)
            self._of_objects[key] = reference, self.of_function(_bound(self.function, reference))
        return BoundMethod(instance, self._of_objects[key][1])

    def _reference(self, instance: Any) -> Callable[[], Any]:
        """Returns a reference to an instance; the entries of the instance end with it."""
        key, of_objects = id(instance), self._of_objects
        if type(instance).__weakrefoffset__:
            return weakref.ref(instance, lambda _: of_objects.pop(key, None))
        self._kept.append(key)
        if len(self._kept) > _MOST_KEPT:
            of_objects.pop(self._kept.popleft(), None)
        return lambda: instance


class BoundMethod:
    """A method of an instance that is no pytree; ``inner`` is the function of other arguments."""

    def __init__(self, instance: Any, inner: Callable[..., Any]):
        functools.update_wrapper(self, inner, updated=())
        self.__self__ = instance  # Keeps the instance alive.
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMethod) and self.inner is other.inner

    def __hash__(self) -> int:
        return hash(self.inner)


def unbound(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """The callable behind a method of either kind, and the arguments that are bound to it."""
    if isinstance(function, BoundMethod):
        return function.inner, ()
    if isinstance(function, types.MethodType) and isinstance(function.__func__, Method):
        return function.__func__, (function.__self__,)
    return function, ()


def captured_by(function: Any) -> Any:
    """The instance that the function of a ``BoundMethod`` captures; None for other functions."""
    return getattr(function, _CAPTURED, lambda: None)()


_CAPTURED = "_jaxgnn_captured"


def is_pytree(value: Any) -> bool:
    """Returns whether a value is a container that JAX flattens, and not a leaf."""
    return jax.tree.structure(value) != jax.tree.structure(0)


class State:
    """The leaves and the structure of a pytree at one time, and the attributes of its objects.

    Objects are leaves of classes that are written in Python. They are seen by a call itself, and
    not as the copies that a pytree is unflattened to.
    """

    def __init__(self, tree: Any):
        self._leaves, self._structure = jax.tree.flatten(tree)
        self._objects = [(leaf, dict(vars(leaf))) for leaf in self._leaves if _is_object(leaf)]

    def changes(self, tree: Any) -> bool:
        """Returns whether a pytree has other leaves by now; restores the attributes of objects."""
        leaves, structure = jax.tree.flatten(tree)
        have_changed = [_has_changed(leaf, before) for leaf, before in self._objects]
        for (leaf, before), has_changed in zip(self._objects, have_changed, strict=True):
            if has_changed:
                vars(leaf).clear()
                vars(leaf).update(before)
        is_same = structure == self._structure
        is_same = is_same and all(a is b for a, b in zip(leaves, self._leaves, strict=True))
        return not is_same or any(have_changed)


def _is_object(leaf: Any) -> bool:
    others = jax.Array | type | types.ModuleType | types.FunctionType | Binding
    return isinstance(getattr(leaf, "__dict__", None), dict) and not isinstance(leaf, others)


def _has_changed(leaf: Any, before: dict[str, Any]) -> bool:
    """Returns whether an attribute was removed, replaced, or added with an array without a value.

    Other new attributes are what a property remembers.
    """
    now = vars(leaf)
    if any(name not in now or now[name] is not value for name, value in before.items()):
        return True
    added = [now[name] for name in now.keys() - before.keys()]
    return any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(added))


class _Probe:
    """A class that is none of the user's."""


def _binds(function: Any) -> bool:
    """Returns whether a callable gets an instance as its first argument where it is a method."""
    if isinstance(function, staticmethod) or not hasattr(type(function), "__get__"):
        return False
    return function.__get__(_Probe(), _Probe) is not function


def _bound(function: Callable[..., Any], reference: Callable[[], Any]) -> Callable[..., Any]:
    """Binds the first argument of a function to an object that is not kept alive."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return function(reference(), *args, **kwargs)

    functools.update_wrapper(method, function, updated=())
    vars(method).pop("__wrapped__")  # Its signature has the first argument.
    try:
        _, *parameters = (signature := inspect.signature(function)).parameters.values()
        method.__signature__ = signature.replace(parameters=parameters)  # pyrefly: ignore
    except (TypeError, ValueError):
        pass  # A builtin has no signature; *args has no first parameter to remove.
    setattr(method, _CAPTURED, reference)
    return method
