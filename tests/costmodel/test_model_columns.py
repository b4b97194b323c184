"""Models as numbers."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from autopar.catalog.models import model as catalog_model
from autopar.catalog.models import model_names
from autopar.costmodel.model_columns import ModelColumns
from autopar.costmodel.spec.model import Norm

from .problems import DENSE, EXPERTS, LATENT


@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_catalog_has_its_columns(name: str) -> None:
    model = catalog_model(name)
    columns = ModelColumns.of(model)
    for field in fields(columns):
        value = getattr(columns, field.name)
        assert value.dtype == np.float64
        assert value.shape == ()
        assert value >= 0
    assert columns.num_parameters == model.num_parameters
    assert columns.num_active_parameters <= columns.num_parameters
    split = columns.attention_replicated_parameters + columns.attention_split_parameters
    assert split < 0.01 * model.attention_parameters


def test_a_dense_model_has_no_experts_and_plain_heads() -> None:
    columns = ModelColumns.of(DENSE)
    absent = (
        "num_moe_layers",
        "num_experts",
        "experts_per_token",
        "moe_ffn",
        "shared_ffn",
        "latent",
        "kv_lora_rank",
        "rope_head_dim",
        "mtp_layers",
    )
    assert [float(getattr(columns, name)) for name in absent] == [0.0] * len(absent)
    assert columns.qk_head_dim == columns.v_head_dim == DENSE.head_dim
    assert columns.mlp_matrices == 3


def test_latent_heads_have_two_widths() -> None:
    columns = ModelColumns.of(LATENT)
    assert (float(columns.qk_head_dim), float(columns.v_head_dim), float(columns.rope_head_dim)) == (96, 64, 32)
    assert columns.num_moe_layers == 6
    assert columns.router_extra_parameters == 16


def test_what_norms_keep() -> None:
    kept = {norm: float(ModelColumns.of(replace(DENSE, norm=norm)).norm_statistics) for norm in Norm}
    assert kept == {norm: 1 if norm is Norm.RMS_NORM else 2 for norm in Norm}


def test_what_the_ends_hold_beside_the_tables() -> None:
    columns = ModelColumns.of(replace(EXPERTS, embedding_norm=True))
    assert columns.embedding_rows_parameters == EXPERTS.norm_parameters
    assert columns.final_parameters == EXPERTS.norm_parameters
