#!/usr/bin/env bash
# llama3.1-405b on 1,024 x NVIDIA H100 SXM5 80GB (128 x dgx-h100)
# 2,048 sequences of 8,192 tokens a step, bf16
# TP8 PP16 VPP4 CP2 DP4 mbs1 ZeRO-1 interleaved_1f1b layers=1,2*62,1 recompute=none
# for torchrun (torch 2.13), written by autopar 0.1.0
# The plan's sizes are in AUTOPAR_TENSOR_PARALLEL_SIZE and so on; ranks.json has the groups of every axis.
# Ranks are numbered tp 8, cp 2, dp 4, pp 16, fastest first.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export AUTOPAR_TENSOR_PARALLEL_SIZE=8
export AUTOPAR_SEQUENCE_PARALLEL=true
export AUTOPAR_PIPELINE_PARALLEL_SIZE=16
export AUTOPAR_VIRTUAL_PIPELINE_STAGES=4
export AUTOPAR_PIPELINE_SCHEDULE=interleaved_1f1b
export AUTOPAR_CONTEXT_PARALLEL_SIZE=2
export AUTOPAR_CONTEXT_PARALLEL_KIND=ring
export AUTOPAR_EXPERT_PARALLEL_SIZE=1
export AUTOPAR_EXPERT_TENSOR_PARALLEL_SIZE=1
export AUTOPAR_DATA_PARALLEL_SIZE=4
export AUTOPAR_MICRO_BATCH_SIZE=1
export AUTOPAR_ZERO_STAGE=1
export AUTOPAR_SHARD_GROUP_SIZE=0
export AUTOPAR_RECOMPUTE=none
export AUTOPAR_NUM_RECOMPUTE_LAYERS=0
export AUTOPAR_GLOBAL_BATCH_SIZE=2048
export AUTOPAR_SEQUENCE_LENGTH=8192
export AUTOPAR_NUM_MICROBATCHES=512
export AUTOPAR_PIPELINE_LAYERS=1,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-128}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${@:?the training program and its flags}"
