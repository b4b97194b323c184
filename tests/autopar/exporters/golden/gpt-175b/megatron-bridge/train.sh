#!/usr/bin/env bash
# gpt-175b on 256 x NVIDIA A100 SXM4 80GB (32 x dgx-a100)
# 1,536 sequences of 2,048 tokens a step, bf16
# TP8 PP4 VPP8 DP8 mbs3 ZeRO-1 interleaved_1f1b recompute=none
# for megatron-bridge (megatron-bridge 0.6.2), written by autopar 0.1.0
# Data, tokenizer, optimizer and checkpoints are those of the recipe vanilla_gpt_pretrain_config: set yours.
# Shapes are set on a plain GPT: check its activation function.
# The plan does not say the model's norm epsilon: set config.model.layernorm_epsilon, or Megatron-Bridge takes 1e-05.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-32}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "$(dirname "${BASH_SOURCE[0]}")/autopar_bridge.py" \
  "$@"
