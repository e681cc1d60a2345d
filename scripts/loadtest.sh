#!/usr/bin/env bash
# Load test against any server with OpenAI's API. Builds tandem-bench where needed and passes it
# every argument; bench/README.md explains what is measured.
#
#   scripts/loadtest.sh                              100 prompts, 8 at once, http://127.0.0.1:8080
#   scripts/loadtest.sh --request-rate 4 --duration 60 --input-len 200-800 --html report.html
#   scripts/loadtest.sh --trace FILE.jsonl --speed 2 --max-input 3000
#   scripts/loadtest.sh --scenario mixed --duration 60 --html compare.html \
#       --compare configs/local.yaml configs/coupled.yaml     starts each in turn, side by side
#   scripts/loadtest.sh --help                       every option
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$here/build/release/bin

targets=(tandem-bench)
for argument in "$@"; do
  case $argument in
    # A configuration is started through `tandem up`.
    --compare | --compare=*)
      targets+=(tandem tandem-router tandem-prefill-worker tandem-decode-worker)
      ;;
  esac
done

# Progress of the build goes to standard error: standard output may be a JSON for another program.
"$here/scripts/build.sh" release "${targets[@]}" >&2
if [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
fi
# Paths in the arguments are the caller's: stay in the caller's folder.
exec "$bin/tandem-bench" "$@"
