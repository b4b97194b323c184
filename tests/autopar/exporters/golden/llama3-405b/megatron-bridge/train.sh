#!/usr/bin/env bash
# llama3.1-405b on 1,024 x NVIDIA H100 SXM5 80GB (128 x dgx-h100)
# 2,048 sequences of 8,192 tokens a step, bf16
# TP8 PP16 VPP4 CP2 DP4 mbs1 ZeRO-1 interleaved_1f1b layers=1,2*62,1 recompute=none
# for megatron-bridge (megatron-bridge 0.6.2), written by autopar 0.1.0
# Data, tokenizer, optimizer and checkpoints are those of the recipe llama31_405b_pretrain_config: set yours.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-128}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "$(dirname "${BASH_SOURCE[0]}")/autopar_bridge.py" \
  "$@"
