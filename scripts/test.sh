#!/usr/bin/env bash
# What `make test` runs: the tests, on every processor, with one line of progress. Where no
# file or folder is named these are all of them, and what they need is installed and built
# before the first.
#
#   scripts/test.sh [pytest's arguments]
set -euo pipefail
cd "$(dirname "$0")/.."

all=--all
for argument in "$@"; do
    [[ ! -e ${argument%%::*} ]] || all=
done
scripts/test-packages.sh $all
tests=(.venv/bin/pytest --no-header -p tests.testbed.progress -o console_output_style=classic -n auto "$@")
[ -z "$all" ] || tests=(.venv/bin/python -m tests.testbed.prepare "${tests[@]}")
exec "${tests[@]}"
