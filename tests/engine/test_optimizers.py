"""What every optimizer owes: the published update, trial by trial, whatever trains beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sweeper.engine.optimizers.optimizer import Optimizer
from sweeper.scaling.spec import ParamSpec, Role, Update
from tests.engine.optimizers import NAMES, SPECS, Member, OptimizerRun, normal, shipped, spec
from tests.engine.oracles import ORACLES, normuon_rows
from tests.refusals import raises_config_error

VARIANTS = [(name, {}) for name in NAMES] + [
    ("adamw", {"atan2": True}),
    ("sgd", {"nesterov": True}),
    ("muon", {"nesterov": False}),
    ("muon", {"normuon": 0.95}),
    ("muonh", {"nesterov": False}),
    ("muonh", {"normuon": 0.95}),
    ("adafactor", {"clip": 0.3, "rms_floor": 2.0}),
    ("shampoo", {"normalize": True, "every": 2}),
    ("soap", {"every": 2}),
    ("soap", {"normalize": False}),
]
IDS = [f"{name}-{next(iter(changed))}" if changed else name for name, changed in VARIANTS]
variants = pytest.mark.parametrize(("name", "changed"), VARIANTS, ids=IDS)
every = pytest.mark.parametrize("name", NAMES)


def members(optimizer: Optimizer) -> list[Member]:
    """Four trials that differ in all that a trial may differ in."""
    searched = [
        dict(zip(optimizer.hyperparameters, factors, strict=False))
        for factors in ((1.0, 1.0, 1.0), (0.5, 4.0, 2.0), (2.0, 0.25, 0.5), (30.0, 1.5, 3.0))
    ]
    return [
        Member(
            lr=0.3 / 4**k, eps=10.0 ** (-8 + 2 * k), weight_decay=0.1 * k, seed=k, values=factors
        )
        for k, factors in enumerate(searched)
    ]


def assert_alike(a: Sequence[Tensor], b: Sequence[Tensor], tolerance: float = 1e-12) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def assert_equals_oracle(
    name: str, optimizer: Optimizer, trials: list[Member], specs: Sequence[ParamSpec] = SPECS
) -> None:
    """Five steps of a batch, and of the oracle on every trial."""
    run = OptimizerRun(optimizer, trials, specs)
    oracle_params = [[p[k].detach().clone() for p in run.params] for k in range(len(trials))]
    kinds = run.update_hps.kinds
    oracles = [
        ORACLES[name](optimizer, p, kinds, m) for p, m in zip(oracle_params, trials, strict=True)
    ]
    for t in range(5):
        grads, factors = run.grads(), [1 - 0.1 * (t + k) for k in range(len(trials))]
        run.step(factors, grads)
        for k, step in enumerate(oracles):
            step([g[k] for g in grads], factors[k])
    for k, params in enumerate(oracle_params):
        assert_alike([p[k].detach() for p in run.params], params, 1e-10)


def exact(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Keep torch's Muon in the weights' own type."""
    if name == "muon":
        if not hasattr(torch.optim, "Muon"):
            pytest.skip("this torch has no Muon")
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


