"""deepseek-v3 on 2,048 x NVIDIA H800 SXM 80GB (256 x h800-8)

15,360 sequences of 4,096 tokens a step, bf16
TP1 PP16 EP8 DP128 mbs1 ZeRO-1 1f1b layers=4*15,1 recompute=full
for torchtitan (torchtitan 0.3.0), written by autopar 0.1.0
Tokenizer, dataset, learning rate and checkpoints are those of deepseek_v3_671b, which it starts from: set yours.
Seen as later releases name them: local_batch_size x seq_len is num_tokens_per_microbatch_per_dp_rank x num_pp_microbatches.
torchtitan has norm epsilon 1e-05 for this model, the plan 1e-06: change it there.
"""

from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.deepseek_v3 import model_registry
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_671b
from torchtitan.trainer import Trainer


def autopar_plan() -> Trainer.Config:
    config = deepseek_v3_671b()
    config.model_spec = model_registry('671B', attn_backend='flex', num_mtp_layers=1)
    config.compile.enable = True
    config.parallelism.context_parallel_degree = 1
    config.parallelism.data_parallel_replicate_degree = 1
    config.parallelism.data_parallel_shard_degree = 128
    config.parallelism.enable_sequence_parallel = True
    config.parallelism.expert_parallel_degree = 8
    config.parallelism.fsdp_reshard_after_forward = 'never'
    config.parallelism.pipeline_parallel_degree = 16
    config.parallelism.pipeline_parallel_microbatch_size = 1
    config.parallelism.pipeline_parallel_schedule = '1F1B'
    config.parallelism.tensor_parallel_degree = 1
    config.training.disable_cuda_graphs = True
    config.training.dtype = 'float32'
    config.training.global_batch_size = 15360
    config.training.local_batch_size = 120
    config.training.mixed_precision_param = 'bfloat16'
    config.training.seq_len = 4096
    config.activation_checkpoint = FullAC.Config()
    config.parallelism.module_fqns_per_model_part = [
        ['tok_embeddings', 'layers.0', 'layers.1', 'layers.2', 'layers.3'],
        ['layers.4', 'layers.5', 'layers.6', 'layers.7'],
        ['layers.8', 'layers.9', 'layers.10', 'layers.11'],
        ['layers.12', 'layers.13', 'layers.14', 'layers.15'],
        ['layers.16', 'layers.17', 'layers.18', 'layers.19'],
        ['layers.20', 'layers.21', 'layers.22', 'layers.23'],
        ['layers.24', 'layers.25', 'layers.26', 'layers.27'],
        ['layers.28', 'layers.29', 'layers.30', 'layers.31'],
        ['layers.32', 'layers.33', 'layers.34', 'layers.35'],
        ['layers.36', 'layers.37', 'layers.38', 'layers.39'],
        ['layers.40', 'layers.41', 'layers.42', 'layers.43'],
        ['layers.44', 'layers.45', 'layers.46', 'layers.47'],
        ['layers.48', 'layers.49', 'layers.50', 'layers.51'],
        ['layers.52', 'layers.53', 'layers.54', 'layers.55'],
        ['layers.56', 'layers.57', 'layers.58', 'layers.59'],
        ['layers.60', 'norm', 'lm_head'],
    ]
    return config
