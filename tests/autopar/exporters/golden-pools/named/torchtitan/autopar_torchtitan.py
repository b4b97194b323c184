"""llama3-8b on 16 x NVIDIA A100 SXM4 40GB (2 x dgx-a100-40gb), then 16 x NVIDIA H100 SXM5 80GB (2 x dgx-h100)

64 sequences of 4,096 tokens a step, bf16
TP2 PP4 DP4 mbs1 ZeRO-1 1f1b layers=5,4,12,11 recompute=none
for torchtitan (torchtitan 0.3.0), written by autopar 0.1.0
Hosts start in this order: nodes 0 to 1 are a100-40gb (2 x dgx-a100-40gb), nodes 2 to 3 h100 (2 x dgx-h100).
All hosts need the same releases of NCCL and the framework; what is compiled is compiled for ampere and hopper.
Tokenizer, dataset, learning rate and checkpoints are those of llama3_8b, which it starts from: set yours.
Seen as later releases name them: local_batch_size x seq_len is num_tokens_per_microbatch_per_dp_rank x num_pp_microbatches.
"""

from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_8b
from torchtitan.trainer import Trainer


def autopar_plan() -> Trainer.Config:
    config = llama3_8b()
    config.model_spec = model_registry('8B', attn_backend='flex')
    config.compile.enable = True
    config.parallelism.context_parallel_degree = 1
    config.parallelism.data_parallel_replicate_degree = 1
    config.parallelism.data_parallel_shard_degree = 4
    config.parallelism.enable_sequence_parallel = True
    config.parallelism.expert_parallel_degree = 1
    config.parallelism.fsdp_reshard_after_forward = 'never'
    config.parallelism.pipeline_parallel_degree = 4
    config.parallelism.pipeline_parallel_microbatch_size = 1
    config.parallelism.pipeline_parallel_schedule = '1F1B'
    config.parallelism.tensor_parallel_degree = 2
    config.training.disable_cuda_graphs = True
    config.training.dtype = 'float32'
    config.training.global_batch_size = 64
    config.training.local_batch_size = 16
    config.training.mixed_precision_param = 'bfloat16'
    config.training.seq_len = 4096
    config.activation_checkpoint = None
    config.parallelism.module_fqns_per_model_part = [
        ['tok_embeddings', 'layers.0', 'layers.1', 'layers.2', 'layers.3', 'layers.4'],
        ['layers.5', 'layers.6', 'layers.7', 'layers.8'],
        ['layers.9', 'layers.10', 'layers.11', 'layers.12', 'layers.13', 'layers.14', 'layers.15', 'layers.16', 'layers.17', 'layers.18', 'layers.19', 'layers.20'],
        ['layers.21', 'layers.22', 'layers.23', 'layers.24', 'layers.25', 'layers.26', 'layers.27', 'layers.28', 'layers.29', 'layers.30', 'layers.31', 'norm', 'lm_head'],
    ]
    return config
