#!/usr/bin/env bash
# llama3.1-405b on 1,024 x NVIDIA H100 SXM5 80GB (128 x dgx-h100)
# 2,048 sequences of 8,192 tokens a step, bf16
# TP8-noSP PP1 CP2 DP64 mbs1 ZeRO-3 recompute=none
# for deepspeed (deepspeed 0.19.8), written by autopar 0.1.0
# The model (llama3.1-405b) and its 8,192 tokens a sequence are your program's.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-128}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${TRAIN_SCRIPT:-train.py}" \
  --deepspeed_config "$(dirname "${BASH_SOURCE[0]}")/ds_config.json" \
  "$@"
