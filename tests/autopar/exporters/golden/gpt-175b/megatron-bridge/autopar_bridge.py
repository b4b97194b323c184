"""gpt-175b on 256 x NVIDIA A100 SXM4 80GB (32 x dgx-a100)

1,536 sequences of 2,048 tokens a step, bf16
TP8 PP4 VPP8 DP8 mbs3 ZeRO-1 interleaved_1f1b recompute=none
for megatron-bridge (megatron-bridge 0.6.2), written by autopar 0.1.0
Data, tokenizer, optimizer and checkpoints are those of the recipe vanilla_gpt_pretrain_config: set yours.
Shapes are set on a plain GPT: check its activation function.
The plan does not say the model's norm epsilon: set config.model.layernorm_epsilon, or Megatron-Bridge takes 1e-05.
"""

import torch
from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def autopar_plan() -> ConfigContainer:
    config = vanilla_gpt_pretrain_config()
    config.model.tensor_model_parallel_size = 8
    config.model.sequence_parallel = True
    config.model.pipeline_model_parallel_size = 4
    config.model.virtual_pipeline_model_parallel_size = 8
    config.model.pipeline_model_parallel_layout = None
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
    config.model.seq_length = 2048
    config.dataset.seq_length = 2048
    config.train.micro_batch_size = 3
    config.train.global_batch_size = 1536
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
    config.model.num_layers = 96
    config.model.hidden_size = 12288
    config.model.ffn_hidden_size = 49152
    config.model.num_attention_heads = 96
    config.model.num_query_groups = None
    config.model.kv_channels = 128
    config.model.vocab_size = 51200
    config.model.gated_linear_unit = False
    config.model.normalization = 'LayerNorm'
    config.model.position_embedding_type = 'learned_absolute'
    config.model.add_qkv_bias = False
    config.model.qk_layernorm = False
    config.model.mtp_num_layers = None
    config.model.num_moe_experts = None
    config.model.moe_router_topk = 2
    config.model.moe_ffn_hidden_size = None
    config.model.moe_shared_expert_intermediate_size = None
    config.model.moe_router_enable_expert_bias = False
    config.model.moe_router_score_function = 'softmax'
    config.model.moe_router_pre_softmax = False
    config.model.add_bias_linear = True
    config.model.share_embeddings_and_output_weights = True
    config.mixed_precision = 'bf16_mixed'
    config.model.pipeline_dtype = torch.bfloat16
    return config


if __name__ == "__main__":
    pretrain(autopar_plan(), forward_step)
