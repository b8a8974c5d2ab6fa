"""Measured changes of a layer's output: which printed rules keep them (errata: docs/papers.md)."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import log2

import pytest
import torch
from torch import Tensor

from sweeper.scaling.relative import STANDARD, exponents
from sweeper.scaling.spec import ParamSpec, Role, Update
from sweeper.scaling.spectral import RULES, Spectral, SpectralMup
from tests.refusals import raises_config_error
from tests.scaling.weights import weight

TABLE = """
 256 x  256 | .286 | .286 | 4.58 | .995 | .995 | 3.2
4096 x 4096 | .280 | .280 | 17.9 | .991 | .991 | 12.7
1024 x 4096 | .283 | .566 | 18.1 | 1.00 | 2.00 | 25.6
4096 x 1024 | .278 | .139 | 8.9  | .983 | .983 | 6.3
  16 x 4096 | .284 | 4.51 | 18.1 | .997 | 15.9 | 204
"""
"""RMS by which a step moves a layer [d_out x d_in], on the 8 inputs that its gradient is from."""
COLUMNS = [
    ("inverse_fan_in", Update.SIGN),
    ("inverse_root_product", Update.SIGN),
    ("inverse_root_fan_in", Update.SIGN),
    ("root_ratio", Update.ORTHOGONAL),
    ("root_ratio_floored", Update.ORTHOGONAL),
    ("root_max", Update.ORTHOGONAL),
]
Shape = tuple[int, int]
BATCH = 8
ONES = dict.fromkeys(Spectral.hyperparameters, 1.0)


def table() -> dict[Shape, tuple[float, ...]]:
    rows = {}
    for line in TABLE.strip().splitlines():
        shape, *row = line.split("|")
        d_out, d_in = (int(n) for n in shape.split("x"))
        rows[d_out, d_in] = tuple(float(n) for n in row)
    return rows


@cache
def factors(shape: Shape, batch: int) -> tuple[Tensor, Tensor]:
    """The weight's gradient as a product: [d_out, batch] of the output's and the inputs' own."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(shape[0], batch, generator=generator),
        torch.randn(shape[1], batch, generator=generator),
    )


def sign(d: Tensor, x: Tensor) -> Tensor:
    return torch.sign(d @ x.T)


def orthogonal(d: Tensor, x: Tensor) -> Tensor:
    """U V^T of the gradient's singular vectors, which Muon's iteration converges to."""
    (q, r), (p, s) = torch.linalg.qr(d), torch.linalg.qr(x)
    u, _, vt = torch.linalg.svd(r @ s.T)
    return q @ (u @ vt) @ p.T


def normalized(d: Tensor, x: Tensor) -> Tensor:
    return (d @ x.T) / torch.linalg.norm(d @ x.T)


UPDATES = {Update.SIGN: sign, Update.ORTHOGONAL: orthogonal, Update.NORMALIZED: normalized}


@cache
def moved(update: Update, shape: Shape, batch: int = BATCH) -> float:
    """RMS of (update x input), on the gradient's own inputs."""
    d, x = factors(shape, batch)
    return float((UPDATES[update](d, x) @ x).square().mean().sqrt())


def factor(rule: str, shape: Shape, update: Update) -> float:
    return Spectral(rule=rule).scale(weight(Role.HIDDEN, *shape), ONES, update).lr  # type: ignore[arg-type]


@pytest.mark.parametrize("column", range(6), ids=[rule for rule, _ in COLUMNS])
@pytest.mark.parametrize("shape", table(), ids=str)
def test_the_table(shape: Shape, column: int) -> None:
    rule, update = COLUMNS[column]
    moves = factor(rule, shape, update) * moved(update, shape)
    assert moves == pytest.approx(table()[shape][column], rel=0.04)


@pytest.mark.parametrize("update", UPDATES)
def test_the_matched_rule_moves_every_shape_alike(update: Update) -> None:
    """Frobenius-normalised updates of one example: with more, the norm is shared among them."""
    batch = 1 if update is Update.NORMALIZED else BATCH
    moves = [factor("matched", s, update) * moved(update, s, batch) for s in table()]
    assert max(moves) / min(moves) < 1.15


def test_without_alignment_the_lecture_s_rule_is_right() -> None:
    """Erratum E15: gamma / sqrt(d_in), on inputs that the update has never seen."""
    moves = []
    for shape in ((256, 256), (1024, 1024), (256, 4096)):
        fresh = torch.randn(shape[1], 64, generator=torch.Generator().manual_seed(1))
        rate = factor("inverse_root_fan_in", shape, Update.SIGN)
        moves.append(float((rate * sign(*factors(shape, BATCH)) @ fresh).square().mean().sqrt()))
    assert moves == pytest.approx([1.0] * 3, rel=0.1)


