#!/usr/bin/env bash
# Make the environment with the libraries beside which Lightloop is tested and measured, and print the path of its Python:
# bash scripts/peers_env.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env_common.sh"

torch=$(sed -n 's/^torch==//p' "$root/constraints-dev.txt")
packages="lightning==2.6.6 pytorch-ignite==0.5.5 accelerate==1.15.0 transformers==5.24.0 torchmetrics==1.9.0"

if ! open_env peers "torch $torch, $packages"; then
    install "torch==$torch" $packages 'setuptools>=77' packaging wheel $light
    close_env
fi
link_clone
