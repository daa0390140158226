#!/bin/sh
# Builds the sdist, from it a wheel, and from the tree one without compiled libraries, which has to
# hold the same files but these; uses both from another directory. Where a folder is given that has an
# sdist and a wheel, as a release makes them, it takes these instead, and installs the wheel where
# nothing can be compiled, to run the README there.
set -eu
python=$1
release=${2-}
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
JAXGNN_PURE_PYTHON=1 \
  "$python" -m pip wheel --verbose --no-deps --wheel-dir "$work/pure" "$root" >"$work/pure.log" 2>&1 || {
  cat "$work/pure.log"
  exit 1
}
if grep -E "Collecting (jaxlib|numpy)" "$work/pure.log"; then
  echo "a build without compiled code has no use for these"
  exit 1
fi
if [ -z "$release" ]; then
  "$python" -m build --sdist --outdir "$work/sdist" "$root" >"$work/sdist.log" || {
    cat "$work/sdist.log"
    exit 1
  }
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/compiled" "$work"/sdist/*.tar.gz
else
  mkdir "$work/compiled"
  cp "$release"/jaxgnn-*.whl "$work/compiled"
fi
files() { # of the packages, without what was compiled
  "$python" -m zipfile --list "$1" | awk '/^(jaxgnn|jaxgnn_experiments|pallas_kernels)\// && !/\.so / && $1 !~ /\/$/ { print $1 }' | LC_ALL=C sort
}
files "$work"/pure/*.whl >"$work/pure.txt"
files "$work"/compiled/*.whl >"$work/compiled.txt"
grep -q '^jaxgnn/_ffi/cuda/spmm.cu$' "$work/pure.txt" # CUDA kernels are compiled at run time
diff "$work/pure.txt" "$work/compiled.txt" # the tree's and the sdist's
# The weights that come with the library, and their logs; Cora is read below.
shipped=$(cd "$root/jaxgnn/pretrained" && find . -name 'sudoku*.*' -exec basename {} \; | LC_ALL=C sort)
for kind in pure compiled; do
  "$python" -m pip install --quiet --no-deps --target "$work/site-$kind" "$work/$kind"/*.whl
  # -I keeps the checkout and the editable install's hooks out of the way: only the wheel is there.
  (cd "$work" && "$python" -I -S -c '
import sys
kind, site, packages, *shipped = sys.argv[1:]
sys.path[:0] = [site, packages]
import jax.numpy as jnp
import jaxgnn
from jaxgnn import CSRGraph, _ffi, datasets, ops, pretrained
assert jaxgnn.__file__.startswith(site), jaxgnn.__file__
graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
expected = [[0.0, 1.0], [1.0, 0.0]]
assert ops.spmm(graph, jnp.eye(2)).tolist() == expected
if kind == "compiled":
    for name in ("cpu", "cuda"):
        assert str(_ffi.library_path(name)).startswith(site), _ffi.library_path(name)
    assert ops.spmm(graph, jnp.eye(2), implementation="ffi").tolist() == expected
else:
    try:
        ops.spmm(graph, jnp.eye(2), implementation="ffi")
    except NotImplementedError as error:
        assert "JAXGNN_PURE_PYTHON" in str(error), error
    else:
        raise AssertionError("compiled code ran from a wheel without it")
weights = [path.name for path in pretrained.sudoku_weights().parent.glob("sudoku*.*")]
assert sorted(weights) == shipped, (weights, shipped)
assert datasets.cora().num_nodes == 2485
print("ok:", jaxgnn.__version__, kind)
' "$kind" "$work/site-$kind" "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $shipped)
done
[ -n "$release" ] || exit 0

# As a user has it: with the newest of all that it needs, and neither a compiler nor the checkout.
"$python" -c '
from tests import test_docs
print(test_docs._blocks(test_docs.ROOT / "README.md"))' >"$work/readme.py"
test -s "$work/readme.py"
"$python" -m venv "$work/empty"
(
  CC=$(command -v false)
  export CC CXX="$CC" PATH="$work/empty/bin" JAX_PLATFORMS=cpu
  unset PYTHONPATH
  cd "$work/empty"
  pip install --quiet --disable-pip-version-check --only-binary :all: "$work"/compiled/*.whl
  jaxgnn info --all >"$work/info.txt"
  python "$work/readme.py"
)
for line in "compiled kernels for cpu: $work/empty/" "compiled kernels for cuda: $work/empty/" \
  " +spmm +ffi +usable$"; do
  grep -E "^$line" "$work/info.txt" || {
    cat "$work/info.txt"
    echo "the wheel has not what 'jaxgnn info' was to tell: $line"
    exit 1
  }
done
echo "ok: the README in an environment without a compiler"