def test_the_norm_of_the_notes_is_frobenius_s() -> None:
    """Erratum E13: the root mean square of all entries bounds no output; the operator norm does."""
    generator = torch.Generator().manual_seed(0)
    for d_out, d_in in ((8, 8), (32, 8), (8, 32)):
        a = torch.randn(d_out, d_in, generator=generator, dtype=torch.float64)
        printed = a.square().mean(0).mean().sqrt()
        torch.testing.assert_close(printed, torch.linalg.norm(a) / (d_out * d_in) ** 0.5)
        _, sigma, vt = torch.linalg.svd(a)
        gain = (a @ vt[0]).square().mean().sqrt() / vt[0].square().mean().sqrt()
        torch.testing.assert_close(gain, (d_in / d_out) ** 0.5 * sigma[0])
        assert gain > printed


def test_a_gradient_sums_over_the_batch_alone() -> None:
    """Erratum E14: its entries have an RMS of sqrt(batch) at every fan-in."""
    for batch, shape in ((16, (256, 64)), (16, (256, 1024)), (256, (256, 1024))):
        d, x = factors(shape, batch)
        assert float((d @ x.T).square().mean().sqrt()) == pytest.approx(batch**0.5, rel=0.15)


def test_for_adam_the_matched_rule_is_the_standard_parameterization_with_full_alignment() -> None:
    for update in (Update.SIGN, Update.PARAMETER):
        small, large = (factor("matched", (n, n), update) for n in (64, 256))
        assert log2(small / large) / 2 == exponents(STANDARD, Role.HIDDEN, update).c


def test_rows_of_a_table_move_by_one() -> None:
    spec = weight(Role.EMBEDDING, 64, 50, (16, 50), lookup=True)
    for rule in ("matched", *RULES):
        assert Spectral(rule=rule).scale(spec, ONES, Update.ORTHOGONAL).lr == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_muon_s_leaves_the_readout_to_adam_s(rule: str) -> None:
    """Muon trains hidden matrices alone: sqrt(d_out / d_in) is no rate for Adam's readout."""
    spec = weight(Role.READOUT, 16, 64, (16, 16))
    adam = Spectral(rule=rule).scale(spec, ONES, Update.SIGN).lr  # type: ignore[arg-type]
    assert adam == (1 / 64 if rule.startswith(("root", "inverse_fan")) else RULES[rule](64, 16))
    hidden = Spectral(rule=rule).scale(replace(spec, role=Role.HIDDEN), ONES, Update.ORTHOGONAL)  # type: ignore[arg-type]
    assert hidden.lr == RULES[rule](64, 16)


def test_no_rule_bounds_a_raw_gradient() -> None:
    with raises_config_error("rule", "matched"):
        factor("matched", (8, 8), Update.GRADIENT)


# How far a step of Muon moves the logits, through a readout of the standard init and of muP's.


BASE, CLASSES, BATCH = 64, 8, 4


def spec(role: Role, width: int) -> ParamSpec:
    rows = CLASSES if role is Role.READOUT else width
    base = CLASSES if role is Role.READOUT else BASE
    return weight(role, rows, width, (base, BASE), width=width, base_width=BASE)


def logits_moved(made: Spectral, width: int) -> float:
    """RMS of the readout of what one orthogonalised step adds to the last activations.

    The gradient of the hidden weights comes through the readout, from any errors of the logits.
    """
    hidden, readout = (
        made.scale(spec(role, width), ONES, update)
        for role, update in ((Role.HIDDEN, Update.ORTHOGONAL), (Role.READOUT, Update.SIGN))
    )
    generator = torch.Generator().manual_seed(width)
    head = torch.randn(CLASSES, width, generator=generator) * readout.init_std
    inputs = torch.randn(width, BATCH, generator=generator)
    errors = torch.randn(CLASSES, BATCH, generator=generator)
    u, _, v = torch.linalg.svd(head.T @ errors @ inputs.T, full_matrices=False)
    step = hidden.lr * u[:, :BATCH] @ v[:BATCH]
    return float((head @ step @ inputs).square().mean().sqrt())


def test_logits_move_alike_at_every_width_with_the_readout_of_mup() -> None:
    for made, slope in ((Spectral(), 0.5), (SpectralMup(), 0.0)):
        small, large = logits_moved(made, 64), logits_moved(made, 1024)
        assert log2(large / small) / 4 == pytest.approx(slope, abs=0.06)


def test_only_the_readout_s_start_differs_and_nothing_at_the_base() -> None:
    for role, width in product(Role, (BASE, 4 * BASE)):
        for update in (Update.SIGN, Update.ORTHOGONAL):
            at_width = spec(role, width)
            usual = Spectral().scale(at_width, ONES, update)
            smaller = role is Role.READOUT and width > BASE
            want = replace(usual, init_std=1 / 32) if smaller else usual
            assert SpectralMup().scale(at_width, ONES, update) == want
