"""The effective theory's tables."""

from dataclasses import replace
from math import log2
from typing import Any

import pytest

from sweeper.models.vit import ViT
from sweeper.registry import build_plugin
from sweeper.scaling.effective_theory import EffectiveTheory
from sweeper.scaling.gamma import named_by_user
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, ScaledOp, Update
from tests.refusals import raises_config_error
from tests.scaling.weights import weight
from tests.specs import specs_between

ETA = {"eta": 1.0}
N, PATCH, OUT, M = 768, 588, 1000, 4
"""Width, patch size, classes and FFN ratio; N as in the paper's Vision Transformers."""


def spec(name: str, role: Role, fan_in: int, fan_out: int, **more: object) -> ParamSpec:
    lookup = role not in (Role.HIDDEN, Role.READOUT)
    fields = {"name": name, "width": N, "base_width": N, "lookup": lookup} | more
    return weight(role, fan_out, fan_in, **fields)


PARTS = {
    "patch": spec("patch.weight", Role.EMBEDDING, PATCH, N, lookup=False),
    "word": spec("embedding.weight", Role.EMBEDDING, 32000, N),
    "qkv": spec("layers.0.qkv.weight", Role.HIDDEN, N, 3 * N),
    "w": spec("layers.0.fc1.weight", Role.HIDDEN, N, M * N),
    "x": spec("layers.0.fc2.weight", Role.HIDDEN, M * N, N),
    "head": spec("head.weight", Role.READOUT, N, OUT),
    "bias": spec("head.bias", Role.VECTOR, 1, OUT, init="zeros"),
}


def scales(update: Update, **fields: float | None) -> dict[str, ParamScale]:
    return {n: EffectiveTheory(**fields).scale(p, ETA, update) for n, p in PARTS.items()}  # type: ignore[arg-type]


@pytest.mark.parametrize("s", [0.0, 0.5, 1.0])
def test_the_tables(s: float) -> None:
    """AdamW's rates (1.108)-(1.116), M left out as the authors did, and SGD's (1.99)-(1.107).

    Both with footnote 26; variances (1.25)-(1.33), the head's as in footnote 8.
    """
    n = N ** (-(1 - s) / 2)
    adamw = {
        "patch": n / PATCH, "word": n, "qkv": n / N, "w": n / N, "x": n / N,
        "head": 1 / (N * OUT**0.5), "bias": OUT**-0.5,
    }  # fmt: skip
    n = N**s
    sgd = {
        "patch": n / PATCH, "word": n, "qkv": n / N, "w": n / N, "x": n / (M * N),
        "head": 1 / N, "bias": 1.0,
    }  # fmt: skip
    variance = {
        "patch": 1 / PATCH, "word": 1.0, "qkv": 1 / N, "w": 1 / N, "x": 1 / (M * N),
        "head": N ** -(1 + s), "bias": 1.0,
    }  # fmt: skip
    for update, expected in ((Update.SIGN, adamw), (Update.GRADIENT, sgd)):
        lrs = {name: scale.lr for name, scale in scales(update, s=s).items()}
        assert lrs == pytest.approx(expected, rel=1e-12)
    drawn = {name: scale.init_std**2 for name, scale in scales(Update.SIGN, s=s).items()}
    assert drawn == pytest.approx(variance, rel=1e-12)
    # Four times as wide, eps follows the gradient, which the head's outputs alone decide there.
    wider = {name: replace(part, width=4 * N) for name, part in PARTS.items()}
    eps = {name: EffectiveTheory(s=s).scale(part, ETA).eps for name, part in wider.items()}
    growth = dict.fromkeys(PARTS, 4 ** (-(1 + s) / 2)) | {"head": 1.0, "bias": 1.0}
    assert eps == pytest.approx(growth, rel=1e-12)


def test_adamw_s_table_with_m() -> None:
    by_name = scales(Update.SIGN, s=0.0, ffn_multiplier=float(M))
    assert by_name["w"].lr == pytest.approx(1 / (N * (M * N) ** 0.5))
    assert by_name["x"].lr == pytest.approx(1 / (M * N * N**0.5))
    assert by_name["qkv"].lr == pytest.approx(N**-1.5)


def test_one_rate_is_what_the_strategies_are_compared_with() -> None:
    for update in Update:
        assert {(scale.lr, scale.eps) for scale in scales(update, s=None).values()} == {(1.0, 1.0)}
    neural_tangent, one_rate = scales(Update.SIGN, s=0.0), scales(Update.SIGN, s=None)
    for name, scale in one_rate.items():
        assert scale.init_std == neural_tangent[name].init_std


def test_a_tied_output_is_rescaled_but_under_one_rate() -> None:
    """Footnote 8 and Table II 2 E."""
    geometry = {"fan_in": N, "built_in": 2.0}
    op = ScaledOp(name="", kind="tied_readout", geometry=geometry)
    for s, rescale in ((None, 1.0), (0.0, N**-0.5), (1.0, 1 / N)):
        assert EffectiveTheory(s=s).tied_output(op, ETA) == pytest.approx(rescale / 2)


