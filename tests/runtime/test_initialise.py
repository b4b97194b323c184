"""Initial weights: the same values under every layout, and never a whole model in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import autopar
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.runtime.random.initialise import InitialWeights
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.tensor.fused import FusedLayout, fused_layouts
from autopar.runtime.tensor.local import shard_parameter

from .processes import run_ranks

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4, dtype=torch.bool)), persistent=False)
        self.scale = nn.Parameter(torch.ones(width))

    def reset_parameters(self) -> None:
        self.mask.copy_(torch.tril(torch.ones(4, 4, dtype=torch.bool, device=self.mask.device)))
        nn.init.ones_(self.scale)
        self.out.weight.mul_(0.5)  # what a parent does with a child's weight, after the child's own initialisation


class Toy(nn.Module):
    def __init__(self, width: int = 12, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10, bias=False)
        self.head.weight = self.embed.weight


def on_meta(build: type[nn.Module], *args: object) -> nn.Module:
    with torch.device("meta"):
        return build(*args)


def alone(model: nn.Module, seed: int = 3) -> dict[str, Tensor]:
    InitialWeights.read(model, seed=seed).give_to([model], device=CPU)
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]}


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0))


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=32)
    )


@pytest.mark.parametrize("build", [gpt2, llama])
def test_hugging_face_models_get_what_their_own_code_gives(build: type[nn.Module]) -> None:
    model, real = on_meta(build), build()
    values = alone(model)
    for name, tensor in [*real.named_parameters(), *real.named_buffers()]:
        assert tensor.shape == values[name].shape
        if not tensor.is_floating_point() or tensor.std() == 0 or name in dict(real.named_buffers()):
            assert torch.equal(values[name], tensor), name
        else:
            assert values[name].std().item() == pytest.approx(tensor.std().item(), rel=0.3), name
    ids = torch.arange(16).view(2, 8)
    assert model(input_ids=ids, labels=ids).loss.item() == pytest.approx(math.log(32), rel=0.1)


def test_gpt2_scales_its_residual_projections() -> None:
    config = GPT2Config(n_layer=8, n_embd=64, n_head=2, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    values = alone(model)
    assert values["transformer.h.5.mlp.c_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert values["transformer.h.5.mlp.c_fc.weight"].std().item() == pytest.approx(0.02, rel=0.05)


def test_a_seed_and_a_name_make_the_value() -> None:
    state = torch.get_rng_state()
    first, again, other = alone(on_meta(Toy)), alone(on_meta(Toy)), alone(on_meta(Toy), seed=4)
    assert torch.equal(state, torch.get_rng_state())
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])
    assert not torch.equal(first["blocks.0.qkv.weight"], first["blocks.1.qkv.weight"])
    deeper = alone(on_meta(Toy, 12, 5))
    assert all(torch.equal(first[name], deeper[name]) for name in first)
    assert first["head.weight"].data_ptr() == first["embed.weight"].data_ptr()
    assert first["blocks.2.mask"].tolist() == torch.ones(4, 4).tril().bool().tolist()
    assert first["blocks.0.out.weight"].abs().max() <= 0.5 / math.sqrt(12)


def test_a_user_may_initialise_and_has_the_last_word() -> None:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=7.0)
        if isinstance(module, Block):
            nn.init.constant_(module.out.bias, 3.0)

    model = on_meta(Toy)
    InitialWeights.read(model, seed=1, initialise=initialise).give_to([model], device=CPU)
    assert model.embed.weight.std().item() == pytest.approx(7, rel=0.3)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.blocks[1].out.bias, torch.full((12,), 3.0))


def test_what_nothing_sets_is_refused_all_at_once() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.shift = nn.Parameter(torch.zeros(4))
            self.register_buffer("table", torch.arange(4))
            self.linear = nn.Linear(4, 4)
            self.angles = torch.arange(4.0)

    with pytest.raises(InvalidInputError) as refused:
        InitialWeights.read(on_meta(Bare), seed=0)
    assert [fault.field for fault in refused.value.faults] == ["scale", "shift", "table", "angles"]

    def half(module: nn.Module) -> None:
        if isinstance(module, Bare):
            module.scale[:2].fill_(1)
            module.shift.zero_()
            module.table[0] = 5
            module.angles = torch.arange(4.0)

    class Registered(Bare):
        def __init__(self) -> None:
            super().__init__()
            del self.angles

    model = on_meta(Registered)
    weights = InitialWeights.read(model, seed=0, initialise=lambda module: half(module))
    with pytest.raises(InvalidInputError, match="every element"):
        weights.give_to([model], device=CPU)


def test_code_that_needs_values_says_which() -> None:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module.weight.sum().item() > 0:
            module.weight.neg_()

    with pytest.raises(InvalidInputError, match=r"initialise\(blocks.0.qkv\)"):
        InitialWeights.read(on_meta(Toy), seed=0, initialise=initialise)


def _sharded_toy(mesh: DeviceMesh) -> Toy:
    model = on_meta(Toy)
    fused = FusedLayout(dim=0, sections=(12, 12, 12), parts=2)
    for block in model.blocks:
        shard_parameter(block.qkv, "weight", mesh, 0, fused)
        shard_parameter(block.qkv, "bias", mesh, 0, fused)
        shard_parameter(block.out, "weight", mesh, 1)
        shard_parameter(block.out, "bias", mesh, None)
        shard_parameter(block, "scale", mesh, None)
    shard_parameter(model.embed, "weight", mesh, 0)
    shard_parameter(model.head, "weight", mesh, 0)
    return model


def _rank_toy(_: int, expected: dict[str, Tensor]) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    weights = InitialWeights.read(on_meta(Toy), seed=3)
    model = _sharded_toy(mesh["tp"])
    layouts = fused_layouts(model)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    weights.give_to([model], device=CPU)
    assert model.head.weight is model.embed.weight
    assert set(layouts) == {f"blocks.{block}.qkv.{name}" for block in range(3) for name in ("weight", "bias")}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        assert isinstance(parameter, DTensor)
        whole = parameter.full_tensor()
        assert torch.equal(layouts[name].to_user(whole) if name in layouts else whole, expected[name]), name
    assert all(torch.equal(buffer, expected[name]) for name, buffer in model.named_buffers())


def test_tensor_and_fully_sharded_shards_are_cuts_of_the_same_whole() -> None:
    run_ranks(4, _rank_toy, alone(on_meta(Toy)))


def _rank_stages(rank: int, expected: dict[str, Tensor]) -> None:
    with torch.device("meta"):
        model = gpt2()
    weights = InitialWeights.read(model, seed=3)
    keep = model.transformer.h[rank]
    model.transformer.h = nn.ModuleDict({str(rank): keep})
    if rank == 0:
        del model.lm_head, model.transformer.ln_f
    else:
        del model.transformer.wte, model.transformer.wpe
    weights.give_to([model], device=CPU)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name
    assert len(list(model.parameters())) == (14 if rank == 0 else 15)


def test_stages_give_both_ends_of_a_tied_embedding_the_same_values() -> None:
    run_ranks(2, _rank_stages, alone(on_meta(gpt2)))


class Tower(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))


class _LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made within held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if type(tensor) is Tensor and not tensor.is_meta:
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._storages = {place: held for place, held in self._storages.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._storages.values()))
        return output


def _rank_memory(_: int) -> int:
    mesh = init_device_mesh("cpu", (4,))
    model = on_meta(Tower, 256, 24)
    weights = InitialWeights.read(model, seed=0)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with _LiveBytes() as live:
        weights.give_to([model], device=CPU)
    assert all(parameter.to_local().numel() == 256 * 256 // 4 for parameter in model.parameters())
    assert all(parameter.to_local().untyped_storage().nbytes() == 256 * 256 for parameter in model.parameters())
    return live.peak


def test_a_rank_holds_its_shard_and_one_parameter() -> None:
    one, layers, ranks = 256 * 256 * 4, 24, 4
    for peak in run_ranks(ranks, _rank_memory):
        assert layers * one / ranks <= peak <= layers * one / ranks + 1.5 * one, f"{peak / one:.2f} parameters"


def _rank_agree(rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(rank)
    model = Toy()
    with torch.no_grad():
        model.blocks[0].qkv.bias.fill_(0.25)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    InitialWeights.read(model, seed=0).give_to([model], device=CPU)
    return before, {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_a_model_that_every_rank_built_for_itself_is_the_first_ranks() -> None:
    (before, after), (other, received) = run_ranks(2, _rank_agree)
    assert not torch.equal(before["embed.weight"], other["embed.weight"])
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor)
        assert torch.equal(received[name], tensor)


def _rank_parallelized(_: int) -> tuple[float, float]:
    with torch.device("meta"):
        model = ReferenceGPT(ReferenceGPTConfig(num_layers=2))

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.constant_(module.weight, 0.5)

    engine = autopar.parallelize(
        model, optimizer=torch.optim.AdamW, global_batch_size=2, sequence_length=8, fix={"dp": 2, "zero": 3}, initialise=initialise
    )
    parameters = dict(engine.model_parts[0].named_parameters())
    whole = [parameters[name].full_tensor() for name in ("tokens.weight", "head.weight")]
    return (whole[0] == 0.5).float().mean().item(), whole[1].std().item()


def test_parallelize_takes_the_users_initialiser() -> None:
    (embedded, head), other = run_ranks(2, _rank_parallelized)
    assert other == (embedded, head)
    assert embedded == 1.0
    assert head == pytest.approx(0.02, rel=0.05)
