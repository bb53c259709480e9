#!/usr/bin/env bash
# Make the environment of tests/horovod, once, and print the path of its Python: bash scripts/horovod_env.sh
#
# Horovod's own build asks the compiler for C++14, which torch's headers refuse. Its source stays as it is published: a CMake
# toolchain file, which CMake finds through the environment, makes "C++14" mean the standard that torch needs. The wheel that
# comes out fits one torch, one Python, one compiler and one kind of processor, and is kept under a key of these.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env_common.sh"

torch=$(sed -n 's/^torch==//p' "$root/constraints-dev.txt")
version=0.28.1
sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0

build_wheel() {
    local folder=$1 work standard
    work=$(mktemp -d)
    standard=$("$python" -c 'import torch; print(20 if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14) else 17)')
    cat >"$work/toolchain.cmake" <<'EOF'
set(CMAKE_PROJECT_INCLUDE ${CMAKE_CURRENT_LIST_DIR}/standard.cmake)
set(CMAKE_POLICY_VERSION_MINIMUM 3.5)
EOF
    cat >"$work/standard.cmake" <<EOF
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION -std=c++$standard)
set(CMAKE_CXX14_EXTENSION_COMPILE_OPTION -std=gnu++$standard)
EOF
    "$python" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$work" "horovod==$version" >&2
    echo "$sha256  $work/horovod-$version.tar.gz" | sha256sum --check --quiet >&2
    # The WITH_ ones make an error of what would silently be left out.
    env PATH="$env/bin:$PATH" CC="${CC:-gcc}" CXX="${CXX:-g++}" MAKEFLAGS="${MAKEFLAGS:--j2}" \
        CMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 \
        HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/out" "$work/horovod-$version.tar.gz" \
        >"$work/log" 2>&1 || { tail -40 "$work/log" >&2; exit 1; }
    mkdir -p "$folder"
    for wheel in "$work"/out/*.whl; do
        cp "$wheel" "$folder/.part" && mv "$folder/.part" "$folder/$(basename "$wheel")"
    done
    rm -rf "$work"
}

if ! open_env horovod "torch $torch, horovod $version"; then
    # Horovod must see torch while it is built, and its horovodrun needs a setuptools that still has pkg_resources.
    install "torch==$torch" wheel packaging cloudpickle psutil cffi 'setuptools>=77,<81' $light
    command -v cmake >/dev/null || install cmake
    compiler=$("${CXX:-g++}" -dumpversion)
    tag=$("$python" -c 'import sys, torch; print(f"torch{torch.__version__}-cp{sys.version_info[0]}{sys.version_info[1]}")')
    folder=$cache/horovod-wheels/$tag-$compiler-$(uname -m)
    compgen -G "$folder/horovod-$version-*.whl" >/dev/null || build_wheel "$folder"
    install --no-deps --force-reinstall "$folder"/horovod-$version-*.whl
    "$python" -c 'import horovod.torch as hvd; hvd.init(); assert hvd.size() == 1 and hvd.gloo_built(); hvd.shutdown()' >&2
    close_env
fi
link_clone
