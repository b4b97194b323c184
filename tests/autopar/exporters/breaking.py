"""For every rule, the smallest change of sound settings that breaks it."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.exporters.settings import Value

Change = Mapping[str, Value | None]
"""Settings to set; None takes one away. ``world`` and ``env:NAME`` change the number of processes and the environment."""

MEGATRON: dict[str, Change] = {
    "ML-W1": {"world": 60},
    "ML-W2": {"expert-tensor-parallel-size": 8, "expert-model-parallel-size": 8, "world": 32},
    "ML-W3": {"use-tp-pp-dp-mapping": True, "expert-model-parallel-size": 8},
    "ML-W4": {"use-tp-pp-dp-mapping": True, "expert-model-parallel-size": 8},
    "ML-W5": {"context-parallel-size": 2, "expert-model-parallel-size": 8, "expert-tensor-parallel-size": 8},
    "ML-W6": {"expert-tensor-parallel-size": None},
    "ML-W7": {"num-distributed-optimizer-instances": 3},
    "ML-W8": {"tensor-parallel-num-weight-shards": 3},
    "ML-W9": {"use-tp-pp-dp-mapping": True, "use-torch-fsdp2": True},
    "ML-T1": {"num-attention-heads": 33},
    "ML-T2": {"num-query-groups": 3},
    "ML-T3": {"moe-ffn-hidden-size": 14337, "expert-tensor-parallel-size": 2},
    "ML-T4": {"make-vocab-size-divisible-by": 64},
    "ML-T5": {"should-pad-vocab": False, "vocab-size": 32001},
    "ML-T6": {"kv-channels": None, "hidden-size": 4100},
    "ML-T7": {"linear-num-key-heads": 3},
    "ML-T8": {"mamba-num-heads": 3},
    "ML-T9": {"multi-latent-attention": True},
    "ML-T10": {"tensor-model-parallel-size": 1},
    "ML-T11": {"tp-comm-overlap": True, "sequence-parallel": False},
    "ML-T12": {"seq-length": 4095},
    "ML-T13": {"distribute-saved-activations": True},
    "ML-T14": {"env:CUDA_DEVICE_MAX_CONNECTIONS": "8"},
    "ML-C1": {"context-parallel-size": 2, "seq-length": 4098},
    "ML-C2": {"hierarchical-context-parallel-sizes": ("2", "2")},
    "ML-C3": {"cp-comm-type": ("p2p", "a2a")},
    "ML-C4": {"context-parallel-size": 2, "cp-comm-type": ("p2p",), "window-size": "(128,0)"},
    "ML-C5": {"max-position-embeddings": 2048},
    "ML-C6": {"hybrid-context-parallel": True},
    "ML-P1": {"num-virtual-stages-per-pipeline-rank": 2, "num-layers-per-virtual-pipeline-stage": 4},
    "ML-P2": {"decoder-first-pipeline-num-layers": 15, "account-for-loss-in-pipeline-split": True},
    "ML-P3": {"num-layers": 31},
    "ML-P4": {"pipeline-model-parallel-size": 1, "num-virtual-stages-per-pipeline-rank": 2},
    "ML-P5": {"num-virtual-stages-per-pipeline-rank": 2, "microbatch-group-size-per-virtual-pipeline-stage": 1},
    "ML-P6": {"num-virtual-stages-per-pipeline-rank": 2, "global-batch-size": 520},
    "ML-P7": {"overlap-p2p-comm": True, "batch-p2p-comm": True},
    "ML-P9": {"global-batch-size": 4},
    "ML-P10": {"hybrid-layer-pattern": "M*M*|MM*M|M*MM"},
    "ML-P11": {"cpu-offloading-num-layers": 4},
    "ML-P12": {"enable-hyper-connections": True},
    "ML-P13": {"defer-embedding-wgrad-compute": True, "no-gradient-accumulation-fusion": True},
    "ML-P14": {"first-last-layers-bf16": True, "num-layers-at-start-in-bf16": 17},
    "ML-B1": {"global-batch-size": 511},
    "ML-B2": {"global-batch-size": None},
    "ML-B3": {"eval-global-batch-size": 511},
    "ML-B4": {"step-batch-size-schedule": "0:128 100:512"},
    "ML-E1": {"expert-model-parallel-size": 16},
    "ML-E2": {"sequence-parallel": False},
    "ML-E3": {"disable-bias-linear": False, "expert-tensor-parallel-size": 2},
    "ML-E4": {"moe-router-num-groups": 3},
    "ML-E5": {"overlap-moe-expert-parallel-comm": True, "moe-token-dispatcher-type": "allgather"},
    "ML-E6": {"delay-wgrad-compute": True},
    "ML-E7": {"moe-grouped-gemm": False, "recompute-modules": ("moe_act",)},
    "ML-E8": {"moe-token-dispatcher-type": "flex"},
    "ML-D1": {"overlap-grad-reduce": False},
    "ML-D2": {"overlap-param-gather-with-optimizer-step": True},
    "ML-D3": {"fp8-param-gather": True, "use-distributed-optimizer": False},
    "ML-D4": {"use-torch-fsdp2": True},
    "ML-D5": {"ckpt-format": "torch_dcp"},
    "ML-D6": {"use-megatron-fsdp": True},
    "ML-D7": {"optimizer-cpu-offload": True},
    "ML-D8": {"recompute-granularity": "full"},
    "ML-D9": {"fp8-format": "hybrid", "fp4-format": "e2m1"},
    "ML-D10": {"fp8-format": "hybrid", "moe-ffn-hidden-size": 14344},
    "ML-D11": {"fake-process-group": True, "moe-token-dispatcher-type": "flex"},
    "ML-P8": {"bridge.pipeline_dtype": None},
    "MB-1": {"world": 60},
    "MB-2": {"bridge.finetune": True, "seq-length": 4098},
    "MB-3": {"bridge.finetune": True},
    "MB-4": {"eval-global-batch-size": 511},
    "MB-5": {"use-megatron-fsdp": True, "use-torch-fsdp2": True},
    "MB-6": {"use-megatron-fsdp": True, "bridge.megatron_fsdp_version": 2},
    "MB-7": {"tp-comm-overlap": True, "sequence-parallel": False},
    "MB-8": {"overlap-p2p-comm": True},
    "MB-9": {"overlap-moe-expert-parallel-comm": True, "moe-token-dispatcher-type": "allgather"},
    "MB-10": {"should-pad-vocab": False, "vocab-size": 32001},
    "MB-11": {"expert-model-parallel-size": 8, "expert-tensor-parallel-size": 8},
    "MB-12": {"use-nccl-ub": True},
    "MB-13": {"use-tp-pp-dp-mapping": True, "context-parallel-size": 2},
}
"""Of Mixtral 8x7B on 64 GPUs: tp 4, pp 2, dp 8, ep 4."""

_P = "parallelism."
TORCHTITAN: dict[str, Change] = {
    "TT-1": {f"{_P}data_parallel_shard_degree": 3},
    "TT-2": {f"{_P}expert_parallel_degree": 64},
    "TT-3": {f"{_P}tensor_parallel_degree": 8},
    "TT-4": {f"{_P}expert_parallel_degree": 3},
    "TT-5": {"model": "llama3.2-1b"},
    "TT-6": {f"{_P}context_parallel_degree": 2, "model.attn_backend": "sdpa"},
    "TT-7": {"training.seq_len": 4095},
    "TT-8": {"training.global_batch_size": 511},
    "TT-9": {f"{_P}pipeline_parallel_schedule": "Interleaved1F1B"},
    "TT-10": {f"{_P}module_fqns_per_model_part": ("tok_embeddings layers.0", "layers.1 norm lm_head")},
    "TT-11": {"training.local_batch_size": 1},
    "TT-12": {"training.disable_cuda_graphs": False},
    "TT-14": {f"{_P}fsdp_reshard_after_forward": "default"},
    "TT-15": {f"{_P}expert_tensor_parallel_degree": 2},
}
"""Of Qwen3 30B-A3B on 32 GPUs: tp 4, pp 2, dp 4, ep 4."""

DEEPSPEED: dict[str, Change] = {
    "DS-1": {"pipeline.stages": 2, "zero_optimization.stage": 2},
    "DS-2": {"pipeline.stages": 3},
    "DS-3": {"gradient_accumulation_steps": 5},
    "DS-5": {"pipeline.stages": 2, "pipeline.partition": "best", "zero_optimization.stage": 1},
    "DS-6": {"tensor_parallel.tp.tp_size": 4},
    "DS-7": {"tensor_parallel.autotp_size": 16},
    "DS-8": {"expert_parallel.expert_tensor_parallel_size": 2},
    "DS-9": {"zero_optimization.stage": 3},
    "DS-10": {"expert_parallel.autoep_size": 16},
    "DS-11": {"sequence_parallel_size": 64},
    "DS-12": {"compile.passes": ("autosp",)},
    "DS-15": {"zero_optimization.overlap_comm": None},
}
"""Of Mixtral 8x7B on 64 GPUs: tp 2, dp 32, ep 4, ZeRO-2."""

NANOTRON: dict[str, Change] = {
    "NT-1": {"parallelism.expert_parallel_size": 2},
    "NT-2": {"parallelism.tp": 16},
    "NT-3": {"model.make_vocab_size_divisible_by": 128},
    "NT-4": {"parallelism.context_parallel_size": 2, "tokens.sequence_length": 4095},
    "NT-5": {"tokens.batch_accumulation_per_replica": 2},
    "NT-6": {"parallelism.context_parallel_size": 2, "parallelism.dp": 1},
    "NT-7": {"parallelism.pp_engine": None},
}
"""Of Llama 3 8B on 32 GPUs: tp 2, pp 4, dp 4."""

_A = "parallelism_config.parallelism_config_"
ACCELERATE: dict[str, Change] = {
    "AC-1": {f"{_A}dp_shard_size": 8},
    "AC-2": {f"{_A}cp_size": 2, f"{_A}sp_size": 2},
    "AC-3": {f"{_A}dp_replicate_size": 16, f"{_A}dp_shard_size": 1},
    "AC-4": {"fsdp_config.fsdp_version": 1},
    "AC-5": {f"{_A}pp_size": 2},
    "AC-6": {"distributed_config.tp_size": 4},
    "AC-7": {f"{_A}cp_size": 3},
    "TR-1": {"distributed_config.tp_size": 2, "distributed_config.fsdp_size": 4},
    "TR-2": {"distributed_config.tp_size": 2, "distributed_config.fsdp_size": 16},
    "TR-3": {f"{_A}tp_size": 16},
    "TR-4": {f"{_A}sp_size": 64},
    "TR-5": {"distributed_config.enable_expert_parallel": True},
    "TR-6": {"trainer.tp_plan": "auto"},
}
"""Of Llama 3 8B on 32 GPUs: tp 2, dp 16, ZeRO-3."""
