#!/usr/bin/env bash
# Installs the system packages that the tests need: bubblewrap, allowed to make user
# namespaces, and the brokers RabbitMQ and Redis. The platform itself runs without them
# (isolation process, a folder as broker). Tests fail without them; they do not skip.
#
#   scripts/test-packages.sh [--all | --browser]
#
# --all: also packages of few tests, whose fixtures otherwise install them (as root): Maven
# and a JDK, which build the MongoDB stand-in, faketime, the browser, and for root those of
# the test bed's Kubernetes and Docker engine.
# --browser: only what the tests of the dashboard need.
#
# Run by `make test`. Prints nothing if nothing is missing; installs with apt, with messages,
# with sudo only where that is needed. Never fails itself: the tests name what they lack.
set -euo pipefail

say() { printf 'test packages: %s\n' "$*"; }

as_root=()
if [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n) # no prompt for a password without a terminal
fi
can_be_root() { [ "$(id -u)" = 0 ] || command -v sudo > /dev/null; }

# package=a program of it. RabbitMQ's own is not on everybody's PATH.
needed=(bubblewrap=bwrap redis-server=redis-server rabbitmq-server=/usr/lib/rabbitmq/bin/rabbitmq-server)
[ "${1:-}" != --all ] || needed+=(maven=mvn default-jdk-headless=javac faketime=faketime chromium-headless-shell=chromium-headless-shell)
if [ "${1:-}" = --all ] && [ "$(id -u)" = 0 ]; then
    needed+=(iproute2=ip iptables=iptables busybox-static=busybox docker.io=dockerd mmdebstrap=mmdebstrap)
fi
[ "${1:-}" != --browser ] || needed=(bubblewrap=bwrap chromium-headless-shell=chromium-headless-shell)
missing=()
for wanted in "${needed[@]}"; do
    command -v "${wanted#*=}" > /dev/null || missing+=("${wanted%%=*}")
done

install_missing() {
    local log policy=/usr/sbin/policy-rc.d text cache=${XDG_CACHE_HOME:-${HOME:-$(unset HOME; echo ~)}/.cache}/weft-testbed
    log=$(mktemp)
    # One installation at a time (tests/testbed/built.py): the end of the other would remove the policy.
    if mkdir -p "$cache" && { exec 8> "$cache/debian.lock"; }; then flock 8; fi 2> /dev/null
    # No service starts that a package brings: the tests run their own. A machine that
    # has a policy of its own keeps it; one with this text was left by a run that was killed.
    text=$'#!/bin/sh\n# of the test bed of Weft, while it installs packages\nexit 101'
    local clean="rm -f $log"
    if [ ! -e "$policy" ] || [ "$(cat "$policy")" = "$text" ]; then
        clean="$clean; ${as_root[*]} rm -f $policy"
        printf '%s\n' "$text" | "${as_root[@]}" tee "$policy" > /dev/null
        "${as_root[@]}" chmod 755 "$policy"
    fi
    # shellcheck disable=SC2064 # as it is now
    trap "$clean" EXIT
    # The list of packages is fetched only where the one at hand does not serve.
    local install=(env DEBIAN_FRONTEND=noninteractive scripts/apt-get.sh install -qy --no-install-recommends "${missing[@]}")
    "${as_root[@]}" "${install[@]}" > "$log" 2>&1 \
        || { "${as_root[@]}" scripts/apt-get.sh update -q && "${as_root[@]}" "${install[@]}"; } > "$log" 2>&1 \
        || say "that FAILED: $(tail -n 1 "$log"). Run as root: apt-get install --no-install-recommends ${missing[*]}"
}

if [ "${#missing[@]}" != 0 ]; then
    if ! command -v apt-get > /dev/null || ! can_be_root; then
        say "missing, and cannot be installed from here; tests that need them will fail. Run as root: apt-get install --no-install-recommends ${missing[*]}"
    else
        say "installing the Debian packages ${missing[*]}, for the tests${as_root[0]:+ (with sudo)}"
        install_missing
    fi
fi

# Ubuntu lets only root make user namespaces, from 24.04 on.
restricted=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
if [ "$(cat "$restricted" 2> /dev/null)" = 1 ]; then
    say "allowing user namespaces until the next boot (kernel.apparmor_restrict_unprivileged_userns=0) ${as_root[0]:+(with sudo)}"
    { can_be_root && "${as_root[@]}" sysctl -q -w kernel.apparmor_restrict_unprivileged_userns=0; } \
        || say "that FAILED: the tests of the isolation sandbox will fail"
fi
