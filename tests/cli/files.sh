#!/usr/bin/env bash
# Files that a command writes are there whole or not at all: whatever signal comes, whatever the disk refuses, and
# whatever lies in the folder. With and without a file system that has files without a name.
. tests/cli/lib.sh

head -c 300 tests/data/oz.txt >"$work/text"
folder=$work/folder cache=$work/cache
export XDG_CACHE_HOME=$cache

# A library in front of the C library: files without a name fail if $NO_UNNAMED is set, and the first call that gives a
# file its name, or waits for the disk before that, raises the signal $RAISE instead.
cat >"$work/shim.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
static void stop(const char *path) {
    const char *number = getenv("RAISE"), *only = getenv("ONLY");
    if (number && (!only || !path || strstr(path, only))) raise(atoi(number));
}
#define OPEN(name)                                                                                  \
    int name(const char *path, int flags, ...) {                                                    \
        va_list args;                                                                               \
        va_start(args, flags);                                                                      \
        int mode = va_arg(args, int);                                                               \
        va_end(args);                                                                               \
        if ((flags & O_TMPFILE) == O_TMPFILE && getenv("NO_UNNAMED")) return errno = EOPNOTSUPP, -1; \
        int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        return next(path, flags, mode);                                                             \
    }
OPEN(open)
OPEN(open64)
#define NEXT(name, path, result, parameters, arguments)                          \
    result name parameters {                                                     \
        stop(path);                                                              \
        return ((result(*) parameters)dlsym(RTLD_NEXT, #name)) arguments;        \
    }
NEXT(fsync, NULL, int, (int fd), (fd))
NEXT(rename, to, int, (const char *from, const char *to), (from, to))
NEXT(renameat2, to, int, (int a, const char *from, int b, const char *to, unsigned f), (a, from, b, to, f))
NEXT(linkat, to, int, (int a, const char *from, int b, const char *to, int f), (a, from, b, to, f))
C
holds "the shim" ${CC:-cc} -shared -fPIC -o "$work/shim.so" "$work/shim.c" -ldl
shimmed() { # shimmed NAME=VALUE... -- ARGUMENT...: status, $work/out, $work/err
    local set=()
    while [ "$1" != -- ]; do set+=("$1") && shift; done
    shift
    status=0
    { # the shell says on its own stderr what ended a program
        env "${set[@]}" LD_PRELOAD="$work/shim.so" ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" \
            "$FUSEBOX" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    } 2>/dev/null
}

# The commands that write a file: their arguments, and the file.
writers=(
    "quantize $folder/x.gguf --force|$folder/x.gguf"
    "ppl -f $work/text --cache sinks --svg $folder/x.svg|$folder/x.svg"
    "plan --gen 4 --prompt 4 --threads 1 --svg $folder/x.svg|$folder/x.svg"
    "plan --gen 4 --prompt 4 --threads 1 --calibrate|$cache/fusebox"
)
contents() { find "$folder" "$cache" ! -type d -printf '%f ' 2>/dev/null; }

for writer in "${writers[@]}"; do
    arguments=${writer%|*} file=${writer#*|}
    name=${arguments%% *}
    [ "$file" = "$cache/fusebox" ] && name="the planner's cache"
    rm -rf "$folder" "$cache"
    mkdir "$folder"
    [ "$name" = plan ] && shimmed -- plan --gen 4 --prompt 4 --threads 1 # with the cache that is not looked at here
    before=$(contents)
    for how in "" NO_UNNAMED=1; do
        signals=TERM
        [ "$name" != quantize ] || signals="TERM HUP INT"
        for signal in $signals; do
            shimmed $how RAISE=$(kill -l $signal) ONLY="${file##*/}" -- $arguments
            is "$name: SIG$signal ${how:+with names}: exit status" "$status" $((128 + $(kill -l $signal)))
            is "$name: SIG$signal ${how:+with names}: nothing stays" "$(contents)" "$before"
        done
        shimmed $how -- $arguments
        is "$name: ${how:+with names}" "$status$(cat "$work/err")" 0
        holds "$name: ${how:+with names}: one file" test "$(contents | wc -w)" -eq $(($(wc -w <<<"$before") + 1))
        shimmed $how -- $arguments # over what is there
        is "$name: ${how:+with names}: again" "$status$(cat "$work/err")" 0
        shimmed $how RAISE=15 ONLY=x -- $arguments
        holds "$name: ${how:+with names}: again, SIGTERM: the file stays" test "$(contents | wc -w)" -eq $(($(wc -w <<<"$before") + 1))
        [ -d "$file" ] && rm -r "$file" || rm "$file"
    done
    # A limit on the size of files is a failed run, not a signal.
    [ "$name" = "the planner's cache" ] && continue
    status=0
    (ulimit -f 1; exec "$FUSEBOX" $arguments) >"$work/out" 2>"$work/err" </dev/null || status=$?
    is "$name: a limit on files: exit status" "$status" 1
    matches "$name: a limit on files: said" "$work/err" "^fusebox: .*/x\.[a-z]+: File too large$"
    is "$name: a limit on files: nothing stays" "$(contents)" "$before"
done

# ---- links at the temporary names that others may guess: none is followed
mkdir -p "$folder"
echo precious >"$work/precious"
status=0
(ln -s "$work/precious" "$folder/x.svg.$BASHPID.tmp" && exec "$FUSEBOX" ppl -f "$work/text" --cache sinks --svg "$folder/x.svg") \
    >"$work/out" 2>"$work/err" </dev/null || status=$?
is "a planted link: exit status" "$status" 0
is "a planted link: not followed" "$(cat "$work/precious")" precious
holds "a planted link: the picture is a file" test -f "$folder/x.svg" -a ! -L "$folder/x.svg"
rm -f "$folder"/*

# ---- a device or a link that was named is written to; a name as long as a name can be has room for no other
ln -s "$work/target.svg" "$folder/link.svg"
succeeds "svg: a link that was named" ppl -f "$work/text" --cache sinks --svg "$folder/link.svg"
holds "svg: a link that was named: followed" grep -q '</svg>' "$work/target.svg"
long=$(printf 'x%.0s' $(seq 251)).svg
succeeds "svg: the longest name" ppl -f "$work/text" --cache sinks --svg "$folder/$long"
if [ -w /dev/full ]; then
    succeeds "plan: the machine is measured" plan --gen 4 --prompt 4 --threads 1
    refuses "plan: svg: a full device" 1 '/dev/full: No space left' plan --gen 4 --prompt 4 --threads 1 --svg /dev/full
    for arguments in --help "help run" "quantize --help" fuses "fuses --json" "info --json" "info --devices --json" \
        "quantize $folder/y.gguf --force" "quantize $folder/y.gguf --force --json" "ppl -f $work/text --json" \
        "plan --gen 4 --prompt 4 --threads 1 --json" "profile --gen 4 --prompt 4 --threads 1" \
        "bench --gen 4 --prompt 4 --reps 1 --turns" "bench --gen 4 --prompt 4 --reps 1 --json"; do
        status=0
        "$FUSEBOX" $arguments >/dev/full 2>"$work/err" </dev/null || status=$?
        : >"$work/out"
        refused "a full device: $arguments" 1 'standard output: No space left'
    done
fi
finish
