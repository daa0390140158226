"""Methods keep their object, and what a call changes in its arguments is not lost."""

import dataclasses
import functools
import gc
import warnings
import weakref

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import nn
from tests.fusion._cases import NODES, RECEIVERS, SENDERS, arrays

(X,) = arrays((NODES, 3))
BATCH = jaxgnn.graph.GraphBatch.from_graphs(
    [jaxgnn.graph.GraphSample(SENDERS, RECEIVERS, NODES)], pad_to=(NODES + 1, len(SENDERS))
)


def _sum(x):
    return jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES)


class Plain:
    def __init__(self, scale):
        self.scale = scale

    @jaxgnn.fuse
    def fused(self, x):
        return self.scale * _sum(x)

    @jaxgnn.fuse.jit
    def jitted(self, x):
        return self.scale * _sum(x)

    @classmethod
    @jaxgnn.fuse
    def of_class(cls, x):
        return cls(4.0).scale * _sum(x)

    @staticmethod
    @jaxgnn.fuse
    def static(x):
        return _sum(x)

    half = functools.partialmethod(jaxgnn.fuse(lambda self, factor, x: factor * _sum(x)), 0.5)


class Module(nnx.Module):
    def __init__(self):
        self.scale = nnx.Param(jnp.float32(2.0))

    @jaxgnn.fuse
    def fused(self, x):
        return self.scale[...] * _sum(x)

    @jaxgnn.fuse.jit
    def jitted(self, x):
        return self.scale[...] * _sum(x)


@pytest.mark.parametrize("name", ["fused", "jitted"])
def test_a_method_gets_its_own_object(name):
    for scale in (2.0, 3.0):
        y = getattr(Plain(scale), name)(X)
        np.testing.assert_allclose(y, scale * _sum(X), rtol=1e-6)


def test_methods_of_classes_and_static_ones_work():
    for made, factor in (
        (Plain.of_class(X), 4.0),
        (Plain(1.0).static(X), 1.0),
        (Plain(1).half(X), 0.5),
    ):
        np.testing.assert_allclose(made, factor * _sum(X), rtol=1e-6)


@pytest.mark.parametrize("name", ["fused", "jitted"])
def test_the_parameters_of_a_module_may_change_between_calls_of_its_method(name):
    module = Module()
    for scale in (2.0, 5.0):
        module.scale[...] = jnp.float32(scale)
        np.testing.assert_allclose(getattr(module, name)(X), scale * _sum(X), rtol=1e-6)


def test_methods_are_explained():
    for thing in (Plain(2.0), Module()):
        found = jaxgnn.fuse.explain(thing.fused, jnp.ones((NODES, 300)), measure=False)
        assert "not neighbour_sum: it is faster from" in str(found) and found.name == "fused"


def test_the_method_of_an_object_is_freed_with_it():
    plain = Plain(2.0)
    plain.fused(X), plain.jitted(X)
    reference = weakref.ref(plain)
    del plain
    gc.collect()
    assert reference() is None
    assert not any(vars(Plain)[name]._of_objects for name in ("fused", "jitted"))


@dataclasses.dataclass(slots=True)
class Slotted:
    """Instances have no hash, and there are no weak references to them."""

    scale: float

    @jaxgnn.fuse
    def fused(self, x):
        """Sums and scales."""
        return self.scale * _sum(x)

    @jaxgnn.fuse.jit
    def jitted(self, x):
        """Sums and scales."""
        return self.scale * _sum(x)


@pytest.mark.parametrize("name", ["fused", "jitted"])
def test_instances_need_neither_a_hash_nor_weak_references(name):
    slotted = Slotted(2.0)
    method = getattr(slotted, name)
    np.testing.assert_allclose(method(X), 2 * _sum(X), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(method)(X), 2 * _sum(X), rtol=1e-6)
    assert method == getattr(slotted, name) != getattr(Slotted(2.0), name)
    assert (method.__name__, method.__doc__) == (name, "Sums and scales.")
    methods = [getattr(Slotted(float(i)), name) for i in range(40)]
    np.testing.assert_allclose(methods[0](X), 0 * _sum(X))
    assert len(vars(type(slotted))[name]._of_objects) <= 17


def test_names_of_known_ids_are_those_of_the_method():
    class Table:
        @functools.partial(jaxgnn.fuse, static_graph=("s", "r"), only_if_faster=False)
        def sums(self, x, s, r):
            return jax.ops.segment_sum(x[s], r, NODES)

    found = jaxgnn.fuse.explain(Table().sums, X, SENDERS, RECEIVERS, measure=False).findings
    assert [one.rule for one in found.applied] == ["neighbour_sum"]


@pytest.mark.parametrize("wrap", [jaxgnn.fuse, jaxgnn.fuse.jit], ids=["fused", "jitted"])
def test_callables_that_do_not_bind_do_not_bind_when_they_are_wrapped(wrap):
    linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    class Holder:
        static = wrap(staticmethod(_sum))
        module = wrap(linear)
        partial = wrap(functools.partial(_sum))
        bound = wrap(Plain(2.0).half)

    for holder in (Holder, Holder()):
        np.testing.assert_allclose(holder.static(X), _sum(X), rtol=1e-6)
        np.testing.assert_allclose(holder.partial(X), _sum(X), rtol=1e-6)
        np.testing.assert_allclose(holder.module(X), linear(X), rtol=1e-5)
        np.testing.assert_allclose(holder.bound(X), _sum(X) / 2, rtol=1e-6)


