#!/usr/bin/env bash
# llama3.1-405b on 1,024 x NVIDIA H100 SXM5 80GB (128 x dgx-h100)
# 2,048 sequences of 8,192 tokens a step, bf16
# TP8 PP2 DP64 mbs1 ZeRO-1 1f1b recompute=none
# for nanotron (nanotron 0.4), written by autopar 0.1.0
# Tokenizer, data, learning rate and checkpoints are placeholders: set yours.
# model.model_config.rope_theta is of nanotron's main of 2026-04 (2411b022): release 0.4 does not have it.
# The published model's scaling of rotary positions (llama3 x8) is left to you: nanotron's Llama has none.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-128}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${NANOTRON_PATH:-.}/run_train.py" --config-file "$(dirname "${BASH_SOURCE[0]}")/config.yaml" \
  "$@"
