from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from sweeper.check.recursion import _derivative, gelu_averages, kernel_rows
from sweeper.data.arrays import ArrayCorpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.kernels import measure_kernels
from sweeper.errors import ConfigError
from sweeper.trial import Log2Hps, Trial
from tests.models.arrays import images
from tests.specs import spec_of

THEORY = {"_target_": "sweeper.scaling.effective_theory.EffectiveTheory", "s": 0.0}
MUP = {"_target_": "sweeper.scaling.relative.MuP"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> ArrayCorpus:
    return images(tmp_path_factory.mktemp("images"))


def trial(
    pictures: ArrayCorpus, seed: int, rules: dict[str, object] = THEORY, **model: int | bool | str
) -> Trial:
    target = {"_target_": "sweeper.models.vit.ViT", "width": 32, "depth": 1, **model}
    tree = {"parameterization": rules, "model": target, "data": pictures.identity()}
    return Trial(spec=spec_of(tree), log2_hps=Log2Hps({"eta": -7.0}), seed=seed)


def test_averages_of_gelu_are_those_of_its_closed_forms() -> None:
    # E[gelu^2] and E[gelu'^2] as unit scaling has them; E[gelu] = 1/(2 sqrt pi), E[gelu'] = 1/2.
    values, slopes = gelu_averages(np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert values[0, 0] == pytest.approx(1.5335**-2, rel=1e-3)
    assert slopes[0, 0] == pytest.approx(1.4812**-2, rel=1e-3)
    assert values[0, 1] == pytest.approx(1 / (4 * np.pi), rel=1e-6)
    assert slopes[0, 1] == pytest.approx(0.25, rel=1e-6)
    # And elsewhere as numbers drawn have them.
    covariance = np.array([[2.0, -0.6], [-0.6, 0.5]])
    pairs = np.random.default_rng(0).multivariate_normal([0, 0], covariance, 400_000)
    w = torch.from_numpy(pairs).requires_grad_()
    gelu = torch.nn.functional.gelu(w)
    gelu.sum().backward()
    for average, drawn in zip(gelu_averages(covariance), (gelu.detach(), w.grad), strict=True):
        assert drawn is not None
        np.testing.assert_allclose(average, (drawn.T @ drawn / len(drawn)).numpy(), atol=0.01)


def test_the_softmax_s_derivative_is_autograd_s() -> None:
    generator = np.random.default_rng(1)
    logits = torch.from_numpy(generator.standard_normal((3, 3)))
    f, g = (x @ x.T for x in generator.standard_normal((2, 3, 3)))
    softmax = partial(torch.softmax, dim=-1)
    jacobian = np.array([torch.autograd.functional.jacobian(softmax, row) for row in logits])
    expected = np.einsum("iab,jcd,ac,bd->ij", jacobian, jacobian, f, g)
    derivative = _derivative(logits.softmax(-1).numpy()[None], f, g)
    np.testing.assert_allclose(derivative, expected, rtol=1e-10)


def test_a_tangent_kernel_is_that_of_the_whole_jacobian(
    pictures: ArrayCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An average over random steps, against the sum over parameters written out (1.90)."""
    monkeypatch.setattr("sweeper.engine.kernels.DIRECTIONS", 64)
    drawn = trial(pictures, 0, head_bias=True)
    measurement = measure_kernels(drawn, pictures)
    run = BatchedRun(BatchedTrials(trials=(drawn,), corpus=pictures))
    params = {name: value[0].detach() for name, value in run.params.items()}
    buffers = {name: value[0] for name, value in run.buffers.items()}
    x = torch.from_numpy(pictures.batch(0, 0, 2, 1)[0])
    with sdpa_kernel(SDPBackend.MATH):
        jacobian = jacrev(lambda p: functional_call(run.program.model, {**p, **buffers}, (x,)))(
            params
        )
    # SGD's rates at s = 0 (1.99)-(1.107).
    rates = {"patch": 1 / 16, "position": 1.0, "qkv": 1 / 32, "out": 1 / 32}
    rates |= {"up": 1 / 32, "down": 1 / 128, "head": 1 / 32, "head_bias": 1.0}
    expected = 0.0
    for name, part in jacobian.items():
        key = name.removesuffix(".weight").rpartition(".")[2]
        assert measurement.network.bias_rate == 1.0
        expected += rates[key] * float(part.double().square().sum()) / 8  # 2 images, 4 classes
    assert measurement.blocks[-1].tangent[0] == pytest.approx(expected, rel=0.2)
    # The first block's is no draw (footnote 27).
    stem, theory = measurement.blocks[0].tangent[0], kernel_rows([measurement])[6]
    assert (theory.block, theory.kernel, theory.pair) == ("stem", "tangent", "same")
    assert stem == pytest.approx(theory.theory, rel=0.2)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(THEORY, id="effective theory"),
        pytest.param(MUP, id="muP", marks=pytest.mark.long),
    ],
)
def test_the_recursions_are_what_wide_models_draw(
    pictures: ArrayCorpus, rules: dict[str, object]
) -> None:
    draws = [
        measure_kernels(trial(pictures, seed, rules, width=256, head_size=128), pictures)
        for seed in range(2)
    ]
    rows = kernel_rows(draws)
    assert [row.block for row in rows if row.kernel == "tangent" and row.pair == "same"] == [
        *("stem", "layers.0.attention", "layers.0.ffn", "head")
    ]
    for row in rows:
        # Off the diagonal kernels are near 0: what is compared is their own scale.
        same = next(
            r.theory for r in rows if (r.block, r.kernel, r.pair) == (row.block, row.kernel, "same")
        )
        # A head has four outputs to average over and no random steps: chi square of some eight.
        away = {"preactivation": 1.5, "tangent": 0.4}[row.kernel] if row.block == "head" else 0.12
        assert row.measured.value == pytest.approx(row.theory, abs=away * same), row


def test_other_models_are_refused(pictures: ArrayCorpus) -> None:
    umup: dict[str, object] = {"_target_": "sweeper.scaling.umup.UMuP"}
    with pytest.raises(ConfigError, match="unit scaling"):
        measure_kernels(trial(pictures, 0, umup), pictures)
