# shellcheck shell=bash
# Shared by the scripts here: progress lines and tool settings. Sourced from the checkout's root.

# Compiler cache: paths relative to the checkout, so that several checkouts share entries.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-5G}"
export CCACHE_SLOPPINESS=time_macros,include_file_mtime,include_file_ctime

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Parallel compilers: one per core, and 2 GB of memory for each.
jobs_max() {
  local cores memory_gb
  cores=$(nproc)
  memory_gb=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
  local by_memory=$((memory_gb / 2))
  ((by_memory >= 1)) || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# step LOG LABEL COMMAND...: runs the command with its output in LOG. Shows its last line every ten
# seconds, how long it took, and the end of LOG when it fails.
step() {
  local log=$1 label=$2 start=$SECONDS shown=$SECONDS line="" status=0 output pid
  shift 2
  say "$label"
  : >"$log"
  exec {output}< <("$@" 2>&1)
  pid=$!
  while true; do
    if IFS= read -r -t 10 -u "$output" line; then
      printf '%s\n' "$line" >>"$log"
    elif (($? <= 128)); then
      [[ -z $line ]] || printf '%s\n' "$line" >>"$log"
      break
    fi
    if ((SECONDS - shown >= 10)); then
      shown=$SECONDS
      say "  ... $((SECONDS - start)) s: $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-100)"
    fi
  done
  exec {output}<&-
  wait "$pid" || status=$?
  if ((status != 0)); then
    tail -n 40 "$log" >&2
    die "$label: failed with status $status; all of its output is in $log"
  fi
  say "  done in $((SECONDS - start)) s"
}
