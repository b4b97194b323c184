#!/usr/bin/env bash
# llama3-8b on 16 x NVIDIA A100 SXM4 40GB (2 x dgx-a100-40gb), then 16 x NVIDIA H100 SXM5 80GB (2 x dgx-h100)
# 64 sequences of 4,096 tokens a step, bf16
# TP2 PP4 DP4 mbs1 ZeRO-1 1f1b layers=5,4,12,11 recompute=none
# for megatron-lm (megatron-core 0.19.2), written by autopar 0.1.0
# Hosts start in this order: nodes 0 to 1 are a100-40gb (2 x dgx-a100-40gb), nodes 2 to 3 h100 (2 x dgx-h100).
# All hosts need the same releases of NCCL and the framework; what is compiled is compiled for ampere and hopper.
# Data, tokenizer, learning rate and checkpoints are yours: this runs 20 steps on mock data; pass your flags after it.
# --tp-comm-overlap is left off, since it needs Transformer Engine's user buffers: try it where they work.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

MODEL=(
  --num-layers 32
  --hidden-size 4096
  --num-attention-heads 32
  --kv-channels 128
  --vocab-size 128256
  --max-position-embeddings 8192
  --ffn-hidden-size 14336
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
  --tensor-model-parallel-size 2
  --sequence-parallel
  --pipeline-model-parallel-size 4
  --pipeline-model-parallel-layout 'Et*5|t*4|t*12|t*11L'
  --context-parallel-size 1
  --expert-model-parallel-size 1
  --expert-tensor-parallel-size 1
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
)

TRAINING=(
  --micro-batch-size 1
  --global-batch-size 64
  --seq-length 4096
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
  --nnodes "${NNODES:-4}" --node-rank "${NODE_RANK:-$(awk -v h="$(hostname -s)" '$2 != last {n++; last = $2} $2 == h || index($2, h ".") == 1 {print n - 1; exit}' "$(dirname "${BASH_SOURCE[0]}")/hosts.txt")}" \
  --master-addr "${MASTER_ADDR:-old07}" --master-port "${MASTER_PORT:-29500}" \
  "${MEGATRON_PATH:-.}/pretrain_gpt.py" \
  "${MODEL[@]}" \
  "${PARALLEL[@]}" \
  "${TRAINING[@]}" \
  "${JOB[@]}" \
  "$@"
