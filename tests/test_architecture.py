"""The import arrows of the library, and the rule that an op has one name in every layer."""

import ast
import functools
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import jaxgnn.ops
from jaxgnn.ops.core.dispatch import Platform
from jaxgnn.ops.core.registry import OPS
from pallas_kernels.attention.passes import PASSES

ROOT = Path(__file__).parent.parent
PLATFORMS = get_args(Platform)

# Rooms of kernels, and what each may import beside itself and what all look at: ``chip`` and the
# ``arguments`` that they share with ops.
ROOMS = {
    "chip": (),
    "arguments": (),
    "in_place": (),
    "simt": ("chip", "in_place"),
    "tensor_cores": ("chip", "simt"),
    "graph": ("chip", "simt"),
    "dense": ("chip", "simt", "tensor_cores"),
    "maxk": ("chip", "simt", "tensor_cores", "dense"),
    "maxk_spmm": ("chip", "simt", "graph"),
    "filters": ("chip", "simt", "graph"),
    "edge_mlp": ("chip", "in_place", "simt", "tensor_cores", "graph", "dense"),
    "mhc": ("chip", "simt", "tensor_cores"),
    "hypergraph": ("chip", "simt", "dense"),
    "attention": ("chip", "simt", "graph"),
    "aggregate": ("chip", "simt", "graph", "attention"),
}


# Families of ops, and those on whose ops and kernels they are built.
FAMILIES = {
    "graph": (),
    "maxk": (),
    "maxk_spmm": ("graph", "maxk"),
    "filters": ("graph",),
    "dense": ("maxk",),
    "equivariant": ("graph",),
    "aggregate": ("graph",),
    "edge_mlp": ("graph", "dense", "aggregate"),
    "mhc": (),
    "hypergraph": ("graph", "dense"),
    "attention": ("graph", "maxk", "maxk_spmm"),
}


# Rooms of the packages of the library, and what each may import beside itself. CONTRIBUTING.md
# prints them; ``python -m tests.test_architecture`` writes that part of the page.
PACKAGES = {
    "jaxgnn.graph": {
        "plan": (),
        "csr": ("plan",),
        "batch": ("plan", "csr"),
        "local": ("plan", "csr"),
        "hetero": ("plan", "csr", "local"),
        "incidence": ("plan", "csr"),
        "points": ("plan", "csr"),
    },
    "jaxgnn.nn": {
        "shared": (),
        "attention": ("shared",),
        "conv": ("shared", "attention"),
        "equivariant": ("shared", "conv"),
        "messages": ("shared",),
        "hetero": ("shared", "attention"),
        "hypergraph": ("shared",),
        "mhc": ("shared",),
        "norms": ("shared",),
        "pooling": ("shared",),
    },
    "jaxgnn.fusion": {
        "program": (),
        "graphs": ("program",),
        "recognise": ("program", "graphs"),
        "rules": ("program", "graphs", "recognise"),
    },
    "jaxgnn.datasets": {
        "formats": (),
        "records": (),
        "readers": ("formats", "records"),
        "generators": ("records",),
        "embedded": ("formats", "records"),
        "sudoku": ("formats",),
    },
}


def _of_rooms(package: str, *below: str) -> dict[str, set[str]]:
    """The imports of a package's rooms: its own below it, and ``below`` for all of them."""
    return {
        f"{package}.{room}": {*below, *(f"{package}.{name}" for name in (room, *rooms))}
        for room, rooms in PACKAGES[package].items()
    }


def _rooms(*names: str) -> set[str]:
    return {f"pallas_kernels.{name}" for name in (*names, "arguments")}


def _family(name: str, *below: str) -> dict[str, set[str]]:
    """What the ops of a family may import; its references, which are maths alone, much less."""
    families = {f"jaxgnn.ops._{family}" for family in (name, *below)}
    words = "activations", "custom_gradient", "dtypes", "finite", "precision"
    core = {f"jaxgnn.ops.core.{word}" for word in words}
    references = {f"{family}.reference" for family in families}
    below_ops = {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn.equivariant",
        "jaxgnn.graph",
        "jaxgnn._ffi",
        "jaxgnn.ops.core",
    }
    return {
        f"jaxgnn.ops._{name}": below_ops | families | _rooms("chip", name, *below),
        f"jaxgnn.ops._{name}.reference": {"jaxgnn._arrays", "jaxgnn.equivariant", "jaxgnn.graph"}
        | core
        | references
        | _rooms(),
    }


