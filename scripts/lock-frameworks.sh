#!/usr/bin/env bash
# Resolves the framework library (services/core/frameworks) anew: for each NAME.in
# the lock NAME.txt, with hashes, for every Python and machine its entry allows.
# Nothing is downloaded but metadata. The results are committed.
#
#   scripts/lock-frameworks.sh [--upgrade]
set -euo pipefail
cd "$(dirname "$0")/.."

uv=.venv/bin/uv
[ -x "$uv" ] || { echo "lock-frameworks: no .venv yet: run scripts/setup.sh first" >&2; exit 1; }

upgrade=()
[ "${1:-}" = --upgrade ] && upgrade=(--upgrade)

# Wheels only: a source distribution would run its build on the node of the first job
# that names the framework, and need a compiler there.
cd services/core/frameworks
for source in *.in; do
    echo "lock-frameworks: ${source%.in}"
    ../../../"$uv" pip compile --quiet --universal --python-version 3.11 --only-binary :all: \
        --generate-hashes --no-emit-index-url --no-annotate \
        --custom-compile-command scripts/lock-frameworks.sh "${upgrade[@]}" \
        -o "${source%.in}.txt" "$source"
done

if grep -nE '(https?|file)://' ./*.txt; then
    echo "lock-frameworks: the lines above hold an address; locks must not" >&2
    exit 1
fi

cd ../../..
.venv/bin/python - <<'PYTHON'
from services.core.frameworks import library

for entry in library():
    if entry.lock and f"\n{entry.package}=={entry.version} " not in f"\n{entry.lock_text()}":
        print(f"lock-frameworks: library.toml: {entry.lock} has another version of {entry.package} than {entry.version}")
PYTHON
