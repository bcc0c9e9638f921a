#!/usr/bin/env bash
# From nothing to a trained model: starts the platform, trains examples/digits with two
# learners, shows the result, and stops everything again. KEEP=1 leaves it up, and prints
# the address of the dashboard. The first time it builds the dashboard.
#
# Uses its own folder, so that your platform is not touched. The learners' environment is
# kept there, which makes the next demo fast.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" = 0 ]; then
  # Learners run under their own user ids, which must reach this folder.
  base=/var/lib
else
  # Without HOME that of the list of users, as for weft up.
  base=${XDG_DATA_HOME:-${HOME:-$(unset HOME; echo ~)}/.local/share}
fi
export WEFT_HOME=${WEFT_DEMO_HOME:-$base/weft-demo}
export XDG_CONFIG_HOME=$WEFT_HOME/config
out=$WEFT_HOME/digits-result
weft=.venv/bin/weft

bold=$'\e[1m' plain=$'\e[0m'
[ -t 1 ] || bold='' plain=''
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
run() { printf '%s$ weft %s%s\n' "$bold" "$*" "$plain"; "$weft" "$@"; }

# Prints nothing if the build is current. Without it everything else still works.
scripts/dashboard.sh || echo "The demo goes on without the dashboard."

stop() {
  if [ "${KEEP:-}" = 1 ] && [ "${1:-}" = well ]; then
    say "left running (KEEP=1)"
    echo "to use it:   export WEFT_HOME=$WEFT_HOME XDG_CONFIG_HOME=$XDG_CONFIG_HOME"
    echo "             source .venv/bin/activate; weft list"
    echo "to stop it:  weft down"
  else
    say "stop the platform"
    run down --now --yes
  fi
}
trap 'stop; exit 130' INT TERM
trap 'status=$?; trap - EXIT; [ $status = 0 ] || stop; exit $status' EXIT

say "start the platform on this machine"
run up

say "train a classifier of handwritten digits, with two learners"
[ -d "$WEFT_HOME/cache/envs" ] && [ -n "$(ls -A "$WEFT_HOME/cache/envs" 2>/dev/null)" ] ||
  echo "The first time, its environment (JAX, about 565 MB) is fetched and built."
run train examples/digits --follow

say "what happened to the job"
run events @last
run metrics @last

say "fetch the result"
mkdir -p "$out"
run download @last "$out" --force # an earlier demo has left its result there
.venv/bin/python - "$out" <<'PY'
import json, pathlib, sys

found = sorted(pathlib.Path(sys.argv[1]).rglob("metrics.json"), key=lambda path: path.stat().st_mtime)
result = json.loads(found[-1].read_text())
print(f"\nfinal accuracy on digits it has never seen: {result['accuracy']:.2%}")
print(f"weights: {found[-1].with_name('weights.npz')}")
PY

stop well
say "done: make test runs every test, weft up starts a platform of your own"
if [ "${KEEP:-}" = 1 ]; then
  say "the dashboard, signed in"
  run dashboard --no-open
  echo "The address works once. For another one: weft dashboard"
fi
