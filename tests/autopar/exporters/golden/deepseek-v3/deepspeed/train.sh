#!/usr/bin/env bash
# deepseek-v3 on 2,048 x NVIDIA H800 SXM 80GB (256 x h800-8)
# 15,360 sequences of 4,096 tokens a step, bf16
# TP2-noSP PP1 EP8 DP1024 mbs1 ZeRO-2 recompute=full
# for deepspeed (deepspeed 0.19.8), written by autopar 0.1.0
# The model (deepseek-v3) and its 4,096 tokens a sequence are your program's.
# Recomputation is the program's: checkpoint every layer (gradient_checkpointing_enable, deepspeed.checkpointing).
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-256}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${TRAIN_SCRIPT:-train.py}" \
  --deepspeed_config "$(dirname "${BASH_SOURCE[0]}")/ds_config.json" \
  "$@"
