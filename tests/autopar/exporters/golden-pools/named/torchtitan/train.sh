#!/usr/bin/env bash
# llama3-8b on 16 x NVIDIA A100 SXM4 40GB (2 x dgx-a100-40gb), then 16 x NVIDIA H100 SXM5 80GB (2 x dgx-h100)
# 64 sequences of 4,096 tokens a step, bf16
# TP2 PP4 DP4 mbs1 ZeRO-1 1f1b layers=5,4,12,11 recompute=none
# for torchtitan (torchtitan 0.3.0), written by autopar 0.1.0
# Hosts start in this order: nodes 0 to 1 are a100-40gb (2 x dgx-a100-40gb), nodes 2 to 3 h100 (2 x dgx-h100).
# All hosts need the same releases of NCCL and the framework; what is compiled is compiled for ampere and hopper.
# Tokenizer, dataset, learning rate and checkpoints are those of llama3_8b, which it starts from: set yours.
# Seen as later releases name them: local_batch_size x seq_len is num_tokens_per_microbatch_per_dp_rank x num_pp_microbatches.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

export PYTHONPATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-4}" --node-rank "${NODE_RANK:-$(awk -v h="$(hostname -s)" '$2 != last {n++; last = $2} $2 == h || index($2, h ".") == 1 {print n - 1; exit}' "$(dirname "${BASH_SOURCE[0]}")/hosts.txt")}" \
  --master-addr "${MASTER_ADDR:-old07}" --master-port "${MASTER_PORT:-29500}" \
  -m torchtitan.train --module autopar_torchtitan --config autopar_plan \
  "$@"
