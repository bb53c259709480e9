#!/usr/bin/env bash
# Make the environment of tests/ray, once, and print the path of its Python: bash scripts/ray_env.sh
#
# Ray Train and Spark's TorchDistributor start processes of their own; both are here, with the torch of the other tests.
# Spark needs Java as well, which no package of Python brings.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env_common.sh"

torch=$(sed -n 's/^torch==//p' "$root/constraints-dev.txt")
ray=2.60.0
spark=4.3.0

if ! open_env ray "torch $torch, ray $ray, pyspark $spark"; then
    install "torch==$torch" "ray[train]==$ray" "pyspark==$spark" pandas pyarrow 'setuptools>=77' wheel $light
    "$python" -c 'import ray.train.torch, pyspark.ml.torch.distributor' >&2
    close_env
fi
link_clone
