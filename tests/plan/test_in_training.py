"""A script that does not train by its plan is stopped, and one that does hears nothing."""

from __future__ import annotations

import math
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sweeper
from sweeper import BadInput, TransferPlan
from sweeper.files import write_json
from sweeper.plan import in_training
from sweeper.plan.in_training import disagreement, low_peak

STEPS, VOCABULARY = 24, 12
ONES = torch.ones(4, 4, dtype=torch.long)
Script = Callable[[TransferPlan], None]
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class Net(nn.Module):
    """Two layers between a table with a padding row and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        logits: Tensor = self.head(self.norm(x + self.second(torch.relu(self.first(x)))))
        return logits


def planned(width: int = 64, optimizer: Any = None, eta: float = 2**-7) -> TransferPlan:
    optimizer = optimizer or {"name": "adamw", "weight_decay": 2**-13}
    sizes, tokens = ({"width": 16}, {"width": width}), torch.zeros(1, 4, dtype=torch.long)
    return sweeper.plan_for(Net, *sizes, "mup", {"eta": eta}, optimizer=optimizer, inputs=(tokens,))


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has seen no plan yet."""
    watches: list[in_training.PlanWatch] = []
    monkeypatch.setattr(in_training, "USE", in_training.PlanUse())
    monkeypatch.setattr(in_training, "WATCHES", watches)
    monkeypatch.delitem(sys.modules, "sweeper.export.exporter", raising=False)
    monkeypatch.setattr(in_training.atexit, "register", lambda function: None)
    yield
    for watch in watches:
        if watch._handle is not None:
            watch._handle.remove()


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trial's folder, in which its plan lies."""
    monkeypatch.setenv("SWEEPER_TRIAL", str(tmp_path / "trial.json"))
    write_json(tmp_path / "trial.json", {"steps": STEPS}, summed=False)
    planned().save(tmp_path / "plan.json")
    return tmp_path


def cosine(step: int) -> float:
    """A warm-up of four steps that meets a decay: its peak is 0.94."""
    return min(1, (step + 1) / 4) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def loss_of(model: nn.Module, tokens: Tensor = ONES) -> Tensor:
    return cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def losses(
    model: nn.Module,
    optimizers: Optimizers,
    before: Callable[[int], object] = lambda step: None,
    step: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.step(),
    steps: int = STEPS,
) -> None:
    """A usual loop."""
    generator = torch.Generator().manual_seed(0)
    every = [*optimizers] if isinstance(optimizers, Sequence) else [optimizers]
    for number in range(steps):
        before(number)
        tokens = torch.randint(1, VOCABULARY, (4, 4), generator=generator)
        loss = loss_of(model, tokens)
        for optimizer in every:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in every:
            step(optimizer)


