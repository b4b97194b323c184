#!/usr/bin/env bash
# llama3.1-405b on 1,024 x NVIDIA H100 SXM5 80GB (128 x dgx-h100)
# 2,048 sequences of 8,192 tokens a step, bf16
# TP8 PP16 VPP4 CP2 DP4 mbs1 ZeRO-1 interleaved_1f1b layers=1,2*62,1 recompute=none
# for torchtitan (torchtitan 0.3.0), written by autopar 0.1.0
# Tokenizer, dataset, learning rate and checkpoints are those of llama3_70b, which it starts from: set yours.
# Seen as later releases name them: local_batch_size x seq_len is num_tokens_per_microbatch_per_dp_rank x num_pp_microbatches.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

export PYTHONPATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-128}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  -m torchtitan.train --module autopar_torchtitan --config autopar_plan \
  "$@"
