#!/usr/bin/env bash
# Installs the Debian packages that are missing, as root or through sudo. Usage: mk/deps.sh build|test|python|arm
set -eu

need=()
want() { # want PACKAGE COMMAND...: the package is needed if the command fails
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || need+=("$package")
}

has_header() { echo "#include <$1>" | cc -E -x c - -o /dev/null; }
has_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
has_fuzzer() { echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -fsanitize=fuzzer -x c - -o /dev/null; }

install_needed() {
    [ ${#need[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "fusebox: missing packages: ${need[*]} (install them; there is no apt-get here)" >&2
        exit 2
    fi
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            echo "fusebox: missing packages: ${need[*]} (run as root: apt-get install ${need[*]})" >&2
            exit 2
        fi
        as_root=(sudo)
    fi
    echo "fusebox: installing ${need[*]}" >&2
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
    # A fresh machine has no package lists yet.
    "${install[@]}" "${need[@]}" >"$log" 2>&1 ||
        { "${as_root[@]}" apt-get update >"$log" 2>&1 && "${install[@]}" "${need[@]}" >"$log" 2>&1; } || {
        cat "$log" >&2
        echo "fusebox: apt-get could not install: ${need[*]}" >&2
        exit 2
    }
    need=()
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

want gcc cc --version
want libc6-dev has_header stdio.h
want make make --version
want pkg-config pkg-config --version
want libpcre2-dev pkg-config --exists libpcre2-8
want libutf8proc-dev pkg-config --exists libutf8proc
want libedit-dev pkg-config --exists libedit
want libmicrohttpd-dev pkg-config --exists libmicrohttpd # its library is opened at run time
if [ "${1:-build}" = test ]; then
    want libcmocka-dev pkg-config --exists cmocka
    want clang-format clang-format --version
    want cppcheck cppcheck --version
    want jq jq --version
    want python3 python3 --version
    want libxml2-utils xmllint --version
    want mandoc command -v mandoc
    want clang clang --version
    want chromium has_browser # tests/serve/browser.py drives it
fi
if [ "${1:-build}" = arm ]; then
    # A cross compiler, an emulator, and the libraries for the other architecture. The command line is not built for it,
    # and what that needs is left out: apt-get would also upgrade this machine's OpenSSL and Kerberos to equal versions.
    dpkg --print-foreign-architectures | grep -qx arm64 || {
        [ "$(id -u)" -eq 0 ] || { echo "fusebox: run as root: dpkg --add-architecture arm64" >&2; exit 2; }
        dpkg --add-architecture arm64 # its package lists come with the first package that is not found
    }
    want gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc --version
    want libc6-dev-arm64-cross test -d /usr/aarch64-linux-gnu/include
    want qemu-user qemu-aarch64 --version
    for package in libpcre2-dev libutf8proc-dev libcmocka-dev; do
        want $package:arm64 dpkg -s $package:arm64
    done
fi
if [ "${1:-build}" = python ]; then
    want python3 python3 --version
    want curl curl --version # one of the clients of the server that are tested
    want python3-venv python3 -c 'import ensurepip, venv'
fi
install_needed

if [ "${1:-build}" = test ]; then
    # libFuzzer's package carries clang's version in its name, which is known only now. Without one, the fuzz targets
    # are left out of the tests.
    runtime=libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev
    if apt-cache show "$runtime" >/dev/null 2>&1; then
        want "$runtime" has_fuzzer
        install_needed
    fi
fi
