#!/usr/bin/env bash
# Makes .venv: everything Weft needs to run and to be tested, from the hashes in
# requirements/. Prints each step; prints nothing if there is nothing to do.
#
# Run by every make target, so the second run must cost nothing: a stamp in .venv
# holds the hash of all that it was made from.
#
#   WEFT_PYTHON   the interpreter to use (3.11 or newer); otherwise that of .venv,
#                 or one is found
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP # of the user's own modules
umask 022 # as root, learners run under other uids and read this environment

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- nothing to do? ---------------------------------------------------------

# A later run without WEFT_PYTHON keeps the interpreter that was chosen before: a
# platform may be running in this environment.
chosen=$(cat .venv/.python 2> /dev/null || true)
if [ -z "${WEFT_PYTHON:-}" ] && [ -n "$chosen" ] && command -v "$chosen" > /dev/null; then
    WEFT_PYTHON=$chosen
fi

# Two stamps: what the environment holds, and how our own packages are installed
# into it. Where it lies is part of both: an environment cannot be moved.
locks=$({ pwd; echo "${WEFT_PYTHON:-}"; cat requirements/dev.txt requirements/bootstrap.txt scripts/setup.sh; } | sha256sum)
packages=$({ echo "$locks"; cat pyproject.toml cli/pyproject.toml; } | sha256sum)
stamp_is() { [ "$(cat ".venv/.$1" 2>/dev/null)" = "$2" ]; }
done_already() { stamp_is packages "$packages" && [ -x .venv/bin/python ]; }
done_already && exit 0

# Two at once (say, `make check` beside `make test`): the second waits, then finds
# the work done.
mkdir -p .venv
if command -v flock > /dev/null; then
    exec 9> .venv/.setup-lock # not .venv/.lock: that one is uv's own
    flock -n 9 || { say "waiting for another set-up of this checkout"; flock 9; }
    done_already && exit 0
fi
log=.venv/setup.log

# Runs a step with its output in the log; on failure names the step, what to do,
# and the last thing that was said.
step() {
    local what=$1 hint=$2
    shift 2
    say "$what"
    "$@" > "$log" 2>&1 && return
    # What the network said comes first: pip's last word on it is 'no such version'.
    local said
    said=$(grep -ioE "$network|no space left on device" "$log" | head -n 1 || true)
    [ -n "$said" ] || said=$(grep -iE 'error|cause|fail|could not' "$log" | tail -n 1 | sed 's/^ *//' || true)
    [ -n "$said" ] || said=$(tail -n 1 "$log")
    # Advice about the network fits only where the network failed.
    [ "$hint" != "$online" ] || grep -qiE "$network" "$log" || hint=""
    die "FAILED: $what: ${said:-it gave no reason}.${hint:+ $hint} (everything that was said: $log)"
}
network='connection refused|connection reset|name or service not known|temporary failure in name resolution|network is unreachable|no route to host|timed out|certificate verify failed|invalid peer certificate|dns error'
online="This step needs the package index: check the network (or pip's index-url, if you use a mirror) and run it again."

# --- caches and certificates --------------------------------------------------

# pip and uv keep downloads below HOME; without one that can be written, in .venv.
cache=${XDG_CACHE_HOME:-${HOME:-/}/.cache}
if [ -z "${XDG_CACHE_HOME:-}" ] && { [ -z "${HOME:-}" ] || [ "$HOME" = / ] || ! mkdir -p "$cache" 2> /dev/null || [ ! -w "$cache" ]; }; then
    say "note: there is no home folder that can be written (HOME='${HOME:-}'): downloads are kept in .venv/.cache"
    export XDG_CACHE_HOME=$PWD/.venv/.cache
fi

# An authority that only the system knows (a company's) counts for pip and uv, too.
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
    [ -s "$bundle" ] || continue
    export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true} PIP_CERT=${PIP_CERT:-$bundle}
    break
done

# --- an interpreter ---------------------------------------------------------

new_enough() { [ "$("$1" -c 'import sys; print(sys.version_info >= (3, 11))' 2> /dev/null)" = True ]; }
version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2> /dev/null || true; }
has_venv() { "$1" -c 'import ensurepip, venv' 2> /dev/null; }

# True if a user other than root can run it: learners do. The interpreter is tried
# as 'nobody' rather than its path looked at, since libraries count as well as path.
others_can_run() {
    "$1" - << 'PYTHON' 2> /dev/null
import os, sys
try:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
except OSError:
    sys.exit(0)  # no other users in this container: nothing to ask for
os.chdir("/")
os.execv(sys.executable, [sys.executable, "-c", "import ctypes, ssl, sqlite3, venv"])
PYTHON
}

suits() {
    new_enough "$1" || return 1
    [ "$(id -u)" != 0 ] || others_can_run "$1"
}

find_python() {
    local candidates=(python3 python3.14 python3.13 python3.12 python3.11) name path
    # Root's own python3 often lies in its private home; Debian's does not.
    [ "$(id -u)" != 0 ] || candidates=(/usr/bin/python3 "${candidates[@]}")
    for name in "${candidates[@]}"; do
        path=$(command -v "$name") || continue
        if suits "$path"; then
            echo "$path"
            return
        fi
    done
}