CONSTANTS = {
    "position.weight": 0.02**2,
    "layers.*.attention.qkv.weight": 1 / 2,
    "layers.*.attention.out.weight": 1 / 3,
    "layers.*.ffn.up.weight": 2 / 5,
    "layers.*.ffn.down.weight": 8 / 5,
}
"""II.1.C; C of patches and head is 1."""


def test_the_vision_transformer_begins_and_steps_as_in_the_paper_s_table() -> None:
    """II.1.C, and Table II 1 E, neural-tangent: the numbers at n = n_patch = 768, 1000 classes."""

    def build(width: int, depth: int) -> ViT:
        sizes: dict[str, Any] = {"classes": 1000, "input_shape": (3, 32, 32), "head_size": 64}
        return ViT(width=width, depth=depth, patch_size=16, head_bias=True, **sizes)

    theory = EffectiveTheory(s=0.0, constants=CONSTANTS, decay="scaled")
    specs = named_by_user(tuple(specs_between(build, base=(64, 2), target=(N, 2))), theory)
    by_name = {spec.name: theory.scale(spec, {"eta": 2.0}) for spec in specs}
    table = {
        "patch.weight": (768**-0.5, 768**-1 * N**-0.5),
        "position.weight": (0.02, N**-0.5),
        "layers.1.attention.qkv.weight": ((1 / 2 / N) ** 0.5, N**-1.5),
        "layers.0.attention.out.weight": ((1 / 3 / N) ** 0.5, N**-1.5),
        "layers.0.ffn.up.weight": ((2 / 5 / N) ** 0.5, N**-1.5),
        "layers.0.ffn.down.weight": ((8 / 5 / (4 * N)) ** 0.5, N**-1.5),
        "head.weight": (N**-0.5, N**-1 * 1000**-0.5),
        "head_bias": (None, 1000**-0.5),
    }
    for name, (std, lr) in table.items():
        assert by_name[name].lr == pytest.approx(lr, rel=1e-12), name
        if std is not None:
            assert by_name[name].init_std == pytest.approx(std, rel=1e-12), name
        # The share that a step removes is eta's alone; the head's bias has none (II.1.D).
        assert by_name[name].weight_decay == (0.0 if name == "head_bias" else 2.0)


@pytest.mark.parametrize(
    ("constants", "key", "value"),
    [
        ({"position.weight": -1.0}, "constants.position.weight", -1.0),
        ({"position.weight": "x"}, "constants.position.weight", "x"),
        ({"positions.*": 0.5}, "constants.positions.*", "positions.*"),
        ({"layers.*": 0.5, "*.qkv.weight": 1.0}, "constants.*.qkv.weight", "*.qkv.weight"),
    ],
)
def test_what_is_no_constant_is_refused(constants: dict[str, Any], key: str, value: object) -> None:
    def build(width: int, depth: int) -> ViT:
        return ViT(width=width, depth=depth, classes=4, input_shape=(8, 8))

    with raises_config_error(key, value):
        theory = EffectiveTheory(constants=constants)
        named_by_user(tuple(specs_between(build, base=(16, 1), target=(32, 1))), theory)


def test_the_authors_optimum() -> None:
    """Section II 1 E: lr 20 is 0.94e-3 for the blocks (erratum E16, docs/papers.md)."""
    assert 20 * scales(Update.SIGN, s=0.0)["qkv"].lr == pytest.approx(0.94e-3, rel=0.005)


def test_other_strategies_are_neither_mup_nor_the_standard_one() -> None:
    """Erratum E17: "neural-tangent" (s = 0) does not train as ntk does."""
    ntk = build_plugin({"_target_": "sweeper.scaling.relative.Ntk"})
    standard = build_plugin({"_target_": "sweeper.scaling.relative.Standard", "alignment": "full"})
    ones = dict.fromkeys(standard.hyperparameters, 1.0)
    hidden = PARTS["qkv"]
    wide = replace(hidden, fan_in=4 * N, fan_out=12 * N, width=4 * N)
    for rules, exponent in ((ntk, -1.0), (standard, -1.0), (EffectiveTheory(s=0.0), -1.5)):
        large, base = rules.scale(wide, ones), rules.scale(hidden, ones)
        assert log2(large.lr * large.multiplier / base.lr) / 2 == pytest.approx(exponent)


def test_what_the_theory_is_not_of_is_refused() -> None:
    for fields, key in (({"s": 1.5}, "s"), ({"ffn_multiplier": 0.0}, "ffn_multiplier")):
        with raises_config_error(key):
            EffectiveTheory(**fields)
    with raises_config_error("s", 0.5):
        EffectiveTheory().scale(PARTS["qkv"], ETA, Update.ORTHOGONAL)
