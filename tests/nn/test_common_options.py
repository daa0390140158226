"""The options that all layers share: their signatures, and what users read of them."""

import inspect
import re
from typing import Unpack

import pytest
from flax import nnx

from jaxgnn import models, nn
from jaxgnn.nn.shared.common_options import (
    CommonOptions,
    DocumentedModule,
    Settings,
    add_common_lines,
)
from jaxgnn.nn.shared.layer import Layer

LAYERS = {
    name: layer
    for name, layer in vars(nn).items()
    if inspect.isclass(layer) and issubclass(layer, Layer)
}

CALLED = {
    name: layer
    for name, layer in (vars(nn) | vars(models)).items()
    if inspect.isclass(layer) and issubclass(layer, DocumentedModule) and layer.__call__.__doc__
}


@pytest.mark.parametrize("name", LAYERS)
def test_help_describes_each_option_of_a_layer_once(name):
    signature = inspect.signature(LAYERS[name])
    section = re.search(r"^Args:\n((?:  .*\n)+)", LAYERS[name].__doc__ or "", re.M)
    assert section is not None
    described = re.findall(r"^  (\w+): ", section[1], re.M)
    assert sorted(described) == sorted(signature.parameters)
    assert "Raises:\n  ValueError: " in LAYERS[name].__doc__
    assert max(map(len, LAYERS[name].__doc__.splitlines())) <= 96  # as it is indented


@pytest.mark.parametrize("name", CALLED)
def test_help_describes_each_argument_of_a_call_once(name):
    call = CALLED[name].__call__
    section = re.search(r"^Args:\n((?:  .*\n)+)", call.__doc__ + "\n", re.M)
    _, *arguments = inspect.signature(call).parameters
    if section is None:  # few arguments, which the first line names
        assert len(arguments) <= 3
        return
    assert re.findall(r"^  \**(\w+): ", section[1], re.M) == arguments
    assert "Raises:\n  ValueError: " in call.__doc__


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_the_common_options_in_one_order_and_with_one_default(name):
    parameters = inspect.signature(LAYERS[name]).parameters
    common = [option for option in parameters if option in Settings._fields]
    assert common == [option for option in Settings._fields if option in common]
    assert {"implementation", "dtype"} <= set(common)
    for option in common:
        assert parameters[option].default is Settings._field_defaults[option]
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY


def test_common_lines_do_not_replace_a_layer_own_words():
    docstring = add_common_lines(
        """A layer.

        Args:
          width: a number.
          dtype: of something.

        Raises:
          ValueError: never.
        """,
        ["width", "dtype", "rngs"],
    )
    assert docstring.splitlines() == [
        "A layer.",
        "",
        "Args:",
        "  width: a number.",
        "  dtype: of something.",
        "  rngs: random streams from which the initial parameters are drawn.",
        "",
        "Raises:",
        "  ValueError: never.",
    ]
    assert add_common_lines("A layer without arguments.", ["rngs"]) == "A layer without arguments."


def test_a_class_of_a_user_shows_its_own_signature():
    class Mine(nn.SAGEConv):
        def __init__(self, width: int, rngs: nnx.Rngs):
            super().__init__(width, width, rngs=rngs)

    assert list(inspect.signature(Mine).parameters) == ["width", "rngs"]
    assert Mine.__doc__ is None
    with pytest.raises(TypeError, match=r"SAGEConv: no option is called 'aggr'; did you mean"):
        nn.SAGEConv(2, 2, aggr="max", rngs=nnx.Rngs(0))


def test_classes_of_users_may_have_any_options_by_keyword():
    class Passing(nn.SAGEConv):
        def __init__(self, width, rngs, **options):
            super().__init__(width, width, rngs=rngs, **options)

    class First(nn.SAGEConv):
        def __init__(self, rngs, width=2, *, dtype=None, **options):
            super().__init__(width, width, rngs=rngs, dtype=dtype, **options)

    class Common(nn.SAGEConv):
        def __init__(self, rngs, width=2, *, dtype=None, **common: Unpack[CommonOptions]):
            super().__init__(width, width, rngs=rngs, dtype=dtype, **common)

    assert list(inspect.signature(Passing).parameters) == ["width", "rngs", "options"]
    assert list(inspect.signature(First).parameters) == ["rngs", "width", "dtype", "options"]
    common = ["rngs", "width", "dtype", "implementation", "param_dtype"]
    assert list(inspect.signature(Common).parameters) == common
    assert Passing(2, nnx.Rngs(0), dropout=0.5, dtype="bfloat16").dtype == "bfloat16"
    assert First(nnx.Rngs(0), dtype="float16", implementation="xla").implementation == "xla"
    assert Common(nnx.Rngs(0), param_dtype="bfloat16").param_dtype == "bfloat16"
