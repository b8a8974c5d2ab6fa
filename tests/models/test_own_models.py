"""The package's own models: sizes, causality, positions, experts, patches, unit scale."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap

from sweeper.classifier.classify import scaled_ops
from sweeper.data.spans import Corruption, SpanCorpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.prepare import prepare
from sweeper.engine.train import train
from sweeper.models.encoder_decoder import EncoderDecoder
from sweeper.models.llama import rotary_table, rotate
from sweeper.models.moe import Experts, Routing
from sweeper.models.scaled import Attention, Dropout, dropout_of
from sweeper.models.vit import normalized, patches
from sweeper.records import from_json, to_json
from sweeper.trial import Result, Trial
from tests.engine.runs import assert_as_alone
from tests.engine.tiny_trials import points, tokens, tree, trial
from tests.models.arrays import images, trials
from tests.models.own import at, drawn, made, rms, scales_at_start
from tests.refusals import raises_config_error
from tests.specs import spec_of, specs_between


@pytest.mark.parametrize("unit", [False, True])
def test_no_position_sees_what_follows(unit: bool) -> None:
    """The gradient of one position's logits reaches no later token."""
    model = drawn("llama", unit=unit)
    embedded: list[torch.Tensor] = []
    model.embedding.register_forward_hook(lambda m, i, out: embedded.append(out))
    logits = model(torch.randint(32, (1, 8)))
    gradient = torch.autograd.grad(logits[0, 5].sum(), embedded[0])[0][0]
    assert (gradient[:6].abs().sum(-1) > 0).all()
    assert (gradient[6:] == 0).all()


def test_rotation_keeps_lengths_and_sees_distances_only() -> None:
    cos, sin = rotary_table(16, 8)
    q, k = torch.randn(8).expand(16, 8), torch.randn(8).expand(16, 8)
    turned = rotate(q, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    scores = turned @ rotate(k, cos, sin).T
    torch.testing.assert_close(scores.diagonal(3), scores.diagonal(3)[:1].expand(13))


def logits(model: EncoderDecoder, tokens: Tensor, targets: Tensor) -> Tensor:
    seen: list[Tensor] = []
    handle = model.loss.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(tokens, targets)
    handle.remove()
    return seen[0].detach()


@pytest.mark.parametrize("tie", [True, False])
def test_a_position_sees_the_whole_input_and_the_targets_before_it(tie: bool) -> None:
    model = drawn("encoder_decoder", tie=tie)
    tokens, targets = torch.randint(32, (1, 6)), torch.randint(32, (1, 8))
    before = logits(model, tokens, targets)
    later = targets.clone()
    later[0, 4] = (later[0, 4] + 1) % 32
    changed = (logits(model, tokens, later) - before).abs().amax(-1)[0] > 1e-6
    assert changed.tolist() == [False] * 5 + [True] * 3
    for place in (0, 5):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % 32
        assert ((logits(model, other, targets) - before).abs().amax(-1) > 1e-6).all()


def test_roles() -> None:
    specs = {s.name: s for s in specs_between(at("encoder_decoder"), base=(32, 1), target=(64, 2))}
    hidden = {name for name, spec in specs.items() if spec.role == "hidden"}
    assert {spec.role for name, spec in specs.items() if name not in hidden} == {"embedding"}
    assert all(spec.residual == (name in hidden) for name, spec in specs.items())
    mixed = specs["decoder_layers.0.mixed.key_value.weight"]
    assert (mixed.fan_in, mixed.fan_out, mixed.base_fan_in) == (64, 128, 32)
    assert specs["embedding.weight"].readout_fan_in == 64
    untied = specs_between(at("encoder_decoder", tie=False), base=(32, 1), target=(64, 1))
    assert {s.name: s.role for s in untied}["head.weight"] == "readout"


def test_the_tied_head_has_the_theory_s_factor() -> None:
    """n^-(1+s)/2 with s = 1/2 at width 32 (footnote 8)."""
    how = Corruption(rate=0.3, mean_span=2.0, target="whole", sentinels=2)
    settings = tree("effective_theory")
    settings["model"]["_target_"] = "sweeper.models.encoder_decoder.EncoderDecoder"
    settings["data"] = SpanCorpus(tokens=tokens(), corruption=how).identity()
    prepared = prepare(spec_of(settings))
    [op] = [op for op in prepared.scaled_ops if op.kind == "tied_readout"]
    hps = prepared.complete(trial("effective_theory").hps)
    assert prepared.parameterization.scale_op(op, hps)["output"] == pytest.approx(32**-0.75)


ROUTER = "layers.0.experts.router.weight"
UP, DOWN = "layers.0.experts.up_gate.weight", "layers.0.experts.down.weight"


def moe_tree(
    parameterization: str, base: int = 16, train: dict[str, Any] | None = None, **model: Any
) -> Any:
    config = tree(parameterization, **(train or {}))
    sizes = {"width": 32, "depth": 1, "head_size": 8, "experts": 4, "top_k": 2}
    roles = ["*.router.weight=hidden"]
    target = "sweeper.models.moe.MoE"
    config["model"] = {"_target_": target, **sizes, "roles": roles, **model}
    config["base"] = {"width": base, "depth": 1}
    return config


def test_experts_are_feed_forward_layers_of_the_tokens_that_chose_them() -> None:
    model = drawn("moe", granularity=2, shared=1)
    layer: Experts = model.layers[0].experts
    layer.routing.bias.copy_(torch.linspace(-0.2, 0.2, 8))
    x = torch.randn(2, 3, 16)
    out = layer.eval()(x)
    assert layer.shared is not None
    for token, mixed, shared in zip(
        x.view(6, 16), out.view(6, 16), layer.shared(x).view(6, 16), strict=True
    ):
        gates = torch.sigmoid(layer.router.weight @ token)
        expected = shared.clone()
        for e in (gates + layer.routing.bias).argsort(descending=True)[:4]:
            up, gate = (layer.up_gate.weight[e] @ token).chunk(2)
            expected += gates[e] * (layer.down.weight[e] @ (up * F.silu(gate))) / 4
        torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-5)


