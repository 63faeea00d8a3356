#!/usr/bin/env bash
# Memory that runs out while a command makes its report: one line that says so, exit status 1, and never a signal.
. tests/cli/lib.sh

if nm "$FUSEBOX" 2>/dev/null | grep -q __asan_init; then
    echo "not ok 1 # SKIP allocations that fail: AddressSanitizer has its own"
    exit 0
fi
# In front of the C library: allocation number $FAIL_AT fails; at the end their number goes to the file $COUNT_TO.
cat >"$work/shim.c" <<'C'
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static atomic_long count;
static long fail_at;
__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("FAIL_AT");
    fail_at = text ? atol(text) : 0;
    count = 0;
}
__attribute__((destructor)) static void end(void) {
    long all = count;
    const char *name = getenv("COUNT_TO");
    FILE *out = name ? fopen(name, "w") : NULL;
    if (!out) return;
    fprintf(out, "%ld\n", all);
    fclose(out);
}
static int fails(void) {
    int now = atomic_fetch_add(&count, 1) + 1 == fail_at;
    if (now) errno = ENOMEM;
    return now;
}
void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t n) { return fails() ? NULL : __libc_realloc(old, n); }
C
holds "the shim" ${CC:-cc} -shared -fPIC -o "$work/shim.so" "$work/shim.c"
limited() { # limited NAME=VALUE ARGUMENT...
    local set=$1
    shift
    status=0
    { env "$set" LD_PRELOAD="$work/shim.so" "$FUSEBOX" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?; } 2>/dev/null
}

last=14 # allocations at the end that fail, one in each run
for command in "run --json --temp 0 -n 3 -p hi" "run --stats --temp 0 -n 3 -p hi" "info" "quantize $work/x.gguf --force" \
    "ppl -f $work/text --cache sinks --svg $work/x.svg"; do
    echo 'Once upon a time there was a poor woodcutter.' >"$work/text"
    limited "COUNT_TO=$work/count" $command
    total=$(cat "$work/count")
    bad=
    for at in $(seq $((total - last + 1)) "$total"); do
        limited "FAIL_AT=$at" $command
        [ "$status" -eq 0 ] && continue
        [ "$status" -eq 1 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '^fusebox: .*memory' "$work/err" && continue
        bad+=" $at of $total: $status $(head -c 100 "$work/err");"
    done
    is "${command//$work\//}: the last allocations fail" "$bad" ""
done
finish
