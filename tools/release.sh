#!/bin/sh
# `ready` says what is in the way of a release of the commit that is checked out, if anything is.
# `build PYTHON` makes and checks one, an sdist and a wheel, and lays it in dist/, of which nothing else is
# left; PYTHON has the extras dev and release. Nothing is uploaded.
set -eu
# The oldest glibc that the wheel may ask for, which came out in February 2022.
glibc=2_35

refuse() {
  echo "release: $1" >&2
  exit 1
}

section() { # its lines that are not empty
  awk -v heading="## [$1]" '/^## / { inside = index($0, heading) == 1; next } inside && NF' CHANGELOG.md
}

seeded() { # the record of all seeded faults is of this code, and none is missed
  record=tools/seeded_faults/record.toml
  again="run \`make seeded-faults\`, half an hour of two cores, and commit $record"
  test -f "$record" || refuse "$record is not there: $again"
  recorded=$(sed -n 's/^commit = "\([0-9a-f]*\)"$/\1/p' "$record")
  test -n "$recorded" || refuse "$record names no commit: $again"
  git merge-base --is-ancestor "$recorded" HEAD 2>/dev/null ||
    refuse "$record is of $recorded, which is no ancestor of this commit: $again"
  later=$(git diff --name-only "$recorded" HEAD -- jaxgnn pallas_kernels ffi tests \
    'tools/seeded_faults/*.txt' ':(exclude)ffi/*pyproject.toml')
  test -z "$later" || refuse "$record is of $recorded, and these files have changed since; $again:
$later"
  grep -q '^missed = \[\]$' "$record" || refuse "$record names faults that no test finds:
$(sed -n 's/^missed = //p' "$record")"
}

ready() {
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
  test -n "$version" || refuse "pyproject.toml names no version"
  changes=$(git status --porcelain --untracked-files=normal) || refuse "this is no git checkout"
  test -z "$changes" || refuse "a release is made of a commit, but these files differ:
$changes"
  test -n "$(section "$version")" || refuse "CHANGELOG.md has no section [$version], or an empty one"
  test -z "$(section Unreleased)" || refuse "CHANGELOG.md has entries under [Unreleased]: $version has them too"
  seeded
  command -v "${CXX:-c++}" >/dev/null || refuse "needs a C++ compiler"
}

build() {
  python=$1
  ready
  rm -rf dist # what lies there has passed, or it is not there
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  unset JAXGNN_PURE_PYTHON
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  mkdir "$work/tree" "$work/dist"
  git archive HEAD | tar -x -C "$work/tree" # what git ignores is no part of it

  echo "release: jaxgnn $version, the sdist and from it the wheel, which takes a minute"
  "$python" -m build --outdir "$work/built" "$work/tree" >"$work/build.log" 2>&1 || {
    cat "$work/build.log"
    refuse "the build has failed"
  }
  mv "$work"/built/*.tar.gz "$work/dist"
  "$python" -m auditwheel show "$work"/built/*.whl # the versions of all symbols that it asks for
  # Fails where one of them is newer; else it only names the wheel.
  PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair \
    --plat "manylinux_${glibc}_$(uname -m)" --wheel-dir "$work/dist" "$work"/built/*.whl
  "$python" -m twine check --strict "$work"/dist/*
  sh tools/check_wheel.sh "$python" "$work/dist"

  mv "$work/dist" dist
  echo "release: jaxgnn $version is in dist/; nothing was uploaded"
  (cd dist && ls -l && sha256sum ./*)
}

case ${1-} in
ready | build) "$@" ;;
*) refuse "expected ready or build, got '${1-}'" ;;
esac
