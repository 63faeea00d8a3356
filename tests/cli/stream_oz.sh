#!/usr/bin/env bash
# The long golden of a stream: 2,500 tokens through five caches, in chunks and token by token.
. tests/cli/lib.sh

fusebox verify --golden tests/data/golden/streaming/storyteller-oz.safetensors
is "golden, storyteller-oz: exit status" "$status" 0
is "golden, storyteller-oz: caches that hold" "$(grep -c 'ok$' "$work/out")" 5
is "golden, storyteller-oz: one warning" "$(cat "$work/err")" \
    "fusebox: warning: dense: 2500 tokens (the model was trained on 512)"
finish
