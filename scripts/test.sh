#!/usr/bin/env bash
# What `make test` runs: the tests, on every processor, with one line of progress. Without
# arguments all of them, and what they need is installed and built before the first.
#
#   scripts/test.sh [pytest's arguments]
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$#" = 0 ]; then
    scripts/test-packages.sh --all
    .venv/bin/python -m tests.testbed.prepare
else
    scripts/test-packages.sh
fi
exec .venv/bin/pytest --no-header -p tests.testbed.progress -o console_output_style=classic -n auto "$@"
