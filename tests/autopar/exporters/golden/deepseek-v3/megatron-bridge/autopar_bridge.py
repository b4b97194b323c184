"""deepseek-v3 on 2,048 x NVIDIA H800 SXM 80GB (256 x h800-8)

15,360 sequences of 4,096 tokens a step, bf16
TP1 PP16 EP8 DP128 mbs1 ZeRO-1 1f1b layers=4*15,1 recompute=full
for megatron-bridge (megatron-bridge 0.6.2), written by autopar 0.1.0
Data, tokenizer, optimizer and checkpoints are those of the recipe deepseek_v3_pretrain_config: set yours.
"""

import torch
from megatron.bridge.recipes.deepseek.deepseek_v3 import deepseek_v3_pretrain_config
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def autopar_plan() -> ConfigContainer:
    config = deepseek_v3_pretrain_config()
    config.model.tensor_model_parallel_size = 1
    config.model.sequence_parallel = False
    config.model.pipeline_model_parallel_size = 16
    config.model.virtual_pipeline_model_parallel_size = None
    config.model.pipeline_model_parallel_layout = 'Et*4|(t*4|)*14tmL'
    config.model.num_layers_in_first_pipeline_stage = None
    config.model.num_layers_in_last_pipeline_stage = None
    config.model.account_for_embedding_in_pipeline_split = False
    config.model.account_for_loss_in_pipeline_split = False
    config.model.context_parallel_size = 1
    config.model.cp_comm_type = None
    config.model.hierarchical_context_parallel_sizes = None
    config.model.expert_model_parallel_size = 8
    config.model.expert_tensor_parallel_size = 1
    config.model.moe_token_dispatcher_type = 'alltoall'
    config.model.moe_grouped_gemm = True
    config.model.recompute_granularity = 'full'
    config.model.recompute_method = 'uniform'
    config.model.recompute_num_layers = 1
    config.model.recompute_modules = None
    config.model.seq_length = 4096
    config.dataset.seq_length = 4096
    config.train.micro_batch_size = 1
    config.train.global_batch_size = 15360
    config.ddp.use_distributed_optimizer = True
    config.optimizer.use_distributed_optimizer = True
    config.ddp.num_distributed_optimizer_instances = 1
    config.ddp.overlap_grad_reduce = True
    config.ddp.overlap_param_gather = True
    config.dist.use_megatron_fsdp = False
    config.ddp.use_megatron_fsdp = False
    config.ddp.data_parallel_sharding_strategy = 'no_shard'
    config.checkpoint.ckpt_format = 'torch_dist'
    config.dist.use_tp_pp_dp_mapping = False
    config.model.rotary_base = 10000
    config.model.layernorm_epsilon = 1e-06
    config.mixed_precision = 'bf16_mixed'
    config.model.pipeline_dtype = torch.bfloat16
    return config


if __name__ == "__main__":
    pretrain(autopar_plan(), forward_step)
