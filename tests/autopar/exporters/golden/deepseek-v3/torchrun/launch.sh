#!/usr/bin/env bash
# deepseek-v3 on 2,048 x NVIDIA H800 SXM 80GB (256 x h800-8)
# 15,360 sequences of 4,096 tokens a step, bf16
# TP1 PP16 EP8 DP128 mbs1 ZeRO-1 1f1b layers=4*15,1 recompute=full
# for torchrun (torch 2.13), written by autopar 0.1.0
# The plan's sizes are in AUTOPAR_TENSOR_PARALLEL_SIZE and so on; ranks.json has the groups of every axis.
# Ranks are numbered tp 1, cp 1, dp 128, pp 16, fastest first.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export AUTOPAR_TENSOR_PARALLEL_SIZE=1
export AUTOPAR_SEQUENCE_PARALLEL=false
export AUTOPAR_PIPELINE_PARALLEL_SIZE=16
export AUTOPAR_VIRTUAL_PIPELINE_STAGES=1
export AUTOPAR_PIPELINE_SCHEDULE=1f1b
export AUTOPAR_CONTEXT_PARALLEL_SIZE=1
export AUTOPAR_CONTEXT_PARALLEL_KIND=ring
export AUTOPAR_EXPERT_PARALLEL_SIZE=8
export AUTOPAR_EXPERT_TENSOR_PARALLEL_SIZE=1
export AUTOPAR_DATA_PARALLEL_SIZE=128
export AUTOPAR_MICRO_BATCH_SIZE=1
export AUTOPAR_ZERO_STAGE=1
export AUTOPAR_SHARD_GROUP_SIZE=0
export AUTOPAR_RECOMPUTE=full
export AUTOPAR_NUM_RECOMPUTE_LAYERS=0
export AUTOPAR_GLOBAL_BATCH_SIZE=15360
export AUTOPAR_SEQUENCE_LENGTH=4096
export AUTOPAR_NUM_MICROBATCHES=120
export AUTOPAR_PIPELINE_LAYERS=4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,1

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-256}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${@:?the training program and its flags}"