# What a module may import of this project, by the longest prefix of its name that stands here.
ALLOWED = {
    "jaxgnn": {"jaxgnn._exporting", "jaxgnn._version", "jaxgnn.graph", "jaxgnn.ops"},
    "jaxgnn._arrays": {"jaxgnn._arrays", "jaxgnn._errors"},
    "jaxgnn._derivatives": {"jaxgnn._arrays", "jaxgnn._derivatives"},
    "jaxgnn._errors": set(),
    "jaxgnn._fractions": set(),
    "jaxgnn._suggestions": set(),
    "jaxgnn._methods": set(),
    "jaxgnn._modes": {"jaxgnn._errors"},
    "jaxgnn._sudoku": {"jaxgnn._errors"},
    "jaxgnn._version": set(),
    "jaxgnn._exporting": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._exporting",
        "jaxgnn._ffi",
        "jaxgnn._methods",
        "jaxgnn._modes",
        "jaxgnn._version",
        "jaxgnn.graph",
        "jaxgnn.ops.core.dispatch",
    },
    "jaxgnn._info": {"jaxgnn", "pallas_kernels.chip"},
    "jaxgnn._command_line": {"jaxgnn"},
    "jaxgnn.__main__": {"jaxgnn._command_line"},
    "jaxgnn._html": {"jaxgnn._html"},
    "jaxgnn.graph": {"jaxgnn._arrays", "jaxgnn._errors", "jaxgnn._html", "jaxgnn.graph"},
    **_of_rooms(
        "jaxgnn.graph",
        "jaxgnn._arrays",
        "jaxgnn._derivatives",
        "jaxgnn._errors",
        "jaxgnn.graph.html",
    ),
    "jaxgnn.equivariant": {"jaxgnn._arrays", "jaxgnn._errors", "jaxgnn.equivariant"},
    "jaxgnn._codegen": {"jaxgnn._codegen", "jaxgnn.equivariant"},
    "jaxgnn._ffi": {
        "jaxgnn._arrays",
        "jaxgnn._codegen",
        "jaxgnn.equivariant",
        "jaxgnn.graph",
        "jaxgnn._ffi",
        *_rooms("chip"),
    },
    **{f"pallas_kernels.{room}": _rooms(room, *below) for room, below in ROOMS.items()},
    "pallas_kernels": set(),
    "jaxgnn.ops": {"jaxgnn.ops"},
    "jaxgnn.ops.core": {
        "jaxgnn._arrays",
        "jaxgnn._derivatives",
        "jaxgnn._errors",
        "jaxgnn.graph",
        "jaxgnn._ffi",
        "jaxgnn.ops.core",
        "pallas_kernels.chip",
        "pallas_kernels.simt",
    },
    **{k: v for name, below in FAMILIES.items() for k, v in _family(name, *below).items()},
    "jaxgnn.nn": {"jaxgnn.nn"},
    **_of_rooms(
        "jaxgnn.nn",
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._fractions",
        "jaxgnn.equivariant",
        "jaxgnn.graph",
        "jaxgnn.ops",
    ),
    "jaxgnn.fusion": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._methods",
        "jaxgnn.equivariant",
        "jaxgnn.fusion",
        "jaxgnn.graph",
        "jaxgnn.ops",
        "jaxgnn.testing",
    },
    **_of_rooms(
        "jaxgnn.fusion",
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._methods",
        "jaxgnn.equivariant",
        "jaxgnn.graph",
        "jaxgnn.ops",
    ),
    "jaxgnn.models": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._modes",
        "jaxgnn.equivariant",
        "jaxgnn.graph",
        "jaxgnn.ops",
        "jaxgnn.nn",
        "jaxgnn.models",
    },
    "jaxgnn.datasets": {"jaxgnn.datasets"},
    **_of_rooms(
        "jaxgnn.datasets",
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._fractions",
        "jaxgnn._html",
    ),
    "jaxgnn.datasets.sudoku": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._ffi",
        "jaxgnn._sudoku",
        "jaxgnn.datasets.formats",
        "jaxgnn.datasets.sudoku",
    },
    "jaxgnn.metrics": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._suggestions",
        "jaxgnn.metrics",
    },
    "jaxgnn.distributed": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn.graph",
        "jaxgnn.distributed",
    },
    "jaxgnn.explain": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._modes",
        "jaxgnn.explain",
        "jaxgnn.graph",
    },
    "jaxgnn.draw": {"jaxgnn._arrays", "jaxgnn._errors", "jaxgnn.draw", "jaxgnn.graph"},
    "jaxgnn.sampling": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._ffi",
        "jaxgnn._modes",
        "jaxgnn.distributed",
        "jaxgnn.graph",
        "jaxgnn.sampling",
        "jaxgnn.training.progress",
    },
    "jaxgnn.pretrained": {
        "jaxgnn._errors",
        "jaxgnn._modes",
        "jaxgnn._sudoku",
        "jaxgnn._version",
        "jaxgnn.datasets",
        "jaxgnn.models",
        "jaxgnn.pretrained",
    },
    "jaxgnn.interop": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._modes",
        "jaxgnn.datasets.formats",
        "jaxgnn.datasets.records.elements",
        "jaxgnn.equivariant",
        "jaxgnn.graph",
        "jaxgnn.interop",
        "jaxgnn.models",
        "jaxgnn.nn",
        "jaxgnn.ops",
    },
    "jaxgnn.training": {
        "jaxgnn._arrays",
        "jaxgnn._errors",
        "jaxgnn._html",
        "jaxgnn.training",
    },
    "jaxgnn.testing": {"jaxgnn._version", "jaxgnn.graph", "jaxgnn.ops", "jaxgnn.testing"},
    "experiments": {"jaxgnn", "experiments"},
}

