# For the checks of the command line: sourced by tests/cli/*.sh, which run in the repository root with $FUSEBOX set to the
# program. A check prints `ok - name` or `not ok - name: detail`; `finish` ends with 1 if one failed.
set -u
# Checks on a pseudo-terminal want one with colours, whoever calls.
export TERM=xterm
unset NO_COLOR
: "${FUSEBOX:?the path of the program}"
work=$(mktemp -d "${TMPDIR:-/tmp}/fusebox-cli.XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0

ok() { echo "ok - $1"; }
not_ok() { # not_ok NAME DETAIL
    echo "not ok - $1: $2"
    failures=$((failures + 1))
}
finish() { exit $((failures > 0)); }

# fusebox ARGUMENT...: the output goes to $work/out and $work/err, the exit status to $status.
fusebox() {
    status=0
    "$FUSEBOX" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
}

is() { # is NAME GOT WANTED
    if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "got '${2:0:300}', wanted '${3:0:300}'"; fi
}
differs() { # differs NAME A B
    if [ "$2" != "$3" ]; then ok "$1"; else not_ok "$1" "both are '${2:0:300}'"; fi
}
holds() { # holds NAME COMMAND...: the command succeeds
    local name=$1
    shift
    if "$@" >"$work/holds" 2>&1; then ok "$name"; else not_ok "$name" "$* failed: $(head -c 300 "$work/holds")"; fi
}
matches() { # matches NAME FILE REGEX: a line of the file matches
    if grep -qE -- "$3" "$2"; then ok "$1"; else not_ok "$1" "no line matches '$3' in: $(head -c 500 "$2")"; fi
}

# succeeds NAME ARGUMENT...: exit status 0 and nothing on stderr.
succeeds() {
    local name=$1
    shift
    fusebox "$@"
    if [ "$status" -eq 0 ] && [ ! -s "$work/err" ]; then ok "$name"; else
        not_ok "$name" "exit status $status, stderr: $(head -c 300 "$work/err")"
    fi
}

# refuses NAME STATUS REGEX ARGUMENT...: that exit status, nothing on stdout, one line on stderr, which matches
# `fusebox: REGEX`.
refuses() {
    local name=$1 wanted=$2 regex=$3
    shift 3
    fusebox "$@"
    refused "$name" "$wanted" "$regex"
}
refused() { # refused NAME STATUS REGEX: the same for a command that already ran
    if [ "$status" -ne "$2" ]; then
        not_ok "$1" "exit status $status, wanted $2; stderr: $(head -c 300 "$work/err")"
    elif [ -s "$work/out" ]; then
        not_ok "$1" "stdout is not empty: $(head -c 100 "$work/out")"
    elif [ "$(wc -l <"$work/err")" -ne 1 ]; then
        not_ok "$1" "$(wc -l <"$work/err") lines on stderr, wanted 1: $(head -c 300 "$work/err")"
    elif ! grep -qE -- "^fusebox: $3" "$work/err"; then
        not_ok "$1" "stderr does not match '$3': $(cat "$work/err")"
    else
        ok "$1"
    fi
}

# member NAME FILE: the value of a number, word or flat string member in one line of JSON. Enough for what we print.
member() { grep -oE "\"$1\":(\"([^\"\\\\]|\\\\.)*\"|[^,}\"]*)" "$2" | head -n 1 | cut -d: -f2-; }
