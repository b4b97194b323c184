"""Run by test_parsers: DeepSpeed's own configuration class over the exported JSON, as one of the data-parallel ranks sees it."""

import json
import sys

from deepspeed.runtime.config import DeepSpeedConfig

path, ranks = sys.argv[1:]


class Ranks:
    """What DeepSpeed asks a model-parallel unit."""

    def get_data_parallel_world_size(self):
        return int(ranks)


import deepspeed.comm as dist  # noqa: E402

dist.get_rank = lambda *_, **__: 0
config = DeepSpeedConfig(path, mpu=Ranks())
print(
    json.dumps(
        {
            "gbs": config.train_batch_size,
            "mbs": config.train_micro_batch_size_per_gpu,
            "steps": config.gradient_accumulation_steps,
            "zero": int(config.zero_optimization_stage),
            "tp": config.tensor_parallel_config.autotp_size,
            "ep": config.expert_parallel_config.autoep_size,
            "pp": config.pipeline["stages"],
        }
    )
)