# Third-party packages with one home.
HOMES = {
    "jraph": {
        "jaxgnn.graph.csr.jraph",
        "jaxgnn.interop.jraph",
        "experiments._plain_networks",
        "experiments._real_networks",
        "experiments._user_models",
    },
    "haiku": {"experiments._user_models"},
    "e3nn_jax": {"experiments._user_models"},
    "jraphx": {"experiments._plain_networks"},
    "flax": {
        "jaxgnn._modes",
        "jaxgnn.nn",
        "jaxgnn.models",
        "jaxgnn.interop",
        "jaxgnn.pretrained",
        "jaxgnn.training",
        "experiments",
    },
    "optax": {"jaxgnn.training", "experiments"},
    "orbax": {"jaxgnn.training"},
    "sklearn": {"jaxgnn.datasets", "jaxgnn.draw", "experiments.graphs.folds"},
    "torch": {"experiments.benchmarks"},
    "jax._src": set(),
}


def _modules():
    for folder in ("jaxgnn", "pallas_kernels", "experiments"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, path


@functools.cache  # several rules ask
def _imports(name: str, path: Path) -> set[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]) if base else ".".join(above)
            # `from package import module` imports either; both are checked.
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def _is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def _rule_of(name: str) -> set[str]:
    prefixes = [p for p in ALLOWED if _is_below(name, p)]
    if name.count(".") == 1 and name.startswith("jaxgnn._") and name not in ALLOWED:
        return set()
    return ALLOWED[max(prefixes, key=len)]


MODULES = dict(_modules())


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name):
    allowed = _rule_of(name)
    for imported in _imports(name, MODULES[name]):
        top = imported.partition(".")[0]
        if top not in ("jaxgnn", "pallas_kernels", "experiments", "tests", "ffi"):
            continue
        if imported == "jaxgnn" and any(p.startswith("jaxgnn.") for p in allowed):
            continue  # `from jaxgnn import graph`: the submodule is checked beside it
        if imported == "pallas_kernels":
            continue  # the same of a room of kernels
        if _is_below(imported, "jaxgnn._suggestions") and MODULES[name].name == "__init__.py":
            continue  # for names that a package does not have
        assert any(_is_below(imported, prefix) for prefix in allowed), (
            f"{name} imports {imported}; it may import {sorted(allowed)}"
        )


def _package(name: str) -> str:
    """The package of the library that a module is in, or its top package."""
    first, *rest = name.split(".")
    return f"{first}.{rest[0]}" if first == "jaxgnn" and rest else first


