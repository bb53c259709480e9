#!/usr/bin/env bash
# Make the environment in which the distributions of examples/third_party are tested, and print the path of its Python:
# bash scripts/third_party_env.sh
#
# The packages that they log to and search with, and optimizers to compare with, are installed once. The distributions themselves are built as wheels and
# installed by pip whenever one of their files has changed. mlflow-skinny is MLflow without its server and its models.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env_common.sh"

torch=$(sed -n 's/^torch==//p' "$root/constraints-dev.txt")
packages="wandb==0.31.0 mlflow-skinny==3.17.2 optuna==5.0.0 pytorch_optimizer==4.1.0"
distributions="lightloop-mlflow lightloop-optuna lightloop-wandb"

# What is installed is the wheel of what is there: the sum of all the files from which it is built.
sources() {
    (cd "$root/examples/third_party" && find $distributions -type f \( -name '*.py' -o -name '*.toml' -o -name '*.md' \) \
        -not -path '*/tests/*' -not -path '*/build/*' | LC_ALL=C sort | xargs sha256sum | sha256sum)
}

install_wheels() {
    local work name
    work=$(mktemp -d)
    for name in $distributions; do
        cp -r "$root/examples/third_party/$name" "$work/"
        "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" "$work/$name" >&2
    done
    install --no-deps --force-reinstall "$work"/wheels/*.whl
    rm -rf "$work"
    sources >"$env/.wheels"
}

if ! open_env third-party "torch $torch, $packages"; then
    install "torch==$torch" $packages 'setuptools>=77' packaging wheel $light
    rm -f "$env/.wheels"
    close_env
fi
[ "$(cat "$env/.wheels" 2>/dev/null)" = "$(sources)" ] || install_wheels
link_clone