def test_biases_move_by_what_a_load_lacks_in_training_alone() -> None:
    """Two of four experts, and all tokens want the first two: loads 1, 1, 0, 0."""
    routing = Routing(4, 2, 0.1)
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(5, 4)
    gates, chosen = routing(logits)
    assert chosen.tolist() == [[0, 1]] * 5
    torch.testing.assert_close(gates, torch.sigmoid(logits[:, :2]))
    torch.testing.assert_close(routing.bias, torch.tensor([-0.05, -0.05, 0.05, 0.05]))
    routing.eval()(logits)
    torch.testing.assert_close(routing.bias, torch.tensor([-0.05, -0.05, 0.05, 0.05]))


@pytest.mark.parametrize(
    "parameterization", ["mup", "mean_field", "umup", "spectral", "effective_theory"]
)
def test_the_rules_of_granularity(parameterization: str) -> None:
    """arXiv:2601.20205, Table 1: of the second matrices init 1/alpha_ffn, rate 1/alpha_ffn.

    Cut in four, alpha_ffn is a quarter. What a parameterization writes as a multiplier counts to
    both.
    """
    numbers = []
    for granularity in (1, 4):
        prepared = prepare(spec_of(moe_tree(parameterization, granularity=granularity)))
        hps = prepared.complete(
            Trial(spec=prepared.spec, log2_hps=points(parameterization)[0], seed=0).hps
        )
        numbers.append({s.name: prepared.prescription(s, hps) for s in prepared.specs})
    for name, factor in {DOWN: 4, UP: 1, ROUTER: 1}.items():
        whole, cut = (by_name[name] for by_name in numbers)
        more = cut.multiplier / whole.multiplier
        assert more * cut.lr / whole.lr == pytest.approx(factor)
        assert more * cut.init_std / whole.init_std == pytest.approx(factor)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *[("llama", {"width": size}) for size in (20, 0)],
    *[("llama", {"head_size": size, "width": 9}) for size in (3, 0)],
    *[("llama", {"ffn_ratio": ratio}) for ratio in (2.7, -1.0)],
    *[("moe", {"width": 20}), ("moe", {"head_size": 3}), ("moe", {"experts": 0})],
    *[("moe", {"top_k": 5}), ("moe", {"granularity": 3}), ("moe", {"shared": -1})],
    *[("moe", {"balance": 2.0}), ("moe", {"ffn_ratio": 0.3})],
    *[("vit", {"width": 20}), ("vit", {"ffn_ratio": 0}), ("vit", {"input_shape": (64,)})],
    *[("vit", {"patch_size": size}) for size in (3, 0)],
    *[("encoder_decoder", {"width": 20}), ("encoder_decoder", {"ffn_ratio": 0})],
    *[(kind, {"depth": 0}) for kind in ("llama", "vit", "mlp", "encoder_decoder")],
    ("mlp", {"width": 0}),
]


