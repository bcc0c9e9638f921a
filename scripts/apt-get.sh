#!/usr/bin/env bash
# apt-get that waits, ten minutes at most, while another program holds its locks: an automatic update, another set-up.
#
#   scripts/apt-get.sh [apt-get's arguments]
set -uo pipefail

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

announced=
while true; do
    LC_ALL=C apt-get "$@" 2> "$errors"
    status=$?
    if [ $status = 0 ] || [ $SECONDS -gt 600 ] || ! grep -q 'Could not get lock' "$errors"; then
        cat "$errors" >&2
        exit $status
    fi
    [ -n "$announced" ] || echo "apt-get: waiting for another program: $(grep -m 1 'Could not get lock' "$errors")" >&2
    announced=1
    sleep 2
done
