#!/usr/bin/env bash
# What the tests need of the system beside .venv: bubblewrap, allowed to make user
# namespaces. The platform itself runs without it (tier process); its tests show the
# tier sandbox too, and fail rather than skip where they cannot.
#
# Run by `make test`. Says nothing when nothing is missing; installs with apt, aloud,
# with sudo only where that is needed. Never fails itself: the tests name what they lack.
set -euo pipefail

say() { printf 'test packages: %s\n' "$*"; }

as_root=()
if [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n) # never wait for a password nobody can type
fi
can_be_root() { [ "$(id -u)" = 0 ] || command -v sudo > /dev/null; }

if ! command -v bwrap > /dev/null; then
    if ! command -v apt-get > /dev/null || ! can_be_root; then
        say "bubblewrap is missing and cannot be installed from here: the tests of the tier sandbox will fail; install bubblewrap"
        exit 0
    fi
    say "installing the Debian package bubblewrap, for the tests of the tier sandbox ${as_root[0]:+(with sudo)}"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # The list of packages is fetched only where the one at hand does not serve.
    install=(env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends bubblewrap)
    "${as_root[@]}" "${install[@]}" > "$log" 2>&1 \
        || { "${as_root[@]}" apt-get update -q && "${as_root[@]}" "${install[@]}"; } > "$log" 2>&1 \
        || { say "that FAILED: $(tail -n 1 "$log")"; exit 0; }
fi

# Ubuntu lets only root make user namespaces, from 24.04 on.
restricted=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
if [ "$(cat "$restricted" 2> /dev/null)" = 1 ]; then
    say "allowing user namespaces until the next boot (kernel.apparmor_restrict_unprivileged_userns=0) ${as_root[0]:+(with sudo)}"
    { can_be_root && "${as_root[@]}" sysctl -q -w kernel.apparmor_restrict_unprivileged_userns=0; } \
        || say "that FAILED: the tests of the tier sandbox will fail"
fi