@pytest.mark.parametrize(("kind", "more"), REFUSED)
def test_sizes_that_cannot_be_built_are_refused(kind: str, more: dict[str, Any]) -> None:
    with raises_config_error(next(iter(more))):
        made(kind, **more)


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "vit": (
        {"width": 768, "classes": 1000, "input_shape": (3, 224, 224)}
        | {"patch_size": 16, "head_bias": True},
        768 * 768 + 196 * 768 + 768**2 * 12 * 12 + 768 * 1000 + 1000,
    ),
    "encoder_decoder": (
        {"width": 1024, "classes": 50265, "source_len": 514, "target_len": 514},
        50265 * 1024 + 2 * 514 * 1024 + 1024**2 * (4 + 2 * 4 + 4 + 4 + 2 * 4) * 12,
    ),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_papers_models_have_as_many_parameters(kind: str) -> None:
    sizes, count = PUBLISHED[kind]
    with torch.device("meta"):
        model = made(kind, depth=12, head_size=64, **sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


MODEL = {"_target_": "sweeper.models.vit.ViT", "head_size": 8}


def test_the_head_s_bias_is_added_to_the_logits() -> None:
    model, image = drawn("vit", head_bias=True), torch.randn(2, 8, 8)
    out = model(image)
    assert model.head_bias is not None
    model.head_bias.data += torch.arange(10.0)
    torch.testing.assert_close(model(image), out + torch.arange(10.0))


def test_top_1_accuracy_is_what_the_logits_say(tmp_path: Path) -> None:
    data = images(tmp_path)
    batch = trials("mup", MODEL, data, steps=4, batch_size=20)
    run = BatchedRun(BatchedTrials(trials=tuple(batch), corpus=data))
    for _ in range(4):
        run.step()
    _, accuracies = run.heldout()
    assert accuracies is not None and accuracies.shape == (len(batch),)
    model = run.program.model
    for i in range(len(batch)):
        tensors = {name: value[i] for name, value in {**run.params, **run.buffers}.items()}
        hits = []
        for x, y in data.heldout(20, 1, 2):
            logits = functional_call(model, tensors, (torch.from_numpy(x).double(),))
            hits += (logits.argmax(-1).numpy() == y).tolist()
        assert float(accuracies[i]) == pytest.approx(sum(hits) / len(hits))
    result = train(BatchedTrials(trials=tuple(batch), corpus=data))[0]
    assert result.accuracy == pytest.approx(float(accuracies[0]))
    assert from_json(Result, to_json(result)) == result


def test_patches_are_squares_in_reading_order() -> None:
    image = torch.arange(64.0).reshape(1, 8, 8)
    squares = patches(image, 4)
    assert squares.shape == (1, 4, 16)
    assert torch.equal(squares[0, 1], image[0, :4, 4:].flatten())
    coloured = patches(torch.stack([image, -image], 1), 4)
    assert torch.equal(coloured[0, 1], torch.cat([squares[0, 1], -squares[0, 1]]))


def test_norms_take_the_mean_out() -> None:
    x = normalized(5 + 3 * torch.randn(4, 64))
    torch.testing.assert_close(x.mean(-1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.pow(2).mean(-1), torch.ones(4))


def test_patches_see_each_other_in_both_directions_and_positions_matter() -> None:
    model, image = drawn("vit"), torch.randn(1, 8, 8)
    out = model(image)
    moved = image.roll(4, -1)  # the same patches in other places
    assert not torch.allclose(model(moved), out, atol=1e-4)
    torch.nn.init.zeros_(model.position.weight)
    torch.testing.assert_close(model(moved), model(image), atol=1e-4, rtol=1e-4)


def test_roles_and_scaled_ops() -> None:
    specs = specs_between(at("mlp"), base=(32, 1), target=(64, 1))
    assert [str(spec.role) for spec in specs] == ["embedding", "hidden", "readout"]
    specs = specs_between(at("vit"), base=(32, 2), target=(64, 2))
    roles = {spec.name: str(spec.role) for spec in specs}
    assert {roles.pop("patch.weight"), roles.pop("position.weight")} == {"embedding"}
    assert roles.pop("head.weight") == "readout"
    assert set(roles.values()) == {"hidden"}
    attention = next(op for op in scaled_ops(made("vit")) if op.kind == "attention")
    assert attention.geometry == {"head_size": 8, "seq_len": 4, "causal": False}


# u-muP in its own words: all has RMS 1 at initialization.


SEQ, CLASSES = 64, 200
CASES = [
    {},
    {"alpha_residual": 0.25},
    {"alpha_residual": 4.0, "alpha_residual_attn_ratio": 2.0},
    {"alpha_ffn_act": 4.0, "alpha_attn": 2.0},
]


def llama_scales(width: int, depth: int, values: dict[str, float]) -> dict[str, float]:
    sizes = {"classes": CLASSES, "seq_len": SEQ, "head_size": 16, "base_depth": depth}
    torch.manual_seed(1)
    x, y = torch.randint(CLASSES, (2, 16, SEQ))
    return scales_at_start(at("llama", **sizes, unit=True), width, depth, (x, y), **values)


@pytest.mark.parametrize("values", CASES, ids=str)
def test_one_layer_has_unit_scale(values: dict[str, float]) -> None:
    """Within the reach of the paper's empirical rules, which hold for independent inputs."""
    for name, value in llama_scales(256, 1, values).items():
        if name == "head":
            assert value == pytest.approx(256**-0.5, rel=0.1)
        elif name.endswith(".weight") or "gradient" not in name:
            assert 0.75 < value < 1.3, name
        else:
            assert 0.3 < value < 2.0, name


def test_depth_changes_no_scale() -> None:
    """Beyond what attention's model leaves out: positions grow alike from layer to layer."""
    for name, value in llama_scales(64, 8, {"alpha_residual": 0.5}).items():
        assert name == "head" or 0.3 < value < 3, name


@pytest.mark.parametrize(("kind", "low", "high"), [("mlp", 0.7, 1.3), ("vit", 0.2, 2.0)])
def test_models_of_arrays_have_unit_scale(kind: str, low: float, high: float) -> None:
    """Activations, and gradients of weights from `low` to `high`: images' tokens depend."""
    torch.manual_seed(1)
    batch = torch.randn(64, 16, 16), torch.randint(10, (64,))
    scales = scales_at_start(at(kind, input_shape=(16, 16), unit=True), 128, 2, batch)
    for name, value in scales.items():
        if name == "head":
            assert value == pytest.approx(128**-0.5, rel=0.25)
        elif name.endswith("weight gradient"):
            assert low < value < high, name
        elif not name.endswith("gradient"):
            assert 0.75 < value < 2.5, name


def test_unit_scale_of_the_head_s_bias() -> None:
    """Its gradient is of order 1 at any batch, and so independent of it."""
    for batch in (16, 256):
        torch.manual_seed(0)
        model = made("vit", width=64, unit=True, head_bias=True)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        torch.nn.init.zeros_(model.head_bias)
        model.head.multiplier.fill_(1 / 64)
        model(torch.randn(batch, 8, 8), torch.randint(10, (batch,))).backward()
        assert 0.4 < rms(model.head_bias.grad) < 2.5


P = 0.3


def driven(place: int = 0) -> Dropout:
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