install_debian() {
    command -v apt-get > /dev/null || die "no Python >= 3.11 with venv was found, and this is no Debian to install it on: install it and set WEFT_PYTHON=/path/to/python3"
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo > /dev/null || die "the Debian packages '$*' are missing and there is no sudo: ask an administrator to run 'apt-get install $*'"
        as_root=(sudo)
        [ -t 0 ] || as_root=(sudo -n) # no prompt for a password without a terminal
    fi
    local hint="Install them yourself, or set WEFT_PYTHON=/path/to/python3"
    step "installing Debian packages: $* ${as_root[0]:+(with sudo)}" "$hint" \
        "${as_root[@]}" sh -c 'scripts/apt-get.sh update -q; exec env DEBIAN_FRONTEND=noninteractive scripts/apt-get.sh install -qy --no-install-recommends "$@"' apt "$@"
}

if [ -n "${WEFT_PYTHON:-}" ]; then
    python=$(command -v "$WEFT_PYTHON") || die "WEFT_PYTHON=$WEFT_PYTHON: there is no such interpreter"
    if ! new_enough "$python"; then
        version=$(version_of "$python")
        [ -n "$version" ] || die "WEFT_PYTHON=$WEFT_PYTHON is no Python"
        die "WEFT_PYTHON=$WEFT_PYTHON is Python $version; Weft needs 3.11 or newer"
    fi
    has_venv "$python" || die "WEFT_PYTHON=$WEFT_PYTHON lacks the modules venv and ensurepip"
    [ "$(id -u)" != 0 ] || others_can_run "$python" \
        || say "note: other users cannot run $python; learners of a platform started by root will need one that they can"
else
    python=$(find_python)
    if [ -z "$python" ]; then
        # Where the system's own Python is there and too old, its packages bring no newer one.
        old=$(version_of /usr/bin/python3)
        [ -z "$old" ] || new_enough /usr/bin/python3 \
            || die "Weft needs Python 3.11 or newer, and this system offers $old: install a newer one and set WEFT_PYTHON=/path/to/python3"
        install_debian python3 python3-venv
        python=$(find_python)
        [ -n "$python" ] || die "Weft needs Python 3.11 or newer, and this system offers $(version_of python3): install a newer one and set WEFT_PYTHON=/path/to/python3"
    elif ! has_venv "$python"; then
        install_debian "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        has_venv "$python" || die "$python lacks the modules venv and ensurepip: set WEFT_PYTHON to an interpreter that has them"
    fi
fi

# --- the environment --------------------------------------------------------

if ! stamp_is locks "$locks"; then
    rm -f .venv/.locks .venv/.packages
    # An environment of another interpreter, or a moved one, is built anew.
    made_for=$(cat .venv/.made_for 2> /dev/null || true)
    identity="$PWD $("$python" -c 'import os, sys; print(os.path.realpath(sys.executable), sys.version)')"
    if [ "$made_for" != "$identity" ] || ! .venv/bin/python -c '' 2> /dev/null; then
        find .venv -mindepth 1 -maxdepth 1 ! -name .setup-lock ! -name setup.log -exec rm -rf {} +
        step "making .venv with $("$python" --version 2>&1) ($python)" "" "$python" -m venv .venv
        printf '%s\n' "$identity" > .venv/.made_for
    fi
    printf '%s\n' "${WEFT_PYTHON:-}" > .venv/.python # also of another name of the same interpreter

    step "fetching uv" "$online" .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --retries 1 --require-hashes --no-deps -r requirements/bootstrap.txt

    # uv does not read pip's settings, where users of mirrors name their index.
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        mirror=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2> /dev/null || true)}
        [ -z "$mirror" ] || export UV_DEFAULT_INDEX=$mirror
    fi
    export UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
    step "installing $(grep -c '==' requirements/dev.txt) locked packages" "$online" \
        .venv/bin/uv pip sync --python .venv/bin/python --require-hashes requirements/dev.txt
    printf '%s\n' "$locks" > .venv/.locks
fi

step "installing weft-sdk and weft-platform from this checkout" "" \
    .venv/bin/uv pip install --offline --python .venv/bin/python --no-deps --no-build-isolation \
    --reinstall-package weft-sdk --reinstall-package weft-platform -e cli -e .
# uv compiles nothing, and Python keeps nothing where PYTHONDONTWRITEBYTECODE is set, as in many containers: every
# process would compile hundreds of modules again, which doubles the time of a command and of a service's start. All
# modules of the commands' packages, and of the others those that services and tests import: Python keeps these itself.
step "compiling what commands, services and tests load" "" env -u PYTHONDONTWRITEBYTECODE .venv/bin/python - << 'PYTHON'
import compileall, importlib, importlib.util, pathlib, pkgutil
for name in ("click", "httpx2", "httpcore2", "h11", "anyio", "idna", "truststore", "yaml", "pathspec", "weft"):
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin:
        compileall.compile_dir(pathlib.Path(spec.origin).parent, quiet=2)
import hypothesis, hypothesis.stateful, pytest, pytest_asyncio, xdist.remote, services
for module in pkgutil.walk_packages(services.__path__, "services."):
    importlib.import_module(module.name)
PYTHON
printf '%s\n' "$packages" > .venv/.packages
say "ready: $(.venv/bin/python --version) in .venv"
