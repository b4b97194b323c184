#!/usr/bin/env bash
# gpt-175b on 256 x NVIDIA A100 SXM4 80GB (32 x dgx-a100)
# 1,536 sequences of 2,048 tokens a step, bf16
# TP8-noSP PP4 DP8 mbs3 ZeRO-1 1f1b recompute=none
# for deepspeed (deepspeed 0.19.8), written by autopar 0.1.0
# The model (gpt-175b) and its 2,048 tokens a sequence are your program's.
# The pipeline is Python: PipelineModule(layers, num_stages=4, partition_method='type:…' of your layer class).
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-32}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${TRAIN_SCRIPT:-train.py}" \
  --deepspeed_config "$(dirname "${BASH_SOURCE[0]}")/ds_config.json" \
  "$@"
