#!/usr/bin/env bash
# gpt-175b on 256 x NVIDIA A100 SXM4 80GB (32 x dgx-a100)
# 1,536 sequences of 2,048 tokens a step, bf16
# TP8 PP4 VPP8 DP8 mbs3 ZeRO-1 interleaved_1f1b recompute=none
# for megatron-lm (megatron-core 0.19.2), written by autopar 0.1.0
# Data, tokenizer, learning rate and checkpoints are yours: this runs 20 steps on mock data; pass your flags after it.
# --tp-comm-overlap is left off, since it needs Transformer Engine's user buffers: try it where they work.
# The plan does not say the model's norm epsilon: set --norm-epsilon, or Megatron takes 1e-05.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

MODEL=(
  --num-layers 96
  --hidden-size 12288
  --num-attention-heads 96
  --kv-channels 128
  --vocab-size 51200
  --max-position-embeddings 2048
  --ffn-hidden-size 49152
  --normalization LayerNorm
  --position-embedding-type learned_absolute
  --make-vocab-size-divisible-by 128
)

PARALLEL=(
  --tensor-model-parallel-size 8
  --sequence-parallel
  --pipeline-model-parallel-size 4
  --num-virtual-stages-per-pipeline-rank 8
  --context-parallel-size 1
  --expert-model-parallel-size 1
  --expert-tensor-parallel-size 1
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
)

TRAINING=(
  --micro-batch-size 3
  --global-batch-size 1536
  --seq-length 2048
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
  --nnodes "${NNODES:-32}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${MEGATRON_PATH:-.}/pretrain_gpt.py" \
  "${MODEL[@]}" \
  "${PARALLEL[@]}" \
  "${TRAINING[@]}" \
  "${JOB[@]}" \
  "$@"
