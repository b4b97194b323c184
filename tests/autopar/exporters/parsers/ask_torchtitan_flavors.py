"""Run by test_parsers: what torchtitan's own flavors, given as ``module/flavor``, have for numbers of the model."""

import importlib
import json
import sys

KINDS = {"llama": "llama3"}
found = {}
for name in sys.argv[1:]:
    module, flavor = name.split("/")
    model = importlib.import_module(f"torchtitan.models.{module}").model_registry(flavor, attn_backend="flex").model
    rope = model.layers[0].attention.rope
    factor = rope.scaling_factor if rope.scaling == "llama" else rope.rope_factor
    scaling = "" if rope.scaling == "none" else f"{KINDS.get(rope.scaling, rope.scaling)} x{factor:g}"
    found[name] = [rope.theta, model.norm.eps, scaling]
print(json.dumps(found))
