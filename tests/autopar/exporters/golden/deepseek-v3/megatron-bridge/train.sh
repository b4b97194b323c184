#!/usr/bin/env bash
# deepseek-v3 on 2,048 x NVIDIA H800 SXM 80GB (256 x h800-8)
# 15,360 sequences of 4,096 tokens a step, bf16
# TP1 PP16 EP8 DP128 mbs1 ZeRO-1 1f1b layers=4*15,1 recompute=full
# for megatron-bridge (megatron-bridge 0.6.2), written by autopar 0.1.0
# Data, tokenizer, optimizer and checkpoints are those of the recipe deepseek_v3_pretrain_config: set yours.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-256}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "$(dirname "${BASH_SOURCE[0]}")/autopar_bridge.py" \
  "$@"
