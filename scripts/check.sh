#!/usr/bin/env bash
# What `make check` runs: all checks side by side, then the output of those that failed.
# It shall answer within a minute, so that it is run before each commit. `make test` runs pyright and the slow unit tests, too.
set -uo pipefail
cd "$(dirname "$0")/.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
names=()

check() { # check NAME COMMAND...: starts it in the background
    local name=$1
    shift
    names+=("$name")
    (
        start=$EPOCHREALTIME
        "$@" > "$out/$name" 2>&1 < /dev/null
        status=$?
        took=$((${EPOCHREALTIME/./} - ${start/./}))
        printf '  %-8s %-7s %3d.%d s\n' "$([ $status = 0 ] && echo ok || echo FAILED)" "$name" $((took / 1000000)) $((took / 100000 % 10))
        [ $status = 0 ] || touch "$out/$name.failed"
    ) &
}

# The slow ones first: they bound the whole.
bin=.venv/bin
check unit "$bin/pytest" -q -n auto -m "not slow" tests/unit
check mypy "$bin/mypy"
check layers "$bin/lint-imports" --no-logo
check lint "$bin/ruff" check --output-format concise .
check format "$bin/ruff" format --check --output-format concise .

wait

verdict=0
for name in "${names[@]}"; do
    [ -e "$out/$name.failed" ] || continue
    verdict=1
    printf '\n--- %s\n' "$name"
    cat "$out/$name"
done
exit $verdict
