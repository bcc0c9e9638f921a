#!/usr/bin/env bash
# Resolves the dependencies of both distributions anew and writes them, with
# hashes, to requirements/*.txt. Run by `make lock`; the results are committed.
#
# The files are plain requirements files and not uv.lock, because uv.lock writes
# the package index's address into the repository, which ties users of mirrors.
# Each lock constrains the next (sdk < platform < dev), so a laptop, a server and
# a developer never run different versions of the same library.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=.venv/bin/uv
[ -x "$uv" ] || { echo "lock: no .venv yet: run scripts/setup.sh first" >&2; exit 1; }

upgrade=()
[ "${1:-}" = --upgrade ] && upgrade=(--upgrade)

# The locks hold for every Python and machine that pyproject.toml allows.
compile() {
    echo "lock: $1"
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-package weft-sdk --no-emit-package weft-platform \
        --custom-compile-command 'make lock' "${upgrade[@]}" -o "requirements/$1.txt" "${@:2}"
}

compile sdk cli/pyproject.toml
compile platform -c requirements/sdk.txt pyproject.toml
compile helper -c requirements/platform.txt requirements/helper.in
compile dev -c requirements/platform.txt pyproject.toml requirements/dev.in

# What setup.sh asks of pip: uv alone, in the version the platform is locked to.
{
    echo "# Made by 'make lock' from platform.txt: the one package that pip installs."
    awk '/^uv==/ {on = 1} on && /^ +# via/ {exit} on {print}' requirements/platform.txt
} > requirements/bootstrap.txt

if grep -nE '(https?|file)://' requirements/*.txt; then
    echo "lock: the lines above hold an address; locks must not" >&2
    exit 1
fi
