"""What the settings make of a user's own model: what is dropped, told, and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sweeper.config.compose import compose_tree
from sweeper.config.settings import Settings, resolve
from sweeper.data.corpus import placeholder_data
from sweeper.engine.prepare import prepare
from sweeper.errors import BadInput, ConfigError
from tests.cli.driver import TINY, call, make_workplace
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.toy_models import PlainDecoder

Patch = pytest.MonkeyPatch
PLAIN = "model._target_=tests.toy_models.PlainDecoder"
SIZES = ["model.width=16", "model.depth=1", "transfer.widths=[16,32]", "runner.device=cpu"]


def settings(*words: str) -> Settings:
    return resolve(compose_tree([PLAIN, *SIZES, *words]))


def arguments(*words: str) -> Any:
    return settings(*words).plugin_spec("model").arguments


def test_hyperparameters_that_change_nothing_are_dropped_with_a_note(golden: Golden) -> None:
    # At width 16 u-muP's backward multiplier of a head of 256 classes is the forward one.
    umup = settings("parameterization=umup", "search=independent", "model.width=32")
    assert list(umup.space) == ["eta", "alpha_attn", "alpha_loss_softmax"]
    dropped, branches, lacking, _ = umup.notes  # and nothing of SiLU, which it has not
    golden.says(branches)
    assert dropped.startswith("alpha_ffn_act, alpha_residual, alpha_residual_attn_ratio: changes")
    golden.says(lacking)


def notes_on(kind: str, **net: object) -> list[str]:
    words = ["model._target_=tests.toy_models.PlainNet", *SIZES, f"+model.kind={kind}"]
    words += ["parameterization=mup", *(f"+model.{key}={value}" for key, value in net.items())]
    return [
        note for note in resolve(compose_tree(words)).notes[:-1] if "changes nothing" not in note
    ]


def test_attention_alone_is_told_of_by_its_name() -> None:
    assert notes_on("linear", residual=False) == []
    (attention,) = notes_on("attention")
    assert attention.startswith("attention in layers.* keeps the factor on q k^T")


def test_branches_are_told_of_by_a_pattern_that_can_be_pasted(golden: Golden) -> None:
    (branches,) = notes_on("linear", bare=True)
    golden.says(branches)
    assert notes_on("linear", bare=True, branches="[layers.*]") == []


class Mixing(nn.Module):
    """A block of two branches, the first of a parameter of its own: no module makes its output."""

    def __init__(self, width: int, seq_len: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(seq_len, seq_len) / seq_len)
        self.norm, self.down = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens @ x
        return x + self.down(self.norm(x))


class Mixer(nn.Module):
    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(classes, width)
        self.b = nn.Sequential(*(Mixing(width, seq_len) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.b(self.rows(tokens)))


def test_a_block_with_its_skip_is_no_branch(golden: Golden) -> None:
    """The stream that a block gets is made outside of it; what it adds, within."""
    words = [f"model._target_={__name__}.Mixer", *SIZES, "model.depth=2", "parameterization=mup"]
    (note,) = (n for n in resolve(compose_tree(words)).notes if "model.branches" in n)
    golden.says(note)
    with raises_config_error("model.branches", "b.*.down"):
        resolve(compose_tree([*words, 'model.branches=["b.*","b.*.down"]']))


def test_own_models_lose_nothing_and_are_told_nothing() -> None:
    ours = resolve(compose_tree(["parameterization=umup", "runner.device=cpu"]))
    assert len(ours.space) == 6 and ours.notes == ()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["search=independent", "search.axes=[eta,alpha_ffn_act]"], "search"),
        (["search=lr", "transfer.hyperparameter=alpha_ffn_act"], "transfer.hyperparameter"),
    ],
)
def test_one_that_is_asked_for_by_name_is_refused(
    words: list[str], key: str, golden: Golden
) -> None:
    with raises_config_error(key, "alpha_ffn_act", golden):
        settings("parameterization=umup", *words)


def test_what_is_said_of_a_model_is_part_of_its_trials_and_nothing_said_is_not() -> None:
    assert arguments("search=lr") == {} == arguments("search=lr", "model.frozen=[]")
    assert arguments("search=lr", "model.frozen=[rows*]") == {"frozen": ["rows*"]}


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("model.frozen=[nothing*]", "model.frozen"),
        ("model.branches=[nothing*]", "model.branches"),
        ("'model.roles=[\"*.weight\"]'", "model.roles"),
        ('model.roles=["nothing*=hidden"]', "model.roles[nothing*]"),
        ("'model.roles=[\"*.weight=inner\"]'", "model.roles[*.weight]"),
        ('model.frozen=["*"]', "model.frozen"),
    ],
)
def test_patterns_are_checked_before_anything_runs(word: str, key: str) -> None:
    with raises_config_error(key):
        settings("search=lr", "parameterization=mup", word.strip("'"))


def test_roles_fit_on_a_command_line() -> None:
    given = settings("search=lr", "parameterization=mup", 'model.roles=["qkv.*=readout"]')
    prepared = prepare(given.spec(placeholder_data(given.source), "float32", given.base))
    roles = {spec.name: spec.role for spec in prepared.specs}
    assert roles["qkv.0.weight"] == "readout" and roles["up.0.weight"] == "hidden"


def test_a_refusal_quotes_what_was_typed(golden: Golden) -> None:
    word = 'model.roles={"*.bias":vector}'
    with pytest.raises(BadInput) as refused:
        settings("search=lr", word)
    assert str(refused.value).startswith(repr(word))
    golden.says(str(refused.value))


class NamedOtherwise(nn.Module):
    def __init__(self, hidden: int, layers: int = 2) -> None:
        super().__init__()


PARSES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.parse_args()
"""


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (f"{__name__}.NamedOtherwise", ("def build(width, depth)", "it takes hidden, layers")),
        ("parses.Net", ("under if __name__ == '__main__':", "SystemExit")),
    ],
)
def test_a_class_that_cannot_be_built_is_told_what_to_write(
    target: str, said: tuple[str, ...], tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "parses.py").write_text(PARSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.argv", ["sweeper"])
    with pytest.raises(ConfigError) as caught:
        resolve(compose_tree([f"model._target_={target}", *SIZES]))
    assert all(word in str(caught.value) for word in said), str(caught.value)


class Logits(PlainDecoder):
    def loss(self, logits: Tensor, targets: Tensor) -> Any:
        return logits


class Raises(PlainDecoder):
    def loss(self, logits: Tensor, targets: Tensor) -> Any:
        if not logits.is_meta:
            raise RuntimeError("a bug of mine")
        return super().loss(logits, targets)


class Nan(PlainDecoder):
    def loss(self, logits: Tensor, targets: Tensor) -> Any:
        return super().loss(logits, targets)[1] * float("nan")


@pytest.mark.parametrize(
    ("net", "dry", "sentence"),
    [
        (Logits, True, "must return the loss"),
        (Raises, False, ", in loss: raise RuntimeError"),
        (Nan, False, "on two examples it is nan"),
    ],
)
def test_a_model_that_cannot_train_is_refused_before_anything_is_written(
    net: type, dry: bool, sentence: str, tmp_path: Path, monkeypatch: Patch, capsys: Any
) -> None:
    monkeypatch.chdir(make_workplace(tmp_path))
    words = [word for word in TINY if "head_size" not in word]
    words += [f"model._target_={__name__}.{net.__name__}", "study=broken"]
    answer = call(capsys, "search", *words, *(["--dry-run"] * dry))
    assert answer.code == 2 and not answer.crashed and sentence in answer.err
    assert not (tmp_path / "runs" / "broken").exists()
