#!/bin/sh
# Training of Caffe's nets on an NVIDIA GPU beside Caffe's own way (im2col and cuBLAS) and eager PyTorch, which must be there.
# Rows go to the file that is named, caffe_gpu.jsonl by default. About five minutes.
set -eu
cd "$(dirname "$0")"
rows=${1:-caffe_gpu.jsonl}
run() { python caffe_training.py --device cuda --json "$rows" "$@"; }
run --net caffenet --batch 256 --math fp32 --way ours --way ours-no-graph --way ours-unfused --way caffe --way torch
run --net caffenet --batch 256 --math tf32 --way ours --way ours-packed --way torch
run --net googlenet --batch 128 --math tf32 --way ours --way ours-packed --way ours-no-graph --way torch --way torch-last
run --net resnet50 --batch 64 --math tf32 --way ours --way ours-packed --way ours-no-graph --way torch --way torch-last --way torch-bf16
