#!/usr/bin/env bash
# llama3.1-405b on 1,024 x NVIDIA H100 SXM5 80GB (128 x dgx-h100)
# 2,048 sequences of 8,192 tokens a step, bf16
# TP8 PP16 VPP4 CP2 DP4 mbs1 ZeRO-1 interleaved_1f1b layers=1,2*62,1 recompute=none
# for megatron-lm (megatron-core 0.19.2), written by autopar 0.1.0
# Data, tokenizer, learning rate and checkpoints are yours: this runs 20 steps on mock data; pass your flags after it.
# --tp-comm-overlap is left off, since it needs Transformer Engine's user buffers: try it where they work.
# The published model's scaling of rotary positions (llama3 x8) is left to you: --use-rope-scaling --rope-scaling-factor 8 adds it.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

MODEL=(
  --num-layers 126
  --hidden-size 16384
  --num-attention-heads 128
  --kv-channels 128
  --vocab-size 128256
  --max-position-embeddings 131072
  --ffn-hidden-size 53248
  --swiglu
  --normalization RMSNorm
  --position-embedding-type rope
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --make-vocab-size-divisible-by 128
  --rotary-base 500000
  --norm-epsilon 1e-05
  --group-query-attention
  --num-query-groups 8
)

PARALLEL=(
  --tensor-model-parallel-size 8
  --sequence-parallel
  --pipeline-model-parallel-size 16
  --pipeline-model-parallel-layout 'Et|(t*2|)*62tL'
  --context-parallel-size 2
  --cp-comm-type p2p
  --expert-model-parallel-size 1
  --expert-tensor-parallel-size 1
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
)

TRAINING=(
  --micro-batch-size 1
  --global-batch-size 2048
  --seq-length 8192
  --bf16
  --accumulate-allreduce-grads-in-fp32
)

JOB=(
  --train-iters 20
  --lr 0.0001
  --mock-data
  --tokenizer-type NullTokenizer
  --log-interval 1
  --eval-iters 0
  --hidden-dropout 0.0
  --attention-dropout 0.0
)

torchrun --nproc-per-node 8 \
  --nnodes "${NNODES:-128}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${MEGATRON_PATH:-.}/pretrain_gpt.py" \
  "${MODEL[@]}" \
  "${PARALLEL[@]}" \
  "${TRAINING[@]}" \
  "${JOB[@]}" \
  "$@"