class Counter:
    """An object, no pytree, of which a call changes attributes."""

    def __init__(self):
        self.count = 0

    @functools.cached_property
    def weights(self):
        return np.full(3, 0.5, np.float32)

    def __call__(self, x):
        self.count, self.last = self.count + 1, x
        return self.count * _sum(x)

    def remembers(self, x):
        return self.weights * _sum(x)

    fused, remembers_fused = jaxgnn.fuse(__call__), jaxgnn.fuse(remembers)
    jitted = jaxgnn.fuse.jit(__call__)


@pytest.mark.parametrize("way", ["method", "argument"])
def test_a_call_that_changes_an_object_runs_as_it_is_and_once(way):
    counter = Counter()
    call = counter.fused if way == "method" else jaxgnn.fuse(lambda x, c: c(x))
    rest = () if way == "method" else (counter,)
    for count in (1, 2):
        with pytest.warns(UserWarning, match="it changes an argument"):
            np.testing.assert_allclose(call(X, *rest), count * _sum(X), rtol=1e-5)
        assert (counter.count, counter.last is X) == (count, True)
    with pytest.raises(ValueError, match="fn must be a function that does not change its"):
        counter.jitted(X)
    assert counter.count == 2


def test_what_a_property_remembers_is_no_change():
    np.testing.assert_allclose(Counter().remembers_fused(X), 0.5 * _sum(X), rtol=1e-6)


@pytest.mark.parametrize("made", [jaxgnn.fuse(_sum), jaxgnn.fuse.jit(_sum)], ids=["fuse", "jit"])
def test_jax_export_of_a_fused_function_names_jaxgnn_export(made):
    with pytest.raises(ValueError, match=r"_sum after jaxgnn.fuse.*jaxgnn\.export exports it"):
        jax.export.export(made)(X)


def _normalised(norm, x):
    return norm(jnp.concatenate([_sum(x), x[:1]]), BATCH)


def _with_dropout(dropout, x):
    return dropout(_sum(x))


@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: {"inner": [n]}], ids=["itself", "nested"])
@pytest.mark.parametrize("outer", [lambda f: f, nnx.jit], ids=["called", "jitted"])
def test_averages_of_a_module_that_is_an_argument_change(wrap, outer):
    def unwrap(tree):
        return tree["inner"][0] if isinstance(tree, dict) else tree

    def call(tree, x):
        return _normalised(unwrap(tree), x)

    norms = [nn.BatchNorm(3, rngs=nnx.Rngs(0)) for _ in range(2)]
    outer(call)(wrap(norms[0]), X)
    with pytest.warns(UserWarning, match="call is left as it is: it changes an argument"):
        outer(jaxgnn.fuse(call))(wrap(norms[1]), X)
    for one, other in zip(*(jax.tree.leaves(nnx.state(n)) for n in norms), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert float(jnp.abs(jax.tree.leaves(nnx.state(norms[1], nnx.BatchStat))[0]).max()) > 0


def test_streams_of_random_numbers_that_are_arguments_go_on():
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    fused = jaxgnn.fuse(_with_dropout)
    with pytest.warns(UserWarning, match="it changes an argument"):
        first, second = fused(dropout, X), fused(dropout, X)
    assert (first != second).any()

    rngs = nnx.Rngs(dropout=0)
    draw = jaxgnn.fuse(lambda x, rngs: _sum(x) * jax.random.uniform(rngs.dropout(), x.shape))
    with pytest.warns(UserWarning, match="it changes an argument"):
        first, second = draw(X, rngs), draw(X, rngs)
    assert (first != second).any()


def test_a_list_that_a_call_appends_to_is_the_caller_s():
    def note(notes, x):
        notes.append(x.shape)
        return _sum(x)

    notes = []
    with pytest.warns(UserWarning, match="it changes an argument"):
        jaxgnn.fuse(note)(notes, X)
    assert notes == [X.shape]


def test_a_module_that_is_captured_and_changes_is_left_as_it_is():
    norm = nn.BatchNorm(3, rngs=nnx.Rngs(0))
    before = [np.asarray(a) for a in jax.tree.leaves(nnx.state(norm, nnx.BatchStat))]
    with pytest.warns(UserWarning, match="can not be traced"):
        jaxgnn.fuse(lambda x: _normalised(norm, x))(X)
    after = jax.tree.leaves(nnx.state(norm, nnx.BatchStat))
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


def test_fuse_jit_refuses_a_function_that_changes_an_argument():
    norm = nn.BatchNorm(3, rngs=nnx.Rngs(0))
    message = "fuse.jit: fn must be a function that does not change its arguments.*_normalised"
    with pytest.raises(ValueError, match=message):
        jaxgnn.fuse.jit(_normalised)(norm, X)


def test_a_module_whose_state_does_not_change_is_rewritten_without_a_warning():
    linear = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused = jaxgnn.fuse(lambda layer, x: _sum(layer(x)), only_if_faster=False)
        np.testing.assert_allclose(fused(linear, X), _sum(linear(X)), rtol=1e-5, atol=1e-6)
    assert jaxgnn.fuse.explain(fused, linear, X, measure=False).findings.applied
