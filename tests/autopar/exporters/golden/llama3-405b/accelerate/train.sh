#!/usr/bin/env bash
# llama3.1-405b on 1,024 x NVIDIA H100 SXM5 80GB (128 x dgx-h100)
# 2,048 sequences of 8,192 tokens a step, bf16
# TP8-noSP PP1 CP2 DP64 mbs1 ZeRO-3 recompute=none
# for accelerate (accelerate 1.15.0), written by autopar 0.1.0
# The model (llama3.1-405b) and its 8,192 tokens a sequence are your program's.
# A program without a Trainer: DataLoader(batch_size=per_device_train_batch_size), Accelerator(gradient_accumulation_steps=…).
# Load the model with the same tp_size: from_pretrained(…, distributed_config=DistributedConfig(tp_size=…)).
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

accelerate launch --config_file "$(dirname "${BASH_SOURCE[0]}")/accelerate.yaml" \
  --machine_rank "${NODE_RANK:?the number of this node, from 0}" \
  --main_process_ip "${MASTER_ADDR:?the host of node 0}" --main_process_port "${MASTER_PORT:-29500}" \
  "${TRAIN_SCRIPT:-train.py}" \
  --per_device_train_batch_size 1 \
  --gradient_accumulation_steps 32 \
  "$@"
