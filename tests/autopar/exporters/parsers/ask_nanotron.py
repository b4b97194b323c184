"""Run by test_parsers: nanotron's own reader over the exported YAML, strict about every key."""

import json
import sys

from nanotron.config import get_config_from_file
from nanotron.config.models_config import LlamaConfig

config = get_config_from_file(sys.argv[1], model_config_class=LlamaConfig)
print(
    json.dumps(
        {
            "tp": config.parallelism.tp,
            "pp": config.parallelism.pp,
            "dp": config.parallelism.dp,
            "gbs": config.global_batch_size,
            "zero": config.optimizer.zero_stage,
            "engine": type(config.parallelism.pp_engine).__name__,
            "mode": config.parallelism.tp_mode.name,
            "layers": config.model.model_config.num_hidden_layers,
        }
    )
)
