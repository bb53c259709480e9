#!/usr/bin/env bash
# Make the environment of tests/xla, once, and print the path of its Python: bash scripts/xla_env.sh
#
# Each torch_xla is built for the torch of the same minor version, which is why this environment has a torch of its own. The
# only builds of it that are published for x86-64 bring CUDA along, some 7 GB; they compute on the CPU all the same.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env_common.sh"

torch=2.9.1
xla=2.9.0

if ! open_env xla "torch $torch, torch_xla $xla"; then
    install "torch==$torch" "torch_xla==$xla" 'setuptools>=77' wheel $light
    PJRT_DEVICE=CPU "$python" -c 'import torch, torch_xla; assert torch.ones(2, device=torch_xla.device()).sum().item() == 2' >&2
    close_env
fi
link_clone
