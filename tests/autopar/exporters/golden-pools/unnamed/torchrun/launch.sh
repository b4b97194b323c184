#!/usr/bin/env bash
# llama3-8b on 16 x NVIDIA A100 SXM4 40GB (2 x dgx-a100-40gb), then 16 x NVIDIA H100 SXM5 80GB (2 x dgx-h100)
# 64 sequences of 4,096 tokens a step, bf16
# TP2 PP4 DP4 mbs1 ZeRO-1 1f1b layers=5,4,12,11 recompute=none
# for torchrun (torch 2.13), written by autopar 0.1.0
# Hosts start in this order: nodes 0 to 1 are a100-40gb (2 x dgx-a100-40gb), nodes 2 to 3 h100 (2 x dgx-h100).
# All hosts need the same releases of NCCL and the framework; what is compiled is compiled for ampere and hopper.
# The plan's sizes are in AUTOPAR_TENSOR_PARALLEL_SIZE and so on; ranks.json has the groups of every axis.
# Ranks are numbered tp 2, cp 1, dp 4, pp 4, fastest first.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export AUTOPAR_TENSOR_PARALLEL_SIZE=2
export AUTOPAR_SEQUENCE_PARALLEL=true
export AUTOPAR_PIPELINE_PARALLEL_SIZE=4
export AUTOPAR_VIRTUAL_PIPELINE_STAGES=1
export AUTOPAR_PIPELINE_SCHEDULE=1f1b
export AUTOPAR_CONTEXT_PARALLEL_SIZE=1
export AUTOPAR_CONTEXT_PARALLEL_KIND=ring
export AUTOPAR_EXPERT_PARALLEL_SIZE=1
export AUTOPAR_EXPERT_TENSOR_PARALLEL_SIZE=1
export AUTOPAR_DATA_PARALLEL_SIZE=4
export AUTOPAR_MICRO_BATCH_SIZE=1
export AUTOPAR_ZERO_STAGE=1
export AUTOPAR_SHARD_GROUP_SIZE=0
export AUTOPAR_RECOMPUTE=none
export AUTOPAR_NUM_RECOMPUTE_LAYERS=0
export AUTOPAR_GLOBAL_BATCH_SIZE=64
export AUTOPAR_SEQUENCE_LENGTH=4096
export AUTOPAR_NUM_MICROBATCHES=16
export AUTOPAR_PIPELINE_LAYERS=5,4,12,11
export AUTOPAR_HOSTS=2xa100-40gb,2xh100

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-4}" --node-rank "${NODE_RANK:?the number of this node: 0 to 1 on a100-40gb, 2 to 3 on h100}" \
  --master-addr "${MASTER_ADDR:?the host of node 0, of a100-40gb}" --master-port "${MASTER_PORT:-29500}" \
  "${@:?the training program and its flags}"
