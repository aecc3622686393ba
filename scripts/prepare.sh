# Sourced by scripts/demo and scripts/test: finds the place to work in, makes the virtual environment there and installs
# the project into it. After `prepare EXTRAS`:
#
#   ROOT        the project's folder: this clone, or a copy of it where the clone cannot be written
#   PYTHON      the environment's python; its commands lie beside it
#
# Nothing is written outside ROOT, but for Debian packages, and these only by root.

CLONE=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
ME=scripts/$(basename -- "$0")
OLDEST='(3, 11)'

say() { printf '%s: %s\n' "$ME" "$*" >&2; }
fail() { say "$@"; exit 1; }

# remove_at_exit FOLDER: gone when the script ends, however it ends.
LEFTOVERS=()
remove_at_exit() { LEFTOVERS+=("$1"); }
trap 'for folder in "${LEFTOVERS[@]}"; do rm -rf -- "$folder"; done' EXIT

# install_debian PACKAGE... : by root and apt-get, or not at all.
install_debian() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 1
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -qq -y
                   --no-install-recommends)
    say "installing Debian packages: $*"
    "${install[@]}" "$@" >/dev/null 2>&1 && return 0
    apt-get -o DPkg::Lock::Timeout=300 update -qq >&2 || true
    "${install[@]}" "$@" >/dev/null 2>&1 && return 0
    local package failed=0 # one that cannot be had must not keep the others away
    for package in "$@"; do "${install[@]}" "$package" >/dev/null || failed=1; done
    return $failed
}

# Every python that is new enough, the system's first: distributions build theirs with profile-guided optimization, which
# version managers do not unless asked, and our commands start an eighth sooner with it. A pyenv shim without a version
# behind it does not run and is passed over.
candidates() {
    local name path
    for name in /usr/bin/python3 python3.13 python3.12 python3.11 python3; do
        while IFS= read -r path; do
            "$path" -c "import sys; sys.exit(sys.version_info < $OLDEST)" 2>/dev/null && printf '%s\n' "$path"
        done < <(type -aP "$name")
    done
}

find_python() {
    local path first=
    while IFS= read -r path; do
        [ -n "$first" ] || first=$path
        if makes_environments "$path"; then
            printf '%s\n' "$path"
            return 0
        fi
    done < <(candidates)
    [ -n "$first" ] || fail "no Python of version 3.11 or later was found: apt-get install python3"
    install_debian python3-venv && makes_environments /usr/bin/python3 ||
        fail "$first cannot make a virtual environment: as root, apt-get install python3-venv"
    printf '/usr/bin/python3\n'
}

# Debian's python3 has venv but no ensurepip before python3-venv is installed.
makes_environments() {
    "$1" -c "import sys, venv; from ensurepip import bootstrap; sys.exit(sys.version_info < $OLDEST)" 2>/dev/null
}

# A clone that cannot be written is worked on in a copy of it, kept for the next time where there is a home.
choose_root() {
    ROOT=$CLONE
    [ -w "$CLONE" ] && [ -w "$CLONE/collector" ] && { [ ! -e "$CLONE/.venv" ] || [ -w "$CLONE/.venv/bin" ]; } && return
    local kept=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}
    ROOT=$kept/collect-$(printf %s "$CLONE" | cksum | cut -d' ' -f1)
    if ! mkdir -p -- "$ROOT" 2>/dev/null || [ ! -w "$ROOT" ]; then
        ROOT=$(mktemp -d)
        remove_at_exit "$ROOT"
    fi
    say "$CLONE cannot be written here: working on a copy in $ROOT"
    find "$ROOT" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf -- {} +
    tar -C "$CLONE" --exclude=./.venv --exclude=./.git --exclude=__pycache__ --exclude='./.*_cache' -cf - . |
        tar -C "$ROOT" --no-same-owner -xf -
}

# What the environment was made for: another path, another pyproject.toml or other extras make it stale.
stamp_for() { printf '%s %s %s\n' "$ROOT" "$(cksum <"$ROOT/pyproject.toml" | cut -d' ' -f1)" "$1"; }

is_fresh() {
    local stamp=$ROOT/.venv/collect-stamp
    [ -x "$PYTHON" ] && [ -e "$stamp" ] || return 1
    [ "$(cat "$stamp")" = "$(stamp_for "$1")" ] || [ "$(cat "$stamp")" = "$(stamp_for test)" ]
}

# "compat" puts the project's folder on the path by a .pth line; the other way costs every start some milliseconds.
install_project() {
    local what=. editable=(--config-settings editable_mode=compat -e)
    [ "$1" = none ] || what=".[$1]"
    PIP=("$PYTHON" -m pip --disable-pip-version-check --quiet)
    (cd -- "$ROOT" && { by_uv "${editable[@]}" "$what" 2>/dev/null ||
        "${PIP[@]}" install "${editable[@]}" "$what" 2>/dev/null ||
        "${PIP[@]}" install -e "$what" >&2; }) || fail "pip could not install the project (see above)"
}

# by_uv ARGUMENT... : what pip would do with its arguments, in a third of the time, where uv can be had. Of pip's settings
# it has the index.
by_uv() {
    "${PIP[@]}" install uv || return 1
    local cache=$ROOT/.venv/uv-cache index status=0
    index=$("${PIP[@]}" config get global.index-url) || index=
    env UV_CACHE_DIR="$cache" ${index:+UV_DEFAULT_INDEX="$index"} "$ROOT/.venv/bin/uv" pip install --quiet \
        --python "$PYTHON" --compile-bytecode "$@" || status=1
    rm -rf -- "$cache"
    return $status
}

# Where Python is told to write no bytecode, every start would compile again what has changed since: as much CPU time as
# all other work of a start.
compile_modules() { "$PYTHON" -m compileall -q "$ROOT/collector" || true; }

# prepare EXTRAS: "none" or an extra of pyproject.toml.
prepare() {
    choose_root
    PYTHON=$ROOT/.venv/bin/python
    is_fresh "$1" || make_environment "$1"
    compile_modules
}

make_environment() {
    if ! grep -qsF "$ROOT/.venv/bin/" "$ROOT/.venv/bin/pip" || ! "$PYTHON" -c 'import pip' 2>/dev/null; then
        local python
        python=$(find_python) || exit 1
        say "making the virtual environment .venv with $python"
        "$python" -m venv --clear "$ROOT/.venv" || fail "$python could not make $ROOT/.venv"
    fi
    say "installing the project and the Python packages it needs"
    install_project "$1"
    stamp_for "$1" >"$ROOT/.venv/collect-stamp"
}
