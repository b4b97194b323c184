"""Run by test_parsers: torchtitan's own configuration manager and mesh over the exported module; prints what it understood."""

import json
import sys

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

folder, world = sys.argv[1:]
sys.path.insert(0, folder)

from torchtitan.config.manager import ConfigManager  # noqa: E402
from torchtitan.distributed.parallel_dims import ParallelDims  # noqa: E402

config = ConfigManager().parse_args(["--module", "autopar_torchtitan", "--config", "autopar_plan"])
p = config.parallelism
sizes = ParallelDims(
    dp_replicate=p.data_parallel_replicate_degree,
    dp_shard=p.data_parallel_shard_degree,
    cp=p.context_parallel_degree,
    tp=p.tensor_parallel_degree,
    pp=p.pipeline_parallel_degree,
    ep=p.expert_parallel_degree,
    world_size=int(world),
)
# The last rank of all, without the others: its place on every axis tells the axis's stride.
dist.init_process_group("fake", store=FakeStore(), rank=int(world) - 1, world_size=int(world))
sizes.build_mesh()
groups = {axis: mesh.mesh.tolist() for axis, mesh in sizes.get_all_one_dimensional_meshes().items()}
parts = p.module_fqns_per_model_part or []
print(
    json.dumps(
        {
            "groups": groups,
            "tp": p.tensor_parallel_degree,
            "pp": p.pipeline_parallel_degree,
            "cp": p.context_parallel_degree,
            "ep": p.expert_parallel_degree,
            "dp": p.data_parallel_replicate_degree * p.data_parallel_shard_degree,
            "gbs": config.training.global_batch_size,
            "split": [sum(name.startswith("layers.") for name in part) for part in parts],
            "layers": len(config.model_spec.model.layers),
            "numbers": [config.model_spec.model.layers[0].attention.rope.theta, config.model_spec.model.norm.eps],
        }
    )
)
