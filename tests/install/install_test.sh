#!/usr/bin/env bash
# usage: install_test.sh BUILD_FOLDER EMBED_SOURCES
# Installs into a fresh prefix, builds the embedding example there with nothing but
# find_package(piper), and runs it and the installed program.
set -euo pipefail
build=$1 sources=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
# A copy: the example must not reach into the tree by relative paths.
cp -r "$sources" "$scratch/embed"
cmake -S "$scratch/embed" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$scratch/prefix"
cmake --build "$scratch/build"
"$scratch/build/embed"
# Both find LibTorch and UCX without help from the environment.
env -u LD_LIBRARY_PATH "$scratch/prefix/bin/piper" train --model mlp --strategy dp:2 --iters 2
