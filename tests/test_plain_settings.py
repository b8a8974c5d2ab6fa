"""What the settings make of a user's own model: what is dropped, told, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweeper.config import compose_tree
from sweeper.errors import ConfigError
from sweeper.settings import Settings, resolve

PLAIN = "model._target_=tests.training.plain_decoders.PlainDecoder"
SIZES = ["model.width=16", "model.depth=1", "transfer.widths=[16,32]", "runner.device=cpu"]


def settings(*words: str) -> Settings:
    return resolve(compose_tree([PLAIN, *SIZES, *words]))


def arguments(*words: str) -> Any:
    return settings(*words).plugin_spec("model").arguments


def test_hyperparameters_that_change_nothing_are_dropped_with_a_note() -> None:
    # At width 16 u-muP's backward multiplier of a head of 256 classes is the forward one.
    umup = settings("parameterization=umup", "search=independent", "model.width=32")
    assert list(umup.space) == ["eta", "alpha_attn", "alpha_loss_softmax"]
    dropped, *unseen, lacking = umup.notes
    assert dropped.startswith("alpha_ffn_act, alpha_residual, alpha_residual_attn_ratio: changes")
    assert ["no residual" in note or "no gated" in note for note in unseen] == [True, True]
    assert "no place for head.backward_multiplier of the scheme" in lacking


def test_own_models_lose_nothing_and_are_told_nothing() -> None:
    ours = resolve(compose_tree(["parameterization=umup", "runner.device=cpu"]))
    assert len(ours.space) == 6 and ours.notes == ()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["search=independent", "search.axes=[eta,alpha_ffn_act]"], "search"),
        (["search=lr", "transfer.along=alpha_ffn_act"], "transfer.along"),
    ],
)
def test_one_that_is_asked_for_by_name_is_refused(words: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match="changes nothing in this model") as caught:
        settings("parameterization=umup", *words)
    assert (caught.value.key, caught.value.value) == (key, "alpha_ffn_act")


def test_what_is_said_of_a_model_is_part_of_its_trials_and_nothing_said_is_not() -> None:
    assert arguments("search=lr") == {} == arguments("search=lr", "model.frozen=[]")
    assert arguments("search=lr", "model.frozen=[rows*]") == {"frozen": ["rows*"]}


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("model.frozen=[nothing*]", "model.frozen"),
        ("model.keep_init=[nothing*]", "model.keep_init"),
        ("model.branches=[nothing*]", "model.branches"),
        ("'model.roles=[\"*.weight\"]'", "model.roles"),
        ("'model.roles=[\"*.weight=inner\"]'", "model.roles[*.weight]"),
        ('model.frozen=["*"]', "model.frozen"),
    ],
)
def test_patterns_are_checked_before_anything_runs(word: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings("search=lr", "parameterization=mup", word.strip("'"))
    assert caught.value.key == key


def test_roles_fit_on_a_command_line() -> None:
    given = settings("search=lr", "parameterization=mup", 'model.roles=["qkv.*=readout"]')
    from sweeper.settings import placeholder_data
    from sweeper.training.prepare import prepare

    prepared = prepare(given.spec(placeholder_data(given), "float32", given.base))
    roles = {spec.name: spec.role for spec in prepared.specs}
    assert roles["qkv.0.weight"] == "readout" and roles["up.0.weight"] == "hidden"


BROKEN = """
import torch.nn.functional as F
from tests.training.plain_decoders import PlainDecoder

class Logits(PlainDecoder):
    def loss(self, logits, targets):
        return logits

class Raises(PlainDecoder):
    def loss(self, logits, targets):
        if not logits.is_meta:
            raise RuntimeError("a bug of mine")
        return super().loss(logits, targets)

class Nan(PlainDecoder):
    def loss(self, logits, targets):
        return super().loss(logits, targets)[1] * float("nan")
"""


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Logits", "must return the loss"),
        ("Raises", "broken_nets.py:12, in loss: raise RuntimeError"),
        ("Nan", "on two examples it is nan"),
    ],
)
def test_a_model_that_cannot_train_is_refused_before_anything_is_written(
    name: str, said: str, dry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from sweeper.cli import main

    (tmp_path / "broken_nets.py").write_text(BROKEN)
    (tmp_path / "text.txt").write_text("some text " * 400)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = ["search=lr", "data=text", "data.path=text.txt", "train.steps=4", "train.seq_len=8"]
    words += [f"model._target_=broken_nets.{name}", "study=broken", *SIZES]
    monkeypatch.setattr("sys.argv", ["sweeper", "search", *words, *(["--dry-run"] * dry)])
    with pytest.raises(SystemExit) as ended:
        main()
    said_by_us = capsys.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said_by_us
    assert said in said_by_us, said_by_us
    assert not (tmp_path / "runs" / "broken").exists()


def test_a_plan_of_a_plain_model_lists_what_the_search_applied(tmp_path: Path) -> None:
    """The engine scaled attention where the model calls it; the user's own loop must."""
    from sweeper.settings import placeholder_data
    from sweeper.training.prepare import prepare
    from sweeper.transfer.ladder import Size
    from sweeper.transfer.plan import make_plan
    from sweeper.trial import defaults, plain

    given = settings("search=lr", "parameterization=mup", 'model.branches=["out.*","down.*"]')
    target = Size(width=64, depth=4)
    prepared = prepare(given.spec(placeholder_data(given), "float32", target))
    plan = make_plan(prepared, given.base, target, plain(defaults(given.space)), {})
    assert json.dumps(plan.to_json())
    text = "\n".join(plan.needs)
    assert "multiply q k^T by 0.125" in text, "1/d at head size 8"
    assert "out.*: multiply the branch's output by 0.5" in text, "depth 1 to 4 under depth-muP"