def test_no_private_name_crosses_packages():
    # jaxgnn itself, and what a user imports from it, is made of private names.
    crossing = [
        f"{name} imports {imported}"
        for name, path in MODULES.items()
        if name != "jaxgnn"
        for imported in _imports(name, path)
        if imported.partition(".")[0] in ("jaxgnn", "pallas_kernels", "experiments")
        if _package(imported) != _package(name)
        if any(re.match("_(?!_)", part) for part in imported.split(".")[2:])
    ]
    assert crossing == []


@pytest.mark.parametrize("name", MODULES)
def test_third_party_packages_stay_in_their_homes(name):
    for imported in _imports(name, MODULES[name]):
        for package, homes in HOMES.items():
            if _is_below(imported, package):
                assert any(_is_below(name, home) for home in homes), f"{name} imports {imported}"


def test_pallas_kernels_import_only_jax():
    for name, path in MODULES.items():
        if _is_below(name, "pallas_kernels"):
            for imported in _imports(name, path):
                top = imported.partition(".")[0]
                known = top in ("jax", "jaxlib", "pallas_kernels") or top in sys.stdlib_module_names
                assert known, f"{name} imports {imported}"


def test_the_unstable_builders_of_mosaic_have_two_homes():
    # A builder that a release of JAX renames is then a change in these two rooms alone. Kernels of
    # tensor cores take control flow and references from Pallas itself, which is the same on TPUs.
    unstable = ("jaxlib", "jax.experimental.mosaic", "jax.experimental.pallas")
    for name, path in MODULES.items():
        if any(_is_below(name, f"pallas_kernels.{room}") for room in ("simt", "tensor_cores")):
            continue
        known = {"jaxlib"}  # for its version
        if _is_below(name, "pallas_kernels"):
            known.add("jax.experimental.pallas")
        for imported in _imports(name, path) - known:
            assert not any(_is_below(imported, p) for p in unstable), f"{name} imports {imported}"


def test_arrays_of_the_host_reach_a_device_in_one_place():
    # ``to_device`` refuses integers that JAX would cut, and reads both byte orders.
    for name, path in MODULES.items():
        if _is_below(name, "jaxgnn") and not _is_below(name, "jaxgnn._arrays"):
            text = path.read_text()
            nodes = ast.walk(ast.parse(text)) if "device_put" in text else ()
            are_calls = [getattr(node, "attr", None) == "device_put" for node in nodes]
            assert not any(are_calls), f"{name} calls jax.device_put, not to_device"


def _stems(folder: str, pattern: str) -> set[str]:
    return {p.stem for p in (ROOT / folder).glob(pattern) if not p.stem.startswith("_")}


def test_the_registry_has_every_public_function_that_takes_an_implementation():
    found = {
        name: function.__module__
        for name, function in vars(jaxgnn.ops).items()
        if inspect.isfunction(function)
        and "implementation" in inspect.signature(function).parameters
        and not _is_below(function.__module__, "jaxgnn.ops.core")
    }
    assert found == {name: op.module for op in OPS for name in op.functions}
    assert set(FAMILIES) == {op.family for op in OPS}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_op_has_one_name_in_every_layer(op):
    files = [
        f"jaxgnn/ops/_{op.family}/{op.name}.py",
        f"jaxgnn/ops/_{op.family}/reference/{op.name}.py",
        f"tests/ops/{op.family}/test_{op.name}.py",
        op.page,
        *(f"experiments/benchmarks/{benchmark.module}.py" for benchmark in op.benchmarks),
    ]
    # Ops of attention share their kernels: tables of the family have an entry for each.
    module = op.family if op.family == "attention" else op.name
    if op.pallas and module == op.name:
        files.append(f"pallas_kernels/{op.family}/{op.name}.py")
    elif op.pallas:
        assert op.name in PASSES
    if op.native:
        files.append(f"jaxgnn/_ffi/{module}.py")
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert op.platforms("pallas") in ((), ("cuda",))
    assert bool(op.pallas or op.native) == bool(op.benchmarks), "what has kernels is timed"


def _native_functions_that_are_no_ops() -> set[str]:
    """What data sets and samplers have compiled: plain C functions."""
    imported = set()
    for name, path in MODULES.items():
        if _is_below(name, "jaxgnn.datasets") or _is_below(name, "jaxgnn.sampling"):
            imported |= _imports(name, path)
    return {stem for stem in _stems("jaxgnn/_ffi", "*.py") if f"jaxgnn._ffi.{stem}" in imported}


