#!/usr/bin/env bash
# Configures and builds one preset: scripts/build.sh PRESET [TARGET...]
# Presets: release (what users run), dev, asan, tsan, gpu. Programs land in build/PRESET/bin.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

preset=${1:-}
case $preset in
  release | dev | asan | tsan | gpu) shift ;;
  *) die "usage: scripts/build.sh release|dev|asan|tsan|gpu [TARGET...]" ;;
esac
mkdir -p "build/$preset"
step "build/$preset/configure.log" "Configuring $preset" cmake --preset "$preset"
step "build/$preset/build.log" "Building $preset${*:+: $*}" \
  cmake --build --preset "$preset" -j "$(jobs_max)" ${1:+--target "$@"}
