# What tools/test and tools/demo share. Sourced, with `root` set to the repository's top.

# Jobs that neither the cores nor the memory mind: a LibTorch unit takes up to 2 GB to compile.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

# build PRESET [target...]: configures once (ninja notices later changes itself) and builds.
build() {
  local preset=$1 folder=$root/build/$1
  shift
  if [ ! -f "$folder/build.ninja" ]; then
    echo "configuring $preset"
    mkdir -p "$folder"
    (cd "$root" && cmake --preset "$preset" >"$folder/configure.log" 2>&1) || {
      cat "$folder/configure.log" >&2
      return 1
    }
  fi
  cmake --build "$folder" --parallel "$(build_jobs)" ${1:+--target "$@"}
}
