"""Which parameters keep the values that the model's own code gives them."""

import pytest
import torch
from torch import nn

from sweeper.models.initial_values import own_values, special_parameters


class Model(nn.Module):
    """One parameter of each kind; its attribute says what is expected."""

    def __init__(self) -> None:
        super().__init__()
        n = 400
        self.drawn_linear = nn.Linear(20, 20)
        self.drawn_normal = nn.Parameter(0.02 * torch.randn(n))
        self.drawn_truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(n), std=0.02))
        self.drawn_orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(20, 20)))
        self.drawn_unset = nn.Parameter(torch.empty(n))
        self.drawn_gain = nn.LayerNorm(n)
        self.kept_layer_scale = nn.Parameter(torch.full((n,), 1e-5))
        self.kept_zero_gain = nn.Parameter(torch.zeros(n))
        self.kept_decay = nn.Parameter(torch.arange(1.0, n + 1).log())
        self.kept_logit = nn.Parameter(torch.tensor(2.65))
        self.kept_state = nn.Parameter(0.1 * torch.randn(n))  # gates multiply it
        self.kept_off_centre = nn.Parameter(torch.rand(n))
        self.kept_heavy = nn.Parameter(torch.randn(n) * (torch.rand(n) < 0.02))
        self.drawn_padded = nn.Embedding(6, 20, padding_idx=1)
        self.drawn_bfloat16 = nn.Parameter(torch.randn(n, dtype=torch.bfloat16))
        self.kept_complex = nn.Parameter(torch.randn(n, dtype=torch.complex64))


INITS = {"drawn_gain.weight": "ones", "drawn_gain.bias": "zeros", "drawn_linear.bias": "zeros"}
INITS |= {"kept_zero_gain": "ones", "kept_layer_scale": "ones", "kept_state": "ones"}


def test_only_centred_draws_and_the_parameterizations_own_constants_are_drawn() -> None:
    names = [name for name, _ in Model().named_parameters()]
    kept = special_parameters(Model, {name: INITS.get(name, "normal") for name in names})
    assert kept == {name for name in names if name.startswith("kept")}


@pytest.mark.parametrize("width", [8, 32, 512])
def test_a_value_in_a_part_is_kept_at_any_width(width: int) -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates, self.fused = nn.LSTM(width, width), nn.Linear(width, 2 * width)
            with torch.no_grad():
                self.gates.bias_hh_l0[width : 2 * width].fill_(1.0)
                self.fused.weight[width:].zero_()

    names = [name for name, _ in Partial().named_parameters()]
    kept = special_parameters(Partial, dict.fromkeys(names, "normal"))
    assert kept == {"gates.bias_hh_l0", "fused.weight"}


def test_own_values_follow_from_the_seed_and_leave_the_generators_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (own_values(Model, seed)["drawn_normal"] for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_memory_that_nobody_wrote_is_told() -> None:
    values = own_values(Model, 0)
    assert values["drawn_unset"].isnan().all()
    assert not any(v.isnan().any() for name, v in values.items() if name != "drawn_unset")
