#!/usr/bin/env bash
# deepseek-v3 on 2,048 x NVIDIA H800 SXM 80GB (256 x h800-8)
# 15,360 sequences of 4,096 tokens a step, bf16
# TP1 PP16 EP8 DP128 mbs1 ZeRO-1 1f1b layers=4*15,1 recompute=full
# for megatron-lm (megatron-core 0.19.2), written by autopar 0.1.0
# Data, tokenizer, learning rate and checkpoints are yours: this runs 20 steps on mock data; pass your flags after it.
# The published model's scaling of rotary positions (yarn x40) is left to you: --rotary-scaling-factor 40 adds it, with --mscale and --mscale-all-dim of its configuration.
set -euo pipefail

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

MODEL=(
  --num-layers 61
  --hidden-size 7168
  --num-attention-heads 128
  --kv-channels 128
  --vocab-size 129280
  --max-position-embeddings 163840
  --ffn-hidden-size 18432
  --swiglu
  --normalization RMSNorm
  --position-embedding-type rope
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --qk-layernorm
  --mtp-num-layers 1
  --make-vocab-size-divisible-by 128
  --rotary-base 10000
  --norm-epsilon 1e-06
  --multi-latent-attention
  --q-lora-rank 1536
  --kv-lora-rank 512
  --qk-head-dim 128
  --qk-pos-emb-head-dim 64
  --v-head-dim 128
  --num-experts 256
  --moe-router-topk 8
  --moe-ffn-hidden-size 2048
  --moe-shared-expert-intermediate-size 2048
  --moe-layer-freq '([0]*3+[1]*58)'
  --moe-router-enable-expert-bias
  --moe-router-score-function sigmoid
)

PARALLEL=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 16
  --pipeline-model-parallel-layout 'Et*4|(t*4|)*14tmL'
  --context-parallel-size 1
  --expert-model-parallel-size 8
  --expert-tensor-parallel-size 1
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --moe-token-dispatcher-type alltoall
  --moe-grouped-gemm
)

TRAINING=(
  --micro-batch-size 1
  --global-batch-size 15360
  --seq-length 4096
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
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
  --nnodes "${NNODES:-256}" --node-rank "${NODE_RANK:?the number of this node, from 0}" \
  --master-addr "${MASTER_ADDR:?the host of node 0}" --master-port "${MASTER_PORT:-29500}" \
  "${MEGATRON_PATH:-.}/pretrain_gpt.py" \
  "${MODEL[@]}" \
  "${PARALLEL[@]}" \
  "${TRAINING[@]}" \
  "${JOB[@]}" \
  "$@"
