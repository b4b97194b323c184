#!/usr/bin/env bash
# gpt-175b on 256 x NVIDIA A100 SXM4 80GB (32 x dgx-a100)
# 1,536 sequences of 2,048 tokens a step, bf16
# TP8 PP4 VPP8 DP8 mbs3 ZeRO-1 interleaved_1f1b recompute=none
# for torchrun (torch 2.13), written by autopar 0.1.0
# The plan's sizes are in AUTOPAR_TENSOR_PARALLEL_SIZE and so on; ranks.json has the groups of every axis.
# Ranks are numbered tp 8, cp 1, dp 8, pp 4, fastest first.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export AUTOPAR_TENSOR_PARALLEL_SIZE=8
export AUTOPAR_SEQUENCE_PARALLEL=true
export AUTOPAR_PIPELINE_PARALLEL_SIZE=4
export AUTOPAR_VIRTUAL_PIPELINE_STAGES=8
export AUTOPAR_PIPELINE_SCHEDULE=interleaved_1f1b
export AUTOPAR_CONTEXT_PARALLEL_SIZE=1
export AUTOPAR_CONTEXT_PARALLEL_KIND=ring
export AUTOPAR_EXPERT_PARALLEL_SIZE=1
export AUTOPAR_EXPERT_TENSOR_PARALLEL_SIZE=1
export AUTOPAR_DATA_PARALLEL_SIZE=8
export AUTOPAR_MICRO_BATCH_SIZE=3
export AUTOPAR_ZERO_STAGE=1
export AUTOPAR_SHARD_GROUP_SIZE=0
export AUTOPAR_RECOMPUTE=none
export AUTOPAR_NUM_RECOMPUTE_LAYERS=0
export AUTOPAR_GLOBAL_BATCH_SIZE=1536
export AUTOPAR_SEQUENCE_LENGTH=2048
export AUTOPAR_NUM_MICROBATCHES=64
export AUTOPAR_PIPELINE_LAYERS=3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-32}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${@:?the training program and its flags}"