def factor(
    optimizer: torch.optim.Optimizer, schedule: Callable[[int], float]
) -> Callable[[int], None]:
    """What writes a schedule into an optimizer's groups."""

    def write(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule(step)

    return write


def end(folder: Path) -> str:
    """What is said of a process that ends well."""
    for watch in in_training.WATCHES:
        watch._end()
    return disagreement(folder, ended=True)


def usual(plan: TransferPlan) -> tuple[nn.Module, torch.optim.AdamW]:
    model = plan.init_(Net(64))
    return model, torch.optim.AdamW(plan.param_groups(model))


def doubled(at: int) -> Script:
    """From a step on one group has twice its rate."""

    def script(plan: TransferPlan) -> None:
        model, optimizer = usual(plan)

        def write(step: int) -> None:
            if step == at:
                optimizer.param_groups[1]["lr"] *= 2

        losses(model, optimizer, write)

    return script


def scheduled(schedule: Callable[[int], float]) -> Script:
    def script(plan: TransferPlan) -> None:
        model, optimizer = usual(plan)
        losses(model, optimizer, factor(optimizer, schedule))

    return script


def drawn_anew(plan: TransferPlan) -> None:
    model, optimizer = usual(plan)
    nn.init.normal_(model.second.weight, std=0.02)  # type: ignore[arg-type]
    losses(model, optimizer)


def not_drawn(plan: TransferPlan) -> None:
    model = Net(64)
    losses(model, torch.optim.AdamW(plan.param_groups(model)))


def of_another_model(plan: TransferPlan) -> None:
    other, optimizer = usual(plan)
    losses(plan.init_(Net(64)), optimizer)
    assert other


def stale_groups(plan: TransferPlan) -> None:
    model, optimizer = usual(plan)
    for module in model.modules():  # as `fully_shard` does
        for name, parameter in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    losses(model, optimizer)


def frozen_by_hand(plan: TransferPlan) -> None:
    model, optimizer = usual(plan)
    model.first.weight.requires_grad_(False)  # type: ignore[union-attr]
    losses(model, optimizer)


def unused(plan: TransferPlan) -> None:
    model = Net(64)
    losses(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


WRONG: dict[str, tuple[Script, str]] = {
    "rate in a group": (doubled(at=0), "they differ"),
    "rate later": (doubled(at=5), "its rate is .* at step 6, planned"),
    "drawn anew": (drawn_anew, "second.weight has std 0.0[12]"),
    "not drawn": (not_drawn, r"plan.init_\(model\) was not called"),
    "of another model": (of_another_model, "has a gradient"),
    "stale groups": (stale_groups, "does not change"),
    "frozen by hand": (frozen_by_hand, "first.weight: the plan trains what the script has frozen"),
    "unused": (unused, "does not train by it"),
    "peak too high": (scheduled(lambda step: 1 + step / 1000), "its rate is .* at step 3, planned"),
    "peak never reached": (scheduled(lambda step: (step + 1) / 100), "a warm-up longer than the"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_script_is_stopped(kind: str, trial: Path) -> None:
    script, expected = WRONG[kind]
    plan = TransferPlan.load(trial / "plan.json")
    try:
        script(plan)
        problem = end(trial)
        assert not disagreement(trial, ended=False)
    except BadInput as error:
        problem = str(error)
        assert disagreement(trial, ended=False) == problem
    assert re.search(expected, problem), problem


@pytest.mark.parametrize(("share", "seen"), [(1.0, ""), (0.96, ""), (0.52, "was 0.52 of the")])
def test_a_peak_below_the_plan_s_is_noted(share: float, seen: str, trial: Path) -> None:
    scheduled(lambda step: share)(TransferPlan.load(trial / "plan.json"))
    assert end(trial) == "" and (seen in (note := low_peak(trial))) and bool(note) == bool(seen)


def right_constant(plan: TransferPlan) -> None:
    model = plan.init_(Net(64))
    losses(model, torch.optim.AdamW(plan.param_groups(model, lr_scale=0.5)))


def right_tensor_rates(plan: TransferPlan) -> None:
    model = plan.init_(Net(64))
    groups = [{**g, "lr": torch.tensor(g["lr"])} for g in plan.param_groups(model)]
    losses(model, torch.optim.AdamW(groups, fused=True))


def right_compiled(plan: TransferPlan) -> None:
    model = plan.init_(Net(64))
    compiled = torch.compile(model, backend="eager")
    losses(compiled, torch.optim.AdamW(plan.param_groups(compiled)))


def right_compiled_step(plan: TransferPlan) -> None:
    model, optimizer = usual(plan)
    step = torch.compile(optimizer.step, backend="eager")
    losses(model, optimizer, step=lambda each: step())


def right_accumulation(plan: TransferPlan) -> None:
    model, optimizer = usual(plan)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        factor(optimizer, cosine)(step)
        for _ in range(2):
            scaler.scale(loss_of(model) / 2).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def right_closure(plan: TransferPlan) -> None:
    model, optimizer = usual(plan)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)  # type: ignore[arg-type]


def right_resumed(plan: TransferPlan) -> None:
    model, optimizer = usual(plan)
    for p in model.parameters():
        p.data.mul_(3)
        averages = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)}
        optimizer.state[p] = {"step": torch.tensor(5.0), **averages}
    losses(model, optimizer, factor(optimizer, lambda step: 0.1))


def right_loaded(plan: TransferPlan) -> None:
    model = Net(64)
    model.load_state_dict({n: w + 0.1 * torch.randn_like(w) for n, w in model.state_dict().items()})
    losses(model, torch.optim.AdamW(plan.param_groups(model)))


def right_each_in_backward(plan: TransferPlan) -> None:
    model = plan.init_(Net(64))
    every = {}
    for group in plan.param_groups(model):
        for parameter in group["params"]:
            every[parameter] = torch.optim.AdamW([{**group, "params": [parameter]}])
            parameter.register_post_accumulate_grad_hook(lambda p: every[p].step())
    losses(model, [], steps=STEPS)


def right_copies(plan: TransferPlan) -> None:
    model = plan.init_(Net(64))
    groups, pairs = [], []
    for group in plan.param_groups(model):
        copies = [nn.Parameter(p.detach().clone()) for p in group["params"]]
        pairs += zip(copies, group["params"], strict=True)
        groups.append({**group, "params": copies})

    def step(optimizer: torch.optim.Optimizer) -> None:
        for copy, parameter in pairs:
            copy.grad, parameter.grad = parameter.grad, None
        optimizer.step()
        for copy, parameter in pairs:
            parameter.data.copy_(copy.data)

    losses(model, torch.optim.AdamW(groups), step=step)


def right_beside_another_model(plan: TransferPlan) -> None:
    model, other, scale = plan.init_(Net(64)), Net(16), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.AdamW([*plan.param_groups(model), {"params": [scale], "lr": 1.0}])
    losses(other, torch.optim.SGD(other.parameters(), lr=0.1), steps=40)
    losses(model, optimizer)


def right_inner_optimizer(plan: TransferPlan) -> None:
    class Outer(torch.optim.Optimizer):  # as torch's ZeroRedundancyOptimizer, or SAM
        def __init__(self, groups: Any) -> None:
            super().__init__(groups, {})
            self.inner = torch.optim.AdamW([{**group} for group in self.param_groups])

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    model = plan.init_(Net(64))
    losses(model, Outer(plan.param_groups(model)))


def right_in_turns(plan: TransferPlan) -> None:
    model = plan.init_(Net(64))
    turns = [torch.optim.AdamW([group]) for group in plan.param_groups(model)]

    def step(optimizer: torch.optim.Optimizer) -> None:
        for group in (group for each in turns for group in each.param_groups):
            for parameter in group["params"]:
                parameter.requires_grad_(group in optimizer.param_groups)
        optimizer.step()
        model.requires_grad_(True)

    losses(model, turns, step=step)


def right_worker(plan: TransferPlan) -> None:
    worker = get_context("fork").Process(target=right_constant, args=(plan,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0


def right_pickled(plan: TransferPlan) -> None:
    in_training.WATCHES.clear()  # as in a process that is spawned
    right_constant(pickle.loads(pickle.dumps(plan)))
    assert in_training.WATCHES


def right_next_optimizer(plan: TransferPlan) -> None:
    model = plan.init_(Net(64))
    first, second = (torch.optim.AdamW(plan.param_groups(model)) for _ in range(2))
    losses(model, first, steps=10)
    losses(model, second, steps=10)


def right_by_hand(plan: TransferPlan) -> None:
    model, rates = Net(64), {setting.name: setting.lr for setting in plan.absorbed()}
    named = model.named_parameters()
    losses(model, torch.optim.AdamW([{"params": [p], "lr": rates[n]} for n, p in named]))


RIGHT = [script for name, script in globals().items() if name.startswith("right_")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("script", RIGHT, ids=lambda script: script.__name__)
def test_a_right_script_hears_nothing(
    script: Script, trial: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script(TransferPlan.load(trial / "plan.json"))
    assert end(trial) == "" and capfd.readouterr().out == ""


def test_a_large_run_is_looked_at_where_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = TransferPlan.load(planned().save(tmp_path / "plan.json"))
    assert not in_training.WATCHES  # in no trial nothing is heard of
    model, optimizer = usual(plan)
    with pytest.raises(BadInput, match="in no group"):
        sweeper.watch(torch.optim.AdamW(plan.param_groups(model)[1:]), plan)
    sweeper.watch(optimizer, plan)
    losses(model, optimizer, factor(optimizer, lambda step: 0.4))
    with pytest.warns(UserWarning, match="its highest rate is"):
        in_training.WATCHES[0]._end()
    with pytest.raises(BadInput, match="its rate is"):
        losses(model, optimizer, factor(optimizer, lambda step: 1.5))
    monkeypatch.setenv("SWEEPER_CHECK_PLAN", "0")
    sweeper.watch(optimizer, plan)
    assert len(in_training.WATCHES) == 1
    monkeypatch.delenv("SWEEPER_CHECK_PLAN")
    with pytest.raises(BadInput, match="param_groups"):
        sweeper.watch(optimizer, planned())


def test_a_line_that_was_not_written_whole_hides_no_other(trial: Path) -> None:
    whole = '{"problem": "a rate", "ended": false, "used": true}'
    (trial / in_training.SEEN).write_text(f"{whole}\n{whole[:20]}")
    assert disagreement(trial, ended=False) == "a rate"


def test_an_optimizer_of_any_kind_is_not_harmed(trial: Path) -> None:
    class Rateless(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["lr"] = 0.01
                super().step(closure)
                group["lr"] = None

    plan = TransferPlan.load(trial / "plan.json")
    model = plan.init_(Net(64))
    plan.absorbed()
    optimizer = Rateless(model.parameters(), lr=0.01)
    optimizer.param_groups[0]["lr"] = None
    losses(model, optimizer)
    assert end(trial) == ""
