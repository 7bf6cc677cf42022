#!/bin/sh
# Makes .venv hold exactly what requirements.txt asks for, and with the argument "tests" also what requirements-test.txt does;
# does nothing when it already does.
# Every failure is one line that says what is wrong and how to mend it.
# PYTHON=... names the interpreter; MIN_MEMORY_MB=0 or MIN_DISK_MB=0 skips that check.
set -u
cd "$(dirname "$0")" || exit 1

fail() {
    echo "parley: $*" >&2
    exit 1
}

supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
log=.venv/pip.log

installed() { # whether .venv holds what a file asks for
    cmp -s "$1" ".venv/${1%.txt}.installed"
}

if [ -r /proc/meminfo ]; then
    free_mb=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
    [ "${free_mb:-999999}" -ge "${MIN_MEMORY_MB:-3000}" ] ||
        fail "only $free_mb MB of memory are free, ${MIN_MEMORY_MB:-3000} MB are needed: close other programs (or try anyway with MIN_MEMORY_MB=0)"
fi

if [ -e .venv ] || [ -L .venv ]; then
    [ -f .venv/pyvenv.cfg ] || fail ".venv is in the way and is not a Python environment: move it elsewhere and try again"
    .venv/bin/python -c "$supported" 2>/dev/null ||
        fail ".venv is broken, or its Python is not 3.11, 3.12 or 3.13: remove it (rm -rf .venv) and try again"
    installed requirements.txt && { [ "${1:-}" != tests ] || installed requirements-test.txt; } && exit 0
fi

[ -w . ] && { [ ! -e .venv ] || [ -w .venv ]; } ||
    fail "this folder cannot be written to: copy the repository to a folder of your own, or change its owner"
free_mb=$(df -Pk . | awk 'NR == 2 {print int($4 / 1024)}')
installed requirements.txt && need_mb=500 || need_mb=4000
[ "${free_mb:-999999}" -ge "${MIN_DISK_MB:-$need_mb}" ] ||
    fail "only ${free_mb} MB of disk are free, ${MIN_DISK_MB:-$need_mb} MB are needed: make room (or try anyway with MIN_DISK_MB=0)"

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then # also heals an environment whose creation was interrupted
    python=
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c "$supported" 2>/dev/null; then
            python=$candidate
            break
        fi
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not a working Python 3.11, 3.12 or 3.13: name another one"
    done
    [ -n "$python" ] || fail "no Python 3.11, 3.12 or 3.13 on the PATH: install one, or name it with PYTHON=/path/to/python3.12"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module: install it (Debian, Ubuntu: apt install python3-venv) and try again"
    echo "creating .venv with $("$python" --version 2>&1)"
    why=$("$python" -m venv .venv 2>&1) || fail "cannot create .venv: $(echo "$why" | tail -n 1); remove it (rm -rf .venv) and try again"
fi

install() { # a file, what that takes, options for pip
    file=$1
    installed "$file" && return
    echo "installing $file into .venv, $2 ..."
    shift 2
    # </dev/null: never ask. The retries are few, so that a machine without a network hears of it within a minute.
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off --retries 2 \
        "$@" -r "$file" >"$log" 2>&1 </dev/null &
    pip=$!
    trap 'kill $pip 2>/dev/null; echo "parley: stopped; the next call goes on" >&2; exit 130' INT TERM
    waited=0
    while kill -0 $pip 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        [ $((waited % 15)) -ne 0 ] || echo "  $waited s, $(grep -cE '^ *(Collecting|Processing)' "$log") packages found"
    done
    if ! wait $pip; then
        if grep -qE 'No space left' "$log"; then
            fail "the disk is full: make room and try again (details: $log)"
        elif grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|NameResolution|name resolution|ProxyError|connection broken|from versions: none' "$log"; then
            fail "cannot reach the package index: check the network or proxy and try again (details: $log)"
        fi
        fail "pip failed: $(grep -E '^ERROR' "$log" | tail -n 1) (details: $log)"
    fi
    stamp=.venv/${file%.txt}.installed
    cp "$file" "$stamp.new" && mv "$stamp.new" "$stamp" || fail "cannot write $stamp: check the disk and try again"
    echo "installed"
}

install requirements.txt "about 2 minutes and 2 GB"
[ "${1:-}" != tests ] || install requirements-test.txt "about 125 MB" --no-deps
