#!/usr/bin/env bash
# A model's file that is cut off while it is in use: the program says so, and ends.
. tests/cli/lib.sh

# cut_while_running NAME FILE MODEL: FILE becomes shorter while MODEL streams.
cut_while_running() {
    "$FUSEBOX" run "$3" --stream --seed 5 -p "Once upon a time" >"$work/out" 2>"$work/err" &
    local stream=$!
    for _ in $(seq 300); do
        [ -s "$work/out" ] && break
        sleep 0.1
    done
    holds "$1: it streams" test -s "$work/out"
    truncate -s 4096 "$2"
    for _ in $(seq 200); do
        kill -0 $stream 2>/dev/null || break
        sleep 0.1
    done
    kill -9 $stream 2>/dev/null # hangs, or reads what is not there
    status=0
    wait $stream || status=$?
    is "$1: exit status" "$status" 1
    is "$1: message" "$(cat "$work/err")" \
        "fusebox: $3: the file was truncated or its storage failed while it was in use"
}

cp -r models/storyteller "$work/model"
cut_while_running "a directory" "$work/model/model.safetensors" "$work/model"
fusebox quantize "$work/model.gguf" --type f16
cut_while_running "a GGUF file" "$work/model.gguf" "$work/model.gguf"

# Cut off before: refused when it is opened.
cp -r models/storyteller "$work/short"
truncate -s 1000000 "$work/short/model.safetensors"
refuses "cut off before" 2 "$work/short/model.safetensors: .*data_offsets" run "$work/short" -p a
finish
