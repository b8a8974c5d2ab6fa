"""The head's loss in Triton kernels: by Triton's interpreter where there is no GPU."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sweeper.models import loss

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [pytest.mark.gpu] * (not INTERPRETED)


@pytest.fixture
def kernels() -> Iterator[Callable[..., tuple[Tensor, ...]]]:
    from sweeper.models.loss_kernels import losses_and_gradients

    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield losses_and_gradients


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        ((2, 37, 150, 24), torch.float32, 1e-5),  # no size is a multiple of what a program takes
        ((1, 200, 70, 64), torch.float16, 2e-3),
        ((3, 130, 300, 256), torch.float16, 2e-3),
        ((1, 1, 2, 1), torch.float32, 1e-5),
    ],
)
def test_losses_and_gradients_are_torch_s(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    error: float,
    kernels: Callable[..., tuple[Tensor, ...]],
) -> None:
    error = error if INTERPRETED else 5e-3  # a GPU's products of float32 are rounded
    trials, tokens, classes, width = shape
    x, weight = torch.randn(trials, tokens, width), torch.randn(trials, classes, width) * 3
    x, weight = (t.to(dtype) / width**0.5 for t in (x, weight))
    targets, scale = torch.randint(classes, (trials, tokens)), torch.rand(trials) + 0.5
    means, *gradients = kernels(x, weight, targets, scale, True)
    wide = [t.double().requires_grad_() for t in (x, weight)]
    z = scale[:, None, None] * (wide[0] @ wide[1].mT)
    right = F.cross_entropy(z.mT, targets, reduction="none").mean(1)
    right.sum().backward()
    torch.testing.assert_close(means.double(), right, rtol=error, atol=error)
    for found, leaf in zip(gradients, wide, strict=True):
        assert leaf.grad is not None and found.dtype == torch.float32
        assert (found - leaf.grad).norm() <= error * leaf.grad.norm()
    assert torch.equal(kernels(x, weight, targets, scale, False)[0], means)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_trial_that_diverged_leaves_its_neighbours_alone(
    kernels: Callable[..., tuple[Tensor, ...]],
) -> None:
    x, weight, targets = torch.randn(3, 9, 8), torch.randn(3, 20, 8), torch.randint(20, (3, 9))
    right = kernels(x, weight, targets, torch.ones(3), True)
    x[1], weight[2, 4] = float("nan"), float("inf")
    broken = kernels(x, weight, targets, torch.ones(3), True)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(right, broken, strict=True))
    assert not broken[0][1:].isfinite().any()


def test_kernels_that_disagree_with_torch_are_not_used(
    kernels: Callable[..., tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interpreter has no products in bfloat16.
    half = lambda x, w, *rest, **train: kernels(x.half(), w.half(), *rest, **train)  # noqa: E731
    monkeypatch.setattr("sweeper.models.loss_kernels.losses_and_gradients", half)
    device = torch.device(DEVICE)
    assert loss._kernels.__wrapped__(device, 24) is half and loss.take_refusal() is None
    wrong = lambda *args, **train: [2 * part for part in half(*args, **train)]  # noqa: E731
    monkeypatch.setattr("sweeper.models.loss_kernels.losses_and_gradients", wrong)
    assert loss._kernels.__wrapped__(device, 24) is None
    assert "disagree with torch's own operations" in str(loss.take_refusal())
