"""Dropout: its expectation, and the same masks in a batch, alone and after a resumption."""

from typing import Any

import pytest
import torch
from torch.func import functional_call, vmap

from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.models.scaled import Attention, Dropout, dropout_of
from sweeper.trial import Trial
from tests.engine.runs import assert_as_alone
from tests.engine.tiny_trials import points, tokens, tree
from tests.refusals import raises_config_error
from tests.specs import spec_of

P = 0.3


def driven(place: int = 0) -> Dropout:
    """As the engine has it."""
    module = Dropout(P)
    module.place = place
    return module


def masked(module: Dropout, seed: int, *shape: int) -> torch.Tensor:
    x = torch.ones(shape)
    out: torch.Tensor = functional_call(module, {"seed": torch.tensor(seed)}, (x,))
    return out


def test_the_expectation_is_the_input_and_the_share_is_p() -> None:
    """Binomial: a mean over n entries is off by (p (1 - p) / n)^1/2, five times that at most."""
    module, n = driven(), 100_000
    for seed in (0, 1, 2**62 + 5):
        y = masked(module, seed, 1000, 100)
        assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - P))]
        error = 5 * (P / (1 - P) / n) ** 0.5
        assert float(y.mean()) == pytest.approx(1, abs=error)
        dropped = (y == 0).double()
        for axis, count in ((0, 1000), (1, 100)):
            spread = float(dropped.mean(axis).std())
            assert spread == pytest.approx((P * (1 - P) / count) ** 0.5, rel=0.35)


def test_masks_of_steps_places_and_neighbours_are_independent() -> None:
    """Both drop an entry in p^2 of the cases."""
    mask = masked(driven(), 7, 400, 250) == 0
    both = {
        "another seed": masked(driven(), 8, 400, 250) == 0,
        "a far seed": masked(driven(), 7 + 2**40, 400, 250) == 0,
        "another place": masked(driven(1), 7, 400, 250) == 0,
        "the next entry": mask.flatten().roll(1).view(400, 250),
        "the next row": mask.roll(1, 0),
    }
    for name, other in both.items():
        error = 5 * (P**2 * (1 - P**2) / mask.numel()) ** 0.5
        assert float((mask & other).double().mean()) == pytest.approx(P**2, abs=error), name


def test_outside_of_training_it_does_nothing_and_outside_of_the_engine_it_is_torch_s() -> None:
    x = torch.randn(4, 8)
    assert dropout_of(0) is None
    assert torch.equal(driven().eval()(x), x)
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(x, P)
    torch.manual_seed(0)
    assert torch.equal(Dropout(P)(x), expected)


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none_is_refused(p: float) -> None:
    with raises_config_error("attention_dropout"):
        dropout_of(p, "attention_dropout")


@pytest.mark.parametrize("causal", [False, True])
def test_attention_s_is_the_fused_kernel_s_on_average(causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 6, 4, dtype=torch.float64)
    plain = Attention(4, 6, causal=causal)
    with_dropout = Attention(4, 6, causal=causal, dropout=driven())
    torch.testing.assert_close(with_dropout.eval()(q, k, v), plain(q, k, v))
    with_dropout.train()

    def drawn(seed: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(with_dropout, {"dropout.seed": seed}, (q, k, v))
        return out

    several = vmap(drawn)(torch.arange(4000))
    error = several.std(0) / 4000**0.5
    assert bool(((several.mean(0) - plain(q, k, v)).abs() <= 5 * error + 1e-12).all())


MODELS: dict[str, dict[str, Any]] = {
    "llama.Llama": {"dropout": P},
    "moe.MoE": {"dropout": P, "experts": 4, "granularity": 2, "shared": 1, "balance": 0.1},
}


def decoders(name: str) -> tuple[Trial, ...]:
    settings = tree("mup", steps=6)
    settings["model"] |= {"_target_": f"sweeper.models.{name}"} | MODELS[name]
    spec = spec_of(settings)
    return tuple(Trial(spec=spec, log2_hps=p, seed=i % 2) for i, p in enumerate(points("mup")))


@pytest.mark.parametrize("name", MODELS)
def test_decoders_train_in_a_batch_as_alone(name: str) -> None:
    batch, data = decoders(name), tokens()
    run = BatchedRun(BatchedTrials(trials=batch, corpus=data))
    assert run.program.seeds, "its seeds are the engine's"
    assert_as_alone(batch, data, alone=[1])
    assert not run.program.unsupported, "it is mapped, and no trial waits for another"


def test_steps_and_seeds_have_masks_of_their_own() -> None:
    batch, data = decoders("llama.Llama"), tokens()
    run, seen = BatchedRun(BatchedTrials(trials=batch, corpus=data)), set[int]()
    name = run.program.seeds[0]
    for _ in range(3):
        run.step()
        seen |= set(run.buffers[name].tolist())
    assert len(seen) == 3 * 2, "two seeds among three trials, three steps"


def test_a_resumed_run_has_the_masks_of_an_undisturbed_one() -> None:
    batched = BatchedTrials(trials=decoders("llama.Llama"), corpus=tokens())
    run = BatchedRun(batched)
    first = [run.step() for _ in range(3)]
    kept = {name: value.clone() for name, value in run.tensors().items()}
    expected = [run.step() for _ in range(3)]
    resumed = BatchedRun(batched)
    resumed.load(kept, resumed.slots, 3)
    losses = [resumed.step() for _ in range(3)]
    assert torch.equal(torch.stack(losses), torch.stack(expected)) and len(first) == 3
