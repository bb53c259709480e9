# What horovod_env.sh and xla_env.sh share; to be sourced.
# Environments are kept outside the clone, so that they are built once, and are made anew when their key changes.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lightloop
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=${PIP_CACHE_DIR:-$cache/pip}
PYTHON=${PYTHON:-python3}
light="fsspec hypothesis numpy pluggy pytest pyyaml safetensors scikit-learn tensorboardX tqdm"  # what the library and its tests need beside torch

# The pinned versions of constraints-dev.txt; torch has a version of its own in each environment.
constraints() {
    grep -v '^torch==' "$root/constraints-dev.txt"
}

# open_env NAME WHAT: make $env the path of the environment NAME, and $python its Python. Returns 1 where it is not yet, or
# no longer, as WHAT says (the versions in it): the caller then installs what belongs into it and calls close_env.
open_env() {
    env=$cache/$1 python=$cache/$1/bin/python
    mkdir -p "$cache"
    exec 9>"$env.lock"
    if command -v flock >/dev/null; then flock 9; fi  # two that start at once wait for one another
    key="$2; $light; $("$PYTHON" -c 'import platform, sys; print(platform.python_version(), sys.base_prefix, platform.machine())')"
    if [ -x "$python" ] && [ "$(cat "$env/.key" 2>/dev/null)" = "$key" ]; then return 0; fi
    echo "Setting up $env; the first time takes some minutes." >&2
    if ! [ -x "$python" ] || [ "$("$python" -c 'import sys; print(sys.version, sys.base_prefix)')" != "$("$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix)')" ]; then
        rm -rf "$env"
        "$PYTHON" -m venv "$env"
    fi
    rm -f "$env/.key"
    return 1
}

close_env() {
    printf '%s\n' "$key" >"$env/.key"
}

# Install into the environment, under the pinned versions.
install() {
    "$python" -m pip install --quiet --constraint <(constraints) "$@" >&2
}

# Let the environment import this clone, whose entry points may have changed, and say where its Python is.
link_clone() {
    install --no-deps --no-build-isolation --editable "$root"
    echo "$python"
}
