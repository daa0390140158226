#!/bin/sh
# Builds the sdist, from it the wheel, and uses the wheel from another directory.
set -eu
python=$1
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export JAXGNN_CUDA=0 # the install of the test environment compiles it already
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/from-tree" "$root"
"$python" -m build --sdist --outdir "$work/sdist" "$root" >"$work/sdist.log" || {
  cat "$work/sdist.log"
  exit 1
}
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/from-sdist" "$work"/sdist/*.tar.gz
# The weights that come with the library, and their logs.
shipped=$(cd "$root/jaxgnn/pretrained" && find . -name 'sudoku*.*' -exec basename {} \; | LC_ALL=C sort)
for wheel in "$work"/from-tree/*.whl "$work"/from-sdist/*.whl; do
  rm -rf "$work/site"
  "$python" -m pip install --quiet --no-deps --target "$work/site" "$wheel"
  # -I keeps the checkout and the editable install's hooks out of the way: only the wheel is there.
  (cd "$work" && "$python" -I -S -c '
import sys
site, packages, *shipped = sys.argv[1:]
sys.path[:0] = [site, packages]
import jax.numpy as jnp
import jaxgnn
from jaxgnn import CSRGraph, _ffi, ops, pretrained
assert jaxgnn.__file__.startswith(site), jaxgnn.__file__
assert str(_ffi.library_path("cpu")).startswith(site), _ffi.library_path("cpu")
graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
y = ops.spmm(graph, jnp.eye(2), implementation="ffi")
assert y.tolist() == [[0.0, 1.0], [1.0, 0.0]], y
weights = [path.name for path in pretrained.sudoku_weights().parent.glob("sudoku*.*")]
assert sorted(weights) == shipped, (weights, shipped)
print("ok:", jaxgnn.__version__, "from", sys.argv[1].rsplit("/", 1)[-1])
' "$work/site" "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $shipped)
done
