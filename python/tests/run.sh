#!/usr/bin/env bash
# The tests of the Python package; `make test-python` calls it. Usage: python/tests/run.sh BIN [PYTEST ARGUMENT...]
#
# BIN is the bin folder of a virtual environment that has the package and requirements.txt. The last line is
# `N passed, N failed`, which counts single tests, and the types as one. The exit status is 0 only if something ran and
# nothing failed.
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
if { types -p fusebox && types python/tests; } >"$scratch/types" 2>&1; then
    echo "ok - types: $(tail -n 1 "$scratch/types")"
    passed=$((passed + 1))
else
    echo "not ok - types"
    tail -n 50 "$scratch/types" | sed 's/^/    /'
    failed=$((failed + 1))
fi

"$bin/python" -m pytest -c python/pyproject.toml -p no:cacheprovider --junitxml="$scratch/junit.xml" "$@" python/tests
status=$?
read -r good bad <<<"$("$bin/python" - "$scratch/junit.xml" <<'COUNT'
import sys, xml.etree.ElementTree as xml
try:
    suite = xml.parse(sys.argv[1]).getroot().find("testsuite").attrib
    bad = int(suite["failures"]) + int(suite["errors"])
    print(int(suite["tests"]) - bad - int(suite["skipped"]), bad)
except (OSError, xml.ParseError, AttributeError):
    print(0, 0)
COUNT
)"
# pytest that ends badly without naming a test has crashed.
[ $status -eq 0 ] || [ $bad -gt 0 ] || bad=1
passed=$((passed + good))
failed=$((failed + bad))
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
