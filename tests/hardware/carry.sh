#!/bin/sh
# Collects the wheels that tests/hardware needs on a machine without network, for Python 3.12 on x86-64, into
# tests/hardware/wheels (or the folder that is given). That machine has its own torch, CuPy and NumPy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${1:-$here/wheels}
python=${PYTHON:-python3}
rm -rf "$target"
mkdir -p "$target"
set -- --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$target" \
    --constraint "$root/constraints.txt" --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 --platform manylinux2010_x86_64 \
    --platform manylinux_2_5_x86_64 --platform manylinux1_x86_64
"$python" -m pip download "$@" $(cat "$here/carried.txt")
du -sh "$target"
