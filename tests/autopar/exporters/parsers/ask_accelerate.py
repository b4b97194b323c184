"""Run by test_parsers: Accelerate's own reader, launcher checks and ParallelismConfig over the exported YAML."""

import json
import sys

from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig

path = sys.argv[1]
config = load_config_from_file(path)
parsed = launch_command_parser().parse_args(["--config_file", path, "train.py"])
args, _, _ = _validate_launch_command(parsed)
sizes = {}
if args.use_parallelism_config:
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
    sizes = {name: getattr(args, f"parallelism_config_{name}") for name in names}
    built = ParallelismConfig(**sizes)
    assert built.sp_size > 1 or built.total_size == config.num_processes, (built.total_size, config.num_processes)
print(
    json.dumps(
        {
            "kind": config.distributed_type.value,
            "processes": config.num_processes,
            "fsdp": int(getattr(args, "fsdp_version", 0) or 0) if args.use_fsdp else 0,
            "reshard": str(getattr(args, "fsdp_reshard_after_forward", "")).lower(),
            "zero": args.zero_stage if args.use_deepspeed else None,
            **sizes,
        }
    )
)
