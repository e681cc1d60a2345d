#!/usr/bin/env bash
# From a fresh checkout to a running cluster: installs what is missing, builds, serves until Ctrl-C.
#
#   scripts/up.sh                                  configs/local.yaml: a prefill and a decode worker
#   scripts/up.sh -c configs/two_prefill.yaml      another cluster
#   scripts/up.sh --model FILE.gguf                another model
#   scripts/up.sh --set router.listen=0.0.0.0:80   any key of the configuration, repeatable
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

config=configs/local.yaml setup=() sets=()
while (($# > 0)); do
  case $1 in
    -c | --config | --model | --set)
      (($# > 1)) || die "$1 needs a value"
      ;;&
    -c | --config) config=$2 ;;
    --model)
      [[ -f $2 ]] || die "--model $2: there is no such file"
      name=$(basename "$2" .gguf)
      sets+=(--set "model.path=$(realpath "$2")" --set "model.name=$name")
      setup=(--no-model)
      ;;
    --set) sets+=(--set "$2") ;;
    -h | --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      exit
      ;;
    *) die "unknown option $1; allowed: -c FILE, --model FILE.gguf, --set KEY=VALUE" ;;
  esac
  shift 2
done
[[ -f $config ]] || die "-c $config: there is no such file"

scripts/setup.sh "${setup[@]}"
scripts/build.sh release tandem tandem-router tandem-prefill-worker tandem-decode-worker
exec build/release/bin/tandem up -c "$config" "${sets[@]}"
