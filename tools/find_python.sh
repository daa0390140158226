#!/bin/sh
# Prints the path of a Python of at least 3.12: 3.12 itself if there is one, on PATH or in pyenv.
fits() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null
}
pyenv_root=${PYENV_ROOT:-$HOME/.pyenv}
for candidate in python3.12 "$pyenv_root"/versions/3.12*/bin/python3.12 python3 \
  python3.13 python3.14 "$pyenv_root"/versions/3.1[3-9]*/bin/python3; do
  path=$(command -v "$candidate" 2>/dev/null) || continue
  if fits "$path"; then
    echo "$path"
    exit 0
  fi
done
echo "jaxgnn needs Python 3.12 or newer; found none on PATH or below $pyenv_root/versions." >&2
echo "Install it (for example: pyenv install 3.12) or name it: make PYTHON=/path/to/python3.12" >&2
exit 1
