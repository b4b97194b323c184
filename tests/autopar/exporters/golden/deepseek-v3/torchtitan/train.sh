#!/usr/bin/env bash
# deepseek-v3 on 2,048 x NVIDIA H800 SXM 80GB (256 x h800-8)
# 15,360 sequences of 4,096 tokens a step, bf16
# TP1 PP16 EP8 DP128 mbs1 ZeRO-1 1f1b layers=4*15,1 recompute=full
# for torchtitan (torchtitan 0.3.0), written by autopar 0.1.0
# Tokenizer, dataset, learning rate and checkpoints are those of deepseek_v3_671b, which it starts from: set yours.
# Seen as later releases name them: local_batch_size x seq_len is num_tokens_per_microbatch_per_dp_rank x num_pp_microbatches.
# torchtitan has norm epsilon 1e-05 for this model, the plan 1e-06: change it there.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

export PYTHONPATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-256}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  -m torchtitan.train --module autopar_torchtitan --config autopar_plan \
  "$@"
