#!/usr/bin/env bash
# usage: setup_test.sh SETUP
# On a machine that is set up, setup is silent; --where names what is really there.
set -euo pipefail
setup=$1
said=$("$setup")
[ -z "$said" ] || { echo "a second setup should say nothing, but said: $said"; exit 1; }

declare -A where
while IFS='=' read -r key value; do where[$key]=$value; done < <("$setup" --where)
for key in PYTHON BUILD CACHE LIBTORCH_DIR UCX_DIR; do
  [ -n "${where[$key]:-}" ] || { echo "--where lacks $key"; exit 1; }
done
"${where[PYTHON]}" -c 'import importlib.metadata as m; assert m.version("torch") == "2.11.0"'
[ -f "${where[LIBTORCH_DIR]}/lib/libtorch_cpu.so" ] || { echo "no LibTorch there"; exit 1; }
[ -f "${where[UCX_DIR]}/lib/libucp.so" ] || { echo "no UCX there"; exit 1; }

# It follows PIPER_CACHE, and --where makes nothing.
elsewhere=$(mktemp -u)
PIPER_CACHE=$elsewhere "$setup" --where | grep -qx "CACHE=$elsewhere"
[ ! -e "$elsewhere" ] || { echo "--where made $elsewhere"; exit 1; }
if "$setup" --fly 2>/dev/null; then echo "an unknown argument was taken"; exit 1; fi
