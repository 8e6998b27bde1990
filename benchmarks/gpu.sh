#!/usr/bin/env bash
# Checks and times the cuda target on a machine that has an NVIDIA GPU, Python with PyTorch, and maybe nothing else:
#
#   benchmarks/gpu.sh [check] [neglected] [dense] [memory] [fuzz]      (all of them by default)
#
#   check      tests/gpu on the real device, but for those of OpenCL and those that only compile
#   neglected  depthwise, grouped, first-layer and patch convolutions beside cuDNN
#   dense      layers of large networks beside cuDNN
#   memory     operations that move memory, beside PyTorch and a copy
#   fuzz       random problems of all operations on the device, in one process a core
#
# WHEELS   folder of wheels that are installed into a temporary folder; nothing is fetched. What the machine lacks of
#          cuda-bindings, nvidia-cuda-nvrtc, ml-dtypes, typer, rich, pytest, pytest-xdist, hypothesis and their needs
# RESULTS  folder for a file of JSON rows of each list [gpu-results]
# LIMIT    seconds for each list [540]
# PROBLEMS random problems of the fuzzer [300000]
# PYTHON   [python3]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for part in "$@"; do
  if [[ ! $part =~ ^(check|neglected|dense|memory|fuzz|all)$ ]]; then
    echo "$part: there are check, neglected, dense, memory and fuzz" >&2
    exit 2
  fi
done
python="${PYTHON:-python3}" results="${RESULTS:-gpu-results}" limit="${LIMIT:-540}" site=""
if [[ -n "${WHEELS:-}" ]]; then
  site="$(mktemp -d)"
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl || exit
fi
export PYTHONPATH="${site:+$site:}$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# without a wheel of it NVRTC is the toolkit's
if [[ -d /usr/local/cuda ]]; then export CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"; fi
failed=0

bench() { # bench NAME ARGUMENTS...: rows go to NAME.jsonl, of this run only
  local rows="$results/$1.jsonl"
  echo "== $1"
  mkdir -p "$results"
  rm -f "$rows"
  timeout "$limit" "$python" -m jitdnn bench --target cuda --json "$rows" "${@:2}" || failed=1
}

convolutions() { # convolutions NAME SUITE...
  local name=$1 suites=()
  for suite in "${@:2}"; do suites+=(--suite "$suite"); done
  bench "$name" --peer cudnn --dtype bf16 --layout nhwc --direction all --most-bytes 4GiB "${suites[@]}"
}

for part in "${@:-all}"; do
  if [[ $part == check || $part == all ]]; then
    echo "== tests/gpu"
    # OpenCL is the processor's here, by PoCL, as where there is no GPU, and what only compiles needs none. Each process takes
    # half a GiB of the GPU's memory
    timeout "$limit" "$python" -m pytest tests/gpu -q -n auto --maxprocesses 16 -p no:benchmark \
      -k "not (opencl or sm_80 or sm_89 or sm_90a or sm_100 or sm_120)" || failed=1
  fi
  if [[ $part == neglected || $part == all ]]; then
    for suite in depthwise grouped stems patches; do convolutions "$suite" "$suite"; done
  fi
  if [[ $part == dense || $part == all ]]; then convolutions dense resnet50_v1.5 vgg16_D sd15_unet_512; fi
  if [[ $part == memory || $part == all ]]; then bench memory --memory-bound; fi
  if [[ $part == fuzz || $part == all ]]; then
    echo "== fuzz"
    mkdir -p "$results"
    timeout "$limit" "$python" tests/fuzz run --target cuda --problems "${PROBLEMS:-300000}" --seconds $((limit - 40)) \
      --group 64 --faults "$results/faults.jsonl" || failed=1
  fi
done
exit $failed
