"""The coordinate check where hidden weights stop learning, and no module's call shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import sweeper
from sweeper.check.judge import CheckRule, CoordinateCheck, check_coordinates
from sweeper.command.in_script import FILE, STEPS
from sweeper.data.corpus import TokenCorpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.measure import ModuleMeasurement, measure_modules
from sweeper.records import from_json, to_json
from sweeper.report.checks import coordinate_table, coordinates
from sweeper.report.sections import Sentence
from sweeper.report.sentences import check_sentence
from sweeper.scaling.spec import LOGITS
from sweeper.stats.ladder import Size
from sweeper.trial import Trial
from tests.engine.tiny_trials import PARAMETERIZATIONS, check_tree, corpus
from tests.golden import Golden
from tests.specs import spec_of
from tests.toy_models import Biased, Listed, Merged, Unseen

RULE = CheckRule(steps=2, seeds=4)
WEIGHTS = {"Biased": "ls.{}", "Functional": "ls.{}.weight", "Listed": "ls.{}"}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return corpus(tmp_path_factory.mktemp("tokens"), classes=64)


def trial(net: str, width: int, seed: int, planted: str | None = None) -> Trial:
    made = check_tree("mup", RULE.steps)
    made["model"] = {"_target_": f"tests.toy_models.{net}", "width": width, "depth": 2}
    made["base"] = {"width": 16, "depth": 2}
    made["data"]["classes"] = 64
    made["optimizer"] |= {"weight_decay": 0.0, "eps": 1e-15}
    if planted:
        made["parameterization"]["_target_"] = f"tests.check.wrong_parameterizations.{planted}"
    hps = dict.fromkeys(PARAMETERIZATIONS["mup"][1], 0.0) | {"eta": -10.0}
    return Trial(spec=spec_of(made), log2_hps=hps, seed=seed)


def checked(tokens: TokenCorpus, net: str, planted: str | None = None) -> CoordinateCheck:
    runs: dict[Size, list[list[ModuleMeasurement]]] = {
        Size(width=width, depth=2): [
            measure_modules(trial(net, width, seed, planted), tokens) for seed in range(RULE.seeds)
        ]
        for width in (16, 32, 64)
    }
    return check_coordinates("width", runs, RULE)


@pytest.mark.parametrize(
    "net", [pytest.param(n, marks=pytest.mark.long if n != "Listed" else ()) for n in WEIGHTS]
)
def test_hidden_weights_that_stop_learning_fail(tokens: TokenCorpus, net: str) -> None:
    wrong = checked(tokens, net, "SlowHidden")
    assert wrong.origins == tuple(WEIGHTS[net].format(layer) for layer in (0, 1))
    assert {m.worst.reason for m in wrong.modules if m.name in wrong.origins} == {"vanishes"}
    assert checked(tokens, net).answer != "fail"
    assert checked(tokens, net, "FastHidden").answer == "fail"


def test_weights_that_no_row_shows_cannot_pass(tokens: TokenCorpus, golden: Golden) -> None:
    for planted in (None, "SlowHidden"):
        check = checked(tokens, "Unseen", planted)
        assert check.answer == "cannot say" and check.unseen == ("ls.*.weight",)
        assert check.settled_by(RULE) is None
        assert from_json(CoordinateCheck, to_json(check)).unseen == check.unseen
    golden.says(check_sentence(check, RULE))
    sentences = [str(i.text) for i in coordinates([check], RULE) if isinstance(i, Sentence)]
    assert any("Not seen" in line and "ls.*.weight" in line for line in sentences)
    rows = coordinate_table(check, 0.25).records()
    row = next(row for row in rows if row["module"] == "ls.0-1.weight")
    assert list(row.values())[2:5] == [None] * 3 and row["answer"] == "cannot say"


def test_a_product_s_direct_change_is_that_of_its_parameter(tokens: TokenCorpus) -> None:
    listed = trial("Listed", 16, 0)
    measured = {row.name: row for row in measure_modules(listed, tokens)}
    run = BatchedRun(BatchedTrials(trials=(listed,), corpus=tokens))
    start = {name: value.detach()[0].clone() for name, value in run.params.items()}
    run.step()
    x = run.feed.batch(0)[0][0]
    moved = run.params["ls.0"].detach()[0] - start["ls.0"]
    expected = float((start["e.weight"][x] @ moved.T).square().mean().sqrt())
    assert measured["ls.0"].direct_changes[0] == pytest.approx(expected, rel=1e-3)
    assert list(measured) == ["e", "ls.0", "ls.1", "out", LOGITS]
    assert measured["ls.0"].role == "hidden" and measured["out"].role == "readout"
    # log_softmax's input is what the loss is computed from.
    assert measured[LOGITS].rms == measured["out"].rms


def test_the_last_matrix_of_torch_s_attention_is_seen(tokens: TokenCorpus) -> None:
    measured = {row.name: row for row in measure_modules(trial("Attending", 16, 0), tokens)}
    last = measured["ls.0.out_proj.weight"]
    assert last.role == "hidden" and all(last.direct_changes)
    assert last.direct_changes != measured["ls.0"].direct_changes
    assert all(row.entries for row in measured.values())


@pytest.mark.parametrize("net", [Listed, Unseen, Merged])
def test_in_a_loop_of_one_s_own_it_is_as_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: type[Biased]
) -> None:
    path = tmp_path / "watched.json"
    monkeypatch.setenv(FILE, str(path))
    monkeypatch.setenv(STEPS, "1")
    torch.manual_seed(0)
    model = sweeper.watch(net(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randint(64, (2, 5))
    for _ in range(2):
        model(x, x).backward()
        optimizer.step()
    measured = [from_json(ModuleMeasurement, row) for row in json.loads(path.read_text())]
    unseen = [row.name for row in measured if not row.entries]
    assert unseen == ([] if net is Listed else ["ls.0.weight", "ls.1.weight"])
    moved = {row.name for row in measured if row.direct_changes and all(row.direct_changes)}
    assert net is not Listed or moved == {"e", "ls.0", "ls.1", "out"}
