#!/usr/bin/env bash
# Everything that must pass: the release build with all suites, then unit and contract suites under
# the address, undefined-behaviour and thread sanitizers. Installs what is missing.
# --full adds the long tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

for word in "$@"; do
  case $word in
    --full) export TANDEM_FULL=1 ;;
    *) die "unknown option $word; allowed: --full" ;;
  esac
done

mkdir -p build
passed=0 failed=0 skipped=0 failures=()

# Thread sanitizer of this compiler needs the address layout of older kernels.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# suite PRESET LABEL CTEST-ARGUMENTS...: runs tests of a built preset and counts.
suite() {
  local preset=$1 label=$2 log run=()
  shift 2
  log="build/$preset/tests-${label// /-}.log"
  [[ $preset != tsan ]] || run=("${fixed_addresses[@]}")
  say "Testing $preset: $label"
  "${run[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error "$@" 2>&1 |
    tee "$log" || true
  local good bad skip
  good=$(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed ' "$log" || true)
  skip=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*Skipped ' "$log" || true)
  bad=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*' "$log" || true)
  bad=$((bad - skip))
  if ((good + bad + skip == 0)); then
    bad=1
    failures+=("$preset: $label: no test ran")
  fi
  mapfile -t -O "${#failures[@]}" failures < <(grep -E '^ *[0-9]+/[0-9]+ Test .*\*\*\*' "$log" |
    grep -v '\*\*\*Skipped' | sed -E "s/^.*: ([^ ]+) .*\*\*\*/$preset: \1: /")
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skip))
}

# build PRESET [TARGET...]: false, and counted, when it fails.
build() {
  scripts/build.sh "$@" && return
  failed=$((failed + 1))
  failures+=("$1: the build failed")
  return 1
}

# The folders of unit and contract tests, as build targets.
unit_and_contract() {
  local file
  for file in tests/unit/*/CMakeLists.txt tests/contract/*/CMakeLists.txt; do
    [[ ! -f $file ]] || echo "$(dirname "$file")/all"
  done
}

scripts/setup.sh --test-model
# The official client, for the end-to-end suite: real clients belong to the long tests.
if [[ ${TANDEM_FULL:-} == 1 ]]; then
  step build/client.log "Installing the openai client" .venv/bin/python -m pip install openai
fi
if build release; then
  # The full counts take their time.
  [[ ${TANDEM_FULL:-} != 1 ]] || cmake -S . -B build/release -DTANDEM_E2E_TIMEOUT=7200 >/dev/null
  suite release "unit and contract" -E '^e2e\.' -j 2
  suite release "end to end" -R '^e2e\.' -j 1
fi
mapfile -t targets < <(unit_and_contract)
for preset in asan tsan; do
  build "$preset" "${targets[@]}" || continue
  suite "$preset" sanitized -R '^(unit|contract)\.' -j 2
done

for failure in "${failures[@]}"; do say "FAILED $failure"; done
((skipped == 0)) || say "$skipped skipped"
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0 && passed > 0))
