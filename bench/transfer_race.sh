#!/usr/bin/env bash
# Races the KV stream against memcpy, bare UCX and NIXL in one run, and prints a table of ratios.
#
#   bench/transfer_race.sh [--bench FILE] [--nixl PYTHON] [--mib N]
#
# FILE: tandem-transfer-bench (default build/release/bin/...). PYTHON: an interpreter that has
# nixl-cu12 and numpy (pip install --no-deps nixl-cu12 numpy); without it NIXL is left out.
# N: MiB of rows, larger than the cache.
set -euo pipefail
cd "$(dirname "$0")/.."

bench=build/release/bin/tandem-transfer-bench
nixl=
mib=1024
while [ $# -gt 0 ]; do
  case "$1" in
    --bench) bench=$2; shift 2 ;;
    --nixl) nixl=$2; shift 2 ;;
    --mib) mib=$2; shift 2 ;;
    *) sed -n '2,9p' "$0"; exit 2 ;;
  esac
done

figures=$(mktemp)
trap 'rm -f "$figures"' EXIT
"$bench" all "$mib" | tee -a "$figures" >&2
if [ -n "$nixl" ]; then "$nixl" bench/nixl_compare.py "$mib" 2>/dev/null | tee -a "$figures" >&2; fi

awk '
  { value[$1] = $2 }
  function row(what, name, base, goal,    ratio) {
    if (!(name in value) || !(base in value) || value[base] == 0) return
    ratio = value[name] / value[base]
    printf "%-44s %9.2f %9.2f %8.2fx   %s\n", what, value[name], value[base], ratio, goal
  }
  END {
    printf "%-44s %9s %9s %9s   %s\n", "what", "tandem", "other", "ratio", "goal"
    row("ucx goodput GB/s, against bare UCX put", "ucx_goodput_gb_s", "raw_put_gb_s", ">= 0.8")
    row("ucx goodput GB/s, against NIXL", "ucx_goodput_gb_s", "nixl_shared_gb_s", ">= 1.3")
    row("ucx goodput with import, against memcpy", "ucx_goodput_gb_s_imported", "memcpy_gb_s", "")
    row("tcp goodput GB/s, against NIXL over TCP", "tcp_goodput_gb_s", "nixl_tcp_gb_s", ">= 1")
    row("128 KB unit us, no CRC, against put + message", "ucx_unit_p50_us_without_crc",
        "raw_unit_p50_us", "<= 1.3")
    row("128 KB unit us, CRC, against put + message", "ucx_unit_p50_us", "raw_unit_p50_us", "<= 2")
    row("the same, where the bare target reads too", "ucx_unit_p50_us", "raw_unit_read_p50_us", "")
    row("128 KB unit us, CRC, against NIXL write", "ucx_unit_p50_us", "nixl_shared_unit_p50_us", "")
    row("128 KB unit us over tcp, against NIXL", "tcp_unit_p50_us", "nixl_tcp_unit_p50_us", "")
  }' "$figures"
