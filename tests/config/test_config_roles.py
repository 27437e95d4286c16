"""Roles are inferred from the modules that own the parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compressa.config import infer_roles, parameter_infos
from compressa.parameters import Role


class Tiny(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10)
        if tied:
            self.head.weight = self.embed.weight


def test_each_kind_of_parameter_has_its_role() -> None:
    assert infer_roles(Tiny(tied=False)) == {
        "embed.weight": Role.EMBEDDING,
        "attention.in_proj_weight": Role.WEIGHT,
        "attention.in_proj_bias": Role.BIAS,
        "attention.out_proj.weight": Role.WEIGHT,
        "attention.out_proj.bias": Role.BIAS,
        "norm.weight": Role.NORM,
        "norm.bias": Role.NORM,
        "head.weight": Role.OUTPUT,
        "head.bias": Role.BIAS,
    }


def test_a_tied_output_weight_is_an_embedding_and_there_once() -> None:
    roles = infer_roles(Tiny(tied=True))
    assert roles["embed.weight"] is Role.EMBEDDING
    assert "head.weight" not in roles
    assert Role.OUTPUT not in roles.values()


def test_a_tied_weight_is_an_embedding_under_whichever_name_comes_first() -> None:
    model = nn.ModuleDict({"head": nn.Linear(4, 10), "embed": nn.Embedding(10, 4)})
    model["head"].weight = model["embed"].weight
    assert infer_roles(model)["head.weight"] is Role.EMBEDDING


def test_the_only_weight_matrix_is_no_output() -> None:
    roles = infer_roles(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)))
    assert roles["0.weight"] is Role.WEIGHT


def test_the_last_linear_is_the_output_also_after_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 2))
    roles = infer_roles(model)
    assert [name for name, role in roles.items() if role is Role.OUTPUT] == ["3.weight"]


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(4),
        nn.RMSNorm(4),
        nn.GroupNorm(2, 4),
        nn.BatchNorm1d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_everything_in_a_norm_layer_is_norm(norm: nn.Module) -> None:
    assert set(infer_roles(nn.Sequential(norm)).values()) == {Role.NORM}


def test_a_norm_layer_of_one_s_own_is_known_by_its_name() -> None:
    class ScaleNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1))

    assert infer_roles(nn.Sequential(ScaleNorm())) == {"0.gain": Role.NORM}


def test_biases_of_recurrent_layers_are_biases() -> None:
    roles = infer_roles(nn.LSTM(2, 3))
    assert [name for name, role in roles.items() if role is Role.BIAS] == [
        "bias_ih_l0",
        "bias_hh_l0",
    ]


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].requires_grad_(False)
    assert infer_roles(model) == {"0.weight": Role.WEIGHT, "0.bias": Role.BIAS}


def test_parameter_infos_are_in_the_model_s_order() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, dtype=torch.float64))
    model[0].bias.requires_grad_(False)
    facts = [(p.index, p.name, p.shape, p.dtype, p.role) for p in parameter_infos(model)]
    assert facts == [
        (0, "0.weight", (3, 2), torch.float32, Role.WEIGHT),
        (1, "1.weight", (2, 3), torch.float64, Role.OUTPUT),
        (2, "1.bias", (2,), torch.float64, Role.BIAS),
    ]