def test_native_sources_and_pages_are_those_of_ops_data_sets_and_samplers():
    no_ops = _native_functions_that_are_no_ops()
    native = {platform: {op.name for op in OPS if platform in op.native} for platform in PLATFORMS}
    assert _stems("ffi/cpu", "*.cc") == native["cpu"] | no_ops
    # Other sources are those of companions and gradients.
    written = native["cuda"] - {op.name for op in OPS if op.generated}
    assert written <= _stems("jaxgnn/_ffi/cuda", "*.cu")
    of_ops = {
        "attention" if op.family == "attention" else op.name
        for op in OPS
        if op.native and op.native_of is None
    }
    generated = {f"generated_{op.name}" for op in OPS if op.generated}
    assert _stems("jaxgnn/_ffi", "*.py") == of_ops | no_ops | generated
    assert _stems("docs/ops", "*.md") == {"index", *(op.name for op in OPS)}


def test_importing_the_library_registers_and_loads_nothing():
    code = (
        "import jaxgnn, jaxgnn.nn, sys\n"
        "from jaxgnn._ffi import _library\n"
        "assert _library.load.cache_info().currsize == 0\n"
        "assert 'jraph' not in sys.modules and 'sklearn' not in sys.modules\n"
    )
    # Starting a backend would fail on this platform, so that importing does not is a proof.
    environment = os.environ | {"JAX_PLATFORMS": "nonesuch"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert result.returncode == 0, result.stderr


def test_modules_are_there_after_importing_the_library_alone():
    code = (
        "import sys, jaxgnn\n"
        "assert not {'jax', 'numpy', 'scipy', 'flax', 'pallas_kernels'} & set(sys.modules)\n"
        "jaxgnn.CSRGraph\n"
        "assert not {'flax', 'jraph', 'optax', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert {'graph', 'ops', 'nn', 'models', 'training'} <= set(dir(jaxgnn))\n"
        "found = [jaxgnn.graph.CSRGraph, jaxgnn.ops.spmm, jaxgnn.nn.GCNConv]\n"
        "found += [jaxgnn.models.MaxKGNN, jaxgnn.datasets.read_ogb, jaxgnn.training.fit]\n"
        "assert jaxgnn.nn is sys.modules['jaxgnn.nn'] and not hasattr(jaxgnn, 'nonesuch')\n"
    )
    environment = os.environ | {"JAX_PLATFORMS": "nonesuch"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert result.returncode == 0, result.stderr


_BEGIN, _END = (
    "<!-- rooms: python -m tests.test_architecture writes them -->\n",
    "<!-- rooms end -->",
)
_GUIDE = ROOT / "CONTRIBUTING.md"


def _rooms_of_the_guide() -> str:
    """The rooms of the packages, with what they hold and import, as CONTRIBUTING.md prints them."""
    lines = []
    for package, rooms in PACKAGES.items():
        folder = package.replace(".", "/")
        lines += [f"| `{folder}/` | holds | imports |", "|---|---|---|"]
        for room, below in rooms.items():
            text = ast.get_docstring(ast.parse((ROOT / folder / room / "__init__.py").read_text()))
            assert text is not None, f"{folder}/{room} needs a docstring"
            holds = text.splitlines()[0].replace("``", "`")
            lines.append(f"| `{room}/` | {holds} | {', '.join(below)} |")
        lines.append("")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "table", [*PACKAGES.values(), ROOMS, FAMILIES], ids=[*PACKAGES, "kernels", "ops"]
)
def test_rooms_import_only_rooms_that_stand_before_them(table):
    rooms = list(table)
    upward = {room: set(below) - set(rooms[: rooms.index(room)]) for room, below in table.items()}
    assert {room: names for room, names in upward.items() if names} == {}


def test_the_guide_prints_the_rooms_that_this_table_allows():
    text = _GUIDE.read_text()
    assert text[text.index(_BEGIN) + len(_BEGIN) : text.index(_END)] == _rooms_of_the_guide()


if __name__ == "__main__":
    before, rest = _GUIDE.read_text().split(_BEGIN)
    _GUIDE.write_text(before + _BEGIN + _rooms_of_the_guide() + _END + rest.split(_END)[1])
