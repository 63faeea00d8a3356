#!/usr/bin/env bash
# The tests of the Python package; `make test-python` calls it. Usage: python/tests/run.sh BIN [PYTEST ARGUMENT...]
#
# BIN is the bin folder of a virtual environment that has the package and requirements.txt. Two processes run at the same
# time: one checks the types and tests the engine, the other tests fusebox.torch. The last line is `N passed, N failed`,
# which counts single tests, and the types as one. The exit status is 0 only if something ran and nothing failed.
set -u
cd "$(dirname "$0")/../.."
bin=$(realpath "$1")
shift
export BUILD=$(realpath -m "${BUILD:-build}")
# What is not about the GPU runs on the CPU, whatever the machine has.
export FUSEBOX_CUDA_LIBRARY=${FUSEBOX_CUDA_LIBRARY:-none} LC_ALL=C.UTF-8
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

types() { "$bin/python" -m mypy --config-file python/pyproject.toml --cache-dir "$BUILD/python/mypy" "$@"; }
check_types() {
    if { types -p fusebox && types python/tests; } >"$scratch/types" 2>&1; then
        echo "ok - types: $(tail -n 1 "$scratch/types")"
    else
        echo "not ok - types"
        tail -n 50 "$scratch/types" | sed 's/^/    /'
        return 1
    fi
}

run_pytest() { # run_pytest NAME ARGUMENT...: leaves NAME.xml and NAME.status
    local name=$1
    shift
    "$bin/python" -m pytest -c python/pyproject.toml -p no:cacheprovider --junitxml="$scratch/$name.xml" "$@"
    echo $? >"$scratch/$name.status"
}

count() { # count NAME: adds up what the tests of this name have left
    local good bad status
    status=$(cat "$scratch/$1.status" 2>/dev/null || echo 1)
    read -r good bad <<<"$("$bin/python" - "$scratch/$1.xml" <<'COUNT'
import sys, xml.etree.ElementTree as xml
try:
    suite = xml.parse(sys.argv[1]).getroot().find("testsuite").attrib
    bad = int(suite["failures"]) + int(suite["errors"])
    print(int(suite["tests"]) - bad - int(suite["skipped"]), bad)
except (OSError, xml.ParseError, AttributeError):
    print(0, 0)
COUNT
    )"
    # pytest that ends badly without naming a test has crashed; 5 is that an argument has selected no test.
    [ "$status" -eq 0 ] || [ "$status" -eq 5 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + good))
    failed=$((failed + bad))
}

# The engine's are in the foreground: a shell starts what it puts into the background without SIGINT, which they test.
run_pytest torch "$@" python/tests/torch >"$scratch/torch" 2>&1 &
if check_types; then passed=1; else failed=1; fi
run_pytest engine "$@" --ignore=python/tests/torch python/tests
wait $!
cat "$scratch/torch"
count engine
count torch
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
