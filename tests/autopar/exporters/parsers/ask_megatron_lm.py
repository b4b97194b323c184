"""Run by test_parsers: Megatron's own parser and validation over the words after the script's name; prints what it understood."""

import json
import os
import sys
import typing

import torch
import typing_extensions

typing.override = typing_extensions.override  # the release asks for Python 3.12 for this alone
arguments, world = sys.argv[1:-1], sys.argv[-1]
os.environ |= {"WORLD_SIZE": world, "RANK": "0", "LOCAL_RANK": "0"}


class _Hopper:
    major = 9


torch.cuda.get_device_properties = lambda *_: _Hopper
torch.cuda.get_device_capability = lambda *_: (9, 0)

from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args  # noqa: E402

# Without Transformer Engine there is no fused rotary embedding.
sys.argv = ["pretrain_gpt.py", *arguments, "--no-rope-fusion"]
with open(os.devnull, "w") as sink:
    stdout, sys.stdout = sys.stdout, sink
    args = parse_args()
    validate_args(args)
    config = core_transformer_config_from_args(args)
    sys.stdout = stdout
layout = config.pipeline_model_parallel_layout
if layout:
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    layout = PipelineParallelLayerLayout.from_str(layout, config.pipeline_model_parallel_size) if isinstance(layout, str) else layout
from megatron.core.parallel_state import RankGenerator  # noqa: E402

ranks, stages = int(world), args.pipeline_model_parallel_size
order = "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"  # as megatron/training/initialize.py has it
etp, ep = args.expert_tensor_parallel_size, args.expert_model_parallel_size
dense = RankGenerator(args.tensor_model_parallel_size, 1, args.data_parallel_size, stages, args.context_parallel_size, order)
expert = RankGenerator(etp, ep, ranks // (etp * ep * stages), stages, 1, order)
print(
    json.dumps(
        {
            "groups": {axis: dense.get_ranks(axis) for axis in ("tp", "cp", "dp", "pp")}
            | {
                "etp": expert.get_ranks("tp"),
                "ep": expert.get_ranks("ep"),
                "edp": expert.get_ranks("dp"),
                "stages of experts": expert.get_ranks("pp"),
            },
            "tp": args.tensor_model_parallel_size,
            "pp": args.pipeline_model_parallel_size,
            "cp": args.context_parallel_size,
            "ep": args.expert_model_parallel_size,
            "dp": args.data_parallel_size,
            "virtual": args.virtual_pipeline_model_parallel_size or 1,
            "mbs": args.micro_batch_size,
            "gbs": args.global_batch_size,
            "layers": args.num_layers,
            "numbers": [args.rotary_base, config.layernorm_epsilon],
            "distributed": args.use_distributed_optimizer,
            "split": [sum("decoder" in str(kind) for kind in stage) for rank in layout.layout for stage in rank] if layout else [],
        }
    )
)