def published(name: str, **changed: object) -> Optimizer:
    """Without what only sweeper's config adds."""
    plain = {"normalize": False} if name == "soap" else {}
    return shipped(name, **plain, **changed)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        v
        for v in VARIANTS
        if v[0] in ORACLES and "normalize" not in v[1] and v != ("muon", {"normuon": 0.95})
    ],
)
def test_equals_what_others_wrote(
    name: str, changed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact(monkeypatch, name)
    optimizer = published(name, **changed)
    assert_equals_oracle(name, optimizer, members(optimizer))


@variants
@pytest.mark.parametrize("bad", [math.nan, pytest.param(math.inf, marks=pytest.mark.long)])
def test_a_gradient_that_is_not_finite_stays_with_its_trial(
    name: str, changed: dict[str, object], bad: float
) -> None:
    optimizer = shipped(name, **changed)
    trials = members(optimizer)
    clean, hurt = OptimizerRun(optimizer, trials), OptimizerRun(optimizer, trials)
    grads = hurt.grads()
    for grad in grads:
        grad[1].fill_(bad)
    clean.step()
    hurt.step(1.0, grads)
    others = [0, 2, 3]
    for a, b in zip(clean.train(), hurt.train(), strict=True):
        assert torch.equal(a[others], b[others])


@variants
def test_trials_that_are_dropped_are_as_if_they_never_were(
    name: str, changed: dict[str, object]
) -> None:
    optimizer = shipped(name, **changed)
    trials, kept = members(optimizer), [0, 3]
    run = OptimizerRun(optimizer, trials)
    run.train(3)
    assert all(len(t) == len(trials) for tensors in run.state.values() for t in tensors)
    assert all(len(tensors) == len(SPECS) for tensors in run.state.values())
    run.select(kept)
    alone = OptimizerRun(optimizer, [trials[k] for k in kept])
    assert_alike(run.train(3), alone.train(6))


def test_the_bias_correction_keeps_its_digits_in_float32() -> None:
    """1 - beta2^t at t = 2, beta2 near 1: the power itself has lost the last five of them."""
    optimizer = shipped("adamw", beta2=1 - 2.0**-14)
    members = [Member(lr=1.0, eps=1e-30)]
    run = OptimizerRun(optimizer, members, [spec(Role.VECTOR, 1)], torch.float32)
    run.params[0].detach().zero_()
    for step in (1, 2):
        run.step(1.0, [torch.ones(1, 1)])
        assert float(run.params[0].detach()) == pytest.approx(-step, rel=1e-6)


def test_normuon_is_the_authors_algorithm_behind_muon_s_step() -> None:
    """Matrices of a stack and a convolution, by rows; torch alone computes the second step."""
    plain, rows = shipped("muon"), shipped("muon", normuon=0.95)
    means: dict[int, Tensor] = {}
    specs = [spec(Role.HIDDEN, 6, 4), spec(Role.HIDDEN, 3, 2, 4)]
    before, after = (OptimizerRun(each, [Member()], specs) for each in (plain, rows))
    for _ in range(2):
        starts = [[p[0].detach().clone() for p in run.params] for run in (before, after)]
        grads = before.grads()
        before.step(1.0, [g.clone() for g in grads])
        after.step(1.0, grads)
        for i in range(len(specs)):
            o, moved = (
                (start[i] - run.params[i][0].detach()) / Member().lr_of(i)
                for start, run in zip(starts, (before, after), strict=True)
            )
            expected = normuon_rows(means, i, o.reshape(len(o), -1), 0.95)
            assert_alike([moved.reshape(len(o), -1)], [expected], 1e-10)
            assert float(moved.norm()) == pytest.approx(float(o.norm()))


@pytest.mark.parametrize("name", ["adamh", "muonh"])
def test_every_matrix_of_a_stack_keeps_its_own_norm(name: str) -> None:
    stacked = spec(Role.HIDDEN, 3, 5, 4)
    run = OptimizerRun(shipped(name), [Member(lr=0.5), Member(lr=0.1, seed=1)], [stacked])
    run.update_hps = replace(run.update_hps, matrices=[(3, 5)])
    norms = torch.linalg.matrix_norm(run.params[0].detach())
    [trained] = run.train(6)
    assert_alike([torch.linalg.matrix_norm(trained)], [norms])
    # A stack steps as its matrices do alone.
    alone = OptimizerRun(shipped(name), [Member(lr=0.5)], [spec(Role.HIDDEN, 5, 4)])
    alone.params[0] = normal(stacked.shape, 0, 0)[1][None].clone()
    for t in range(6):
        grad = normal(stacked.shape, 0, 0, t + 1)[1][None] * 10 ** -(t % 3)
        alone.step(1.0 - 0.2 * (t % 4), [grad])
    assert_alike([trained[:1, 1]], [alone.params[0]])


def test_a_weight_that_is_not_drawn_is_adam_s() -> None:
    """One that starts at 0 has no norm to keep: it would never move."""
    for name in ("adamh", "muonh"):
        for init in ("zeros", "kept", "ones"):
            assert shipped(name).kind(replace(spec(Role.HIDDEN, 4, 4), init=init)) is Update.SIGN


@every
def test_settings_that_a_space_may_hold_are_factors(name: str) -> None:
    """1 is the config's own; another changes what is trained; distances from 1 are multiplied."""
    optimizer = shipped(name)
    usual = optimizer.settings({})
    assert (
        optimizer.settings({"eta": 0.5, **dict.fromkeys(optimizer.hyperparameters, 1.0)}) == usual
    )
    plain = OptimizerRun(optimizer, [Member()]).train()
    for searched in optimizer.hyperparameters:
        changed = optimizer.settings({searched: 0.25})
        [setting] = [key for key in usual if changed[key] != usual[key]]
        assert searched == f"one_minus_{setting}"
        assert 1 - changed[setting] == pytest.approx(0.25 * (1 - usual[setting]))
        assert optimizer.settings({searched: 1e9})[setting] == 0.0
        other = OptimizerRun(optimizer, [Member(values={searched: 0.25})]).train()
        assert any(not torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@variants
def test_float32_is_float64_rounded(name: str, changed: dict[str, object]) -> None:
    """Hence no quantity is lost in the smaller type; the weights keep their type."""
    optimizer = shipped(name, **changed)
    trials = [Member(lr=0.01, weight_decay=0.01, seed=k) for k in range(2)]
    exactly = OptimizerRun(optimizer, trials).train(6)
    rounded = OptimizerRun(optimizer, trials, dtype=torch.float32)
    # An eigenvector is known as well as its eigenvalue differs from the next.
    assert_alike([p.float() for p in exactly], rounded.train(6), 5e-4 if name == "soap" else 3e-5)
    for tensors in (rounded.params, *rounded.state.values()):
        assert {t.dtype for t in tensors} == {torch.float32}


@variants
@pytest.mark.parametrize("eps", [1e-8, 1e-30])
def test_a_weight_without_gradient_stays(name: str, changed: dict[str, object], eps: float) -> None:
    """As a word that no batch has; in float32, where the square of a small eps is 0."""
    run = OptimizerRun(shipped(name, **changed), [Member(eps=eps)], dtype=torch.float32)
    start = [p.detach().clone() for p in run.params]
    for _ in range(2):
        grads = [torch.zeros_like(p) for p in run.params]
        grads[0][:, 1:] = 1.0
        run.step(1.0, grads)
    for i, (p, first) in enumerate(zip(run.params, start, strict=True)):
        assert torch.equal(p[:, :1] if i == 0 else p, first[:, :1] if i == 0 else first)
    assert torch.isfinite(run.params[0]).all()


# Each costs seconds: in every run the one of most steps is traced, all compiled in `long`.
QUICK = ("muon", {"normuon": 0.95}, "aot_eager")
COMPILED = [
    pytest.param(*v, backend, marks=() if (*v, backend) == QUICK else pytest.mark.long)
    for backend in ("aot_eager", "inductor")
    for v in VARIANTS
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize(("name", "changed", "backend"), COMPILED)
def test_compiled_once_whole_and_to_the_same_weights(
    name: str, changed: dict[str, object], backend: str
) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    if backend == "inductor" and name in ("adamh", "muonh") and torch.__version__ < "2.12":
        pytest.skip("this torch's compiler for CPUs, which updates do without, fails: KeyError")
    torch._dynamo.reset()
    counter, optimizer = CompileCounterWithBackend(backend), shipped(name, **changed)
    trials, specs = members(optimizer)[:2], (SPECS[0], *SPECS[2:5], SPECS[6])

    def compiler(update: object) -> object:
        return torch.compile(update, backend=counter, fullgraph=True)  # type: ignore[call-overload]

    compiled = OptimizerRun(optimizer, trials, specs, compiler=compiler).train()
    assert counter.frame_count == 1
    assert_alike(OptimizerRun(optimizer, trials, specs).train(), compiled)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@variants
def test_on_a_gpu_no_host_waits_and_the_weights_are_the_same(
    name: str, changed: dict[str, object]
) -> None:
    optimizer = shipped(name, **changed)
    here, there = (OptimizerRun(optimizer, members(optimizer)) for _ in range(2))
    there.change(lambda tensor: tensor.cuda())
    for _ in range(3):
        grads = here.grads()
        here.step(0.5, grads)
        grads, now = [g.cuda() for g in grads], there.now(0.5)
        # For an eigenbasis torch itself has the host wait.
        torch.cuda.set_sync_debug_mode("default" if name in ("shampoo", "soap") else "error")
        try:
            with torch.no_grad():
                there.update(there.params, grads, there.state, there.update_hps, now)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert_alike([p.detach() for p in here.params], [p.detach().cpu() for p in there.params], 1e-9)


def test_muon_in_bfloat16_is_torch_s_up_to_its_rounding() -> None:
    """An eighth's rounding on updates of about 1: what is compared is the way, not the digits."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    optimizer = shipped("muon", bfloat16=True)
    run, member = OptimizerRun(optimizer, [Member()], SPECS[1:3]), Member()
    oracle_params = [p[0].detach().clone() for p in run.params]
    step = ORACLES["muon"](optimizer, oracle_params, run.update_hps.kinds, member)
    grads = run.grads()
    run.step(1.0, grads)
    step([g[0] for g in grads], 1.0)
    assert_alike([p[0].detach() for p in run.params], oracle_params, 0.02 * member.lr)
    other = OptimizerRun(shipped("muon"), [member], SPECS[1:3]).train(1)
    assert all(not torch.equal(a, b) for a, b in zip(run.params, other, strict=True))


def separate(p: Tensor, parts: int, matrix: tuple[int, int]) -> list[Tensor]:
    """The matrices [K, ...] of a parameter: a stack of so many rows each, or fused by rows."""
    stack = p.detach().reshape(len(p), *matrix, -1).unbind(1)
    return [piece.clone() for each in stack for piece in each.chunk(parts, 1)]


@pytest.mark.parametrize(
    ("shape", "parts", "matrix"),
    [((18, 4), 3, (1, 18)), ((4, 6), 2, (1, 4)), ((3, 6, 4), 1, (3, 6)), ((2, 3, 5), 1, (1, 6))],
    ids=["three tall", "two wide", "experts", "heads are one matrix"],
)
def test_muon_takes_the_matrices_of_a_parameter_each_by_itself(
    shape: tuple[int, ...], parts: int, matrix: tuple[int, int]
) -> None:
    members = [Member(weight_decay=0.1), Member(lr=0.3, eps=1e-3, seed=1)]
    run = OptimizerRun(shipped("muon", split=True), members, [spec(Role.HIDDEN, *shape)])
    run.update_hps = replace(run.update_hps, parts=[parts], matrices=[matrix])
    pieces = separate(run.params[0], parts, matrix)
    layers = [spec(Role.HIDDEN, *piece.shape[1:]) for piece in pieces]
    apart = OptimizerRun(shipped("muon"), members, layers)
    apart.params = pieces
    lists = {
        name: [getattr(run.update_hps, name)[0].view(-1, 1, 1)] * len(pieces)
        for name in ("lr", "eps", "weight_decay")
    }
    apart.update_hps = replace(apart.update_hps, **lists)
    for _ in range(3):
        grads = run.grads()
        run.step(0.7, grads)
        apart.step(0.7, separate(grads[0], parts, matrix))
    assert_alike(separate(run.params[0], parts, matrix), apart.params)


@every
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_impossible_values_are_refused(name: str, value: float) -> None:
    optimizer = shipped(name)
    rates = [key for key in optimizer.settings({}) if hasattr(optimizer, key)]
    # A decay of 1 and more may be small: it is times the learning rate, which is not known here.
    for key in (*rates, *["weight_decay"] * (value < 0)):
        with raises_config_error(key):
            shipped(name, **{key: value})
    with raises_config_error("eps", 0.0):
        shipped(name, eps=0.0)


OF_ONE: list[tuple[str, str, object]] = [
    *[("muon", "steps", 0), ("muon", "coefficients", [1.0, 2.0])],
    *[("shampoo", "every", 0), ("soap", "every", -1), ("adafactor", "beta2_decay", 0.8)],
    *[("adafactor", "clip", 0.0), ("adafactor", "rms_floor", 0.0)],
]


@pytest.mark.parametrize(("name", "key", "value"), OF_ONE)
def test_impossible_values_of_one_are_refused(name: str, key: str, value: object) -> None:
    with raises_config_error(key):
        shipped(name, **{key: value})


@every
def test_kinds_are_what_the_first_steps_do(name: str) -> None:
    """A gradient ten times as large, a weight ten times as large: what the steps make of it."""
    optimizer = shipped(name)
    specs = (spec(Role.HIDDEN, 8, 8), spec(Role.READOUT, 8, 8), spec(Role.VECTOR, 8))
    for i, kind in enumerate(optimizer.kind(s) for s in specs):
        lengths = {}
        for gradient, weight in ((1, 1), (10, 1), (1, 10)):
            run = OptimizerRun(optimizer, [Member(lr=1e-3, eps=1e-30)], specs)
            with torch.no_grad():
                run.params[i].mul_(weight)
            start = run.params[i].detach().clone()
            for _ in range(2 if name == "soap" else 1):  # its first only prepares the second
                run.step(1.0, [g * gradient for g in run.grads()])
            lengths[gradient, weight] = float((run.params[i].detach() - start).norm())
        by_gradient, by_weight = (lengths[key] / lengths[1, 1] for key in ((10, 1), (1, 10)))
        assert by_gradient == pytest.approx(10 if kind is Update.GRADIENT else 1, rel=1e-6)
        assert by_weight == pytest.approx(10 if kind.relative else 1, rel=1e-6)
