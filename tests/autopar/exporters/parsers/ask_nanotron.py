"""Run by test_parsers: nanotron's own reader over the exported YAML, strict about every key."""

import json
import sys
import types


class _Logging(types.ModuleType):
    """Stands in for nanotron.logging, which in release 0.4 imports the configuration that imports it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


sys.modules["nanotron.logging"] = _Logging("nanotron.logging")

from nanotron.config import get_config_from_file  # noqa: E402

config = get_config_from_file(sys.argv[1])
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
            "epsilon": config.model.model_config.rms_norm_eps,
        }
    )
)
