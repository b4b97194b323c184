"""llama3-8b on 16 x NVIDIA A100 SXM4 40GB (2 x dgx-a100-40gb), then 16 x NVIDIA H100 SXM5 80GB (2 x dgx-h100)

64 sequences of 4,096 tokens a step, bf16
TP2 PP4 DP4 mbs1 ZeRO-1 1f1b layers=5,4,12,11 recompute=none
for megatron-bridge (megatron-bridge 0.6.2), written by autopar 0.1.0
Hosts start in this order: nodes 0 to 1 are a100-40gb (2 x dgx-a100-40gb), nodes 2 to 3 h100 (2 x dgx-h100).
All hosts need the same releases of NCCL and the framework; what is compiled is compiled for ampere and hopper.
Data, tokenizer, optimizer and checkpoints are those of the recipe llama3_8b_pretrain_config: set yours.
"""

import torch
from megatron.bridge.recipes.llama.llama3 import llama3_8b_pretrain_config
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def autopar_plan() -> ConfigContainer:
    config = llama3_8b_pretrain_config()
    config.model.tensor_model_parallel_size = 2
    config.model.sequence_parallel = True
    config.model.pipeline_model_parallel_size = 4
    config.model.virtual_pipeline_model_parallel_size = None
    config.model.pipeline_model_parallel_layout = 'Et*5|t*4|t*12|t*11L'
    config.model.num_layers_in_first_pipeline_stage = None
    config.model.num_layers_in_last_pipeline_stage = None
    config.model.account_for_embedding_in_pipeline_split = False
    config.model.account_for_loss_in_pipeline_split = False
    config.model.context_parallel_size = 1
    config.model.cp_comm_type = None
    config.model.hierarchical_context_parallel_sizes = None
    config.model.expert_model_parallel_size = 1
    config.model.expert_tensor_parallel_size = 1
    config.model.recompute_granularity = None
    config.model.recompute_method = None
    config.model.recompute_num_layers = None
    config.model.recompute_modules = None
    config.model.seq_length = 4096
    config.dataset.seq_length = 4096
    config.train.micro_batch_size = 1
    config.train.global_batch_size = 64
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
    config.model.rotary_base = 500000
    config.model.layernorm_epsilon = 1e-05
    config.mixed_precision = 'bf16_mixed'
    config.model.pipeline_dtype = torch.bfloat16
    return config


if __name__ == "__main__":
    pretrain(autopar_plan(), forward_step)
