import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sweeper.errors import call_words
from sweeper.files import read_json
from sweeper.report.checked import _explains
from sweeper.stats.ladder import Size
from tests.cli.driver import SIZES, Run
from tests.toy_models import Biased

QUICK = [
    "data=text",
    "data.path=text.txt",
    *SIZES,
    "transfer.widths=[16,32,64]",
    "check.steps=2",
    "check.seeds=3",
    "check.batch=2",
    "check.scale_steps=2",
]


class TestCoordinates:
    def test_standard_fails_and_says_where(self, sweeper: Run, workplace: Path) -> None:
        argv = ["check", "parameterization=standard", "study=a", *QUICK]
        answer = sweeper(*argv, "--strict")
        assert answer.code == 3
        curves = "runs/a/check/coordinates-width.png"
        assert f"Check: runs/a/check/check.json; curves: {curves}\n" in answer.out
        assert answer.next.startswith(
            "sweeper explain --to-width 64 parameterization=standard study=a "
        )
        assert "Where it begins: layers.0.attention.qkv" in answer.out
        names = {path.name for path in (workplace / "runs/a/check").iterdir()}
        assert names == {"check.json", "coordinates-width.png", "coordinates-width.svg"}
        record = read_json(workplace / "runs/a/check/check.json")
        assert record["axes"][0]["answer"] == "fail" and record["base"]["width"] == 16
        assert record["log2_hps"]["eta"] == -8

    @pytest.mark.parametrize(
        ("failing", "words"),
        [
            ({"width": 64}, "--to-width 64"),
            ({"width": 16}, "--to-width 64"),  # nothing is wider than the base
            ({"depth": 8}, "--to-width 16 --to-depth 8"),
            ({"depth": 2}, "--to-width 16 --to-depth 8"),
            ({"width": 32, "depth": 4}, "--to-width 32 --to-depth 4"),
            ({"experts": 128}, "--to-width 64"),
        ],
    )
    def test_what_fails_over_the_depth_is_explained_at_a_depth(
        self, failing: dict[str, int], words: str
    ) -> None:
        call = _explains(Size(width=16, depth=2), failing).call
        assert call_words(call)[2:] == words.split()

    def test_of_a_study_with_its_optimum(self, sweeper: Run, study: Path) -> None:
        argv = ["check", "--study", "a", "check.seeds=1", "check.steps=1", "--json"]
        record = sweeper(*argv).document["check"]
        assert (study / "check/check.json").is_file()
        hps = json.loads((study / "search.json").read_text())["best"]
        assert {k: 2.0**v for k, v in record["log2_hps"].items()} == pytest.approx(hps)
        assert "Coordinate check over width" in (study / "report.html").read_text()
        changed = sweeper(*argv, "check.eta=-3").document["check"]
        assert changed["log2_hps"] == {**record["log2_hps"], "eta": -3}


@pytest.mark.long
def test_workers_measure_what_this_process_does(sweeper: Run, workplace: Path) -> None:
    """The runs are jobs like any other, and leave nothing behind."""
    argv = ["check", *QUICK, "transfer.widths=[16,32]", "check.seeds=2"]
    assert sweeper(*argv, "study=here").code == 0
    assert sweeper(*argv, "study=there", "launcher=local", "launcher.workers=1").code == 0
    files = (workplace / f"runs/{study}/check/check.json" for study in ("here", "there"))
    here, there = (json.loads(file.read_text()) for file in files)
    for record in (here, there):
        del record["command"], record["sum"]
    assert here == there
    assert not list((workplace / "runs/there").rglob("jobs/*"))


def test_scales(sweeper: Run, workplace: Path) -> None:
    argv = ["check", "--scales", *QUICK, "study=a", "--json"]
    answer = sweeper(*argv)
    assert answer.code == 0 and "Operands of the matrix products" in answer.err
    names = {path.name for path in (workplace / "runs/a/check").iterdir()}
    assert names == {"scales.json"} and not (workplace / "runs/a/report.html").exists()
    record = read_json(workplace / "runs/a/check/scales.json")
    assert {each["step"] for each in record} == {0, 2}
    assert {"product", "operand", "rms", "e4m3", "e5m2", "step"} == set(record[0])
    assert {each["operand"] for each in record} == {"input", "weight", "gradient"}
    assert answer.document["scales"] == record
    assert sweeper(*argv, "check.seed=1").document["scales"] != record


class Calls(Biased):
    times = 0

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        self.times += 1
        for _ in range(self.times % 3):
            h = self.layer(0, h)
        return super().loss(h, y)


class Bare(nn.Module):
    def __init__(self, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__()
        self.tokens, self.head = (nn.Parameter(torch.empty(classes, width)) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = (self.tokens[x][..., None, :] * self.head).sum(-1)
        return -logits.log_softmax(-1).gather(-1, y[..., None]).mean()


@pytest.mark.parametrize(
    ("net", "said"),
    [(Calls, "a forward pass that does the same"), (Bare, "no module's output was seen")],
)
@pytest.mark.usefixtures("workplace")
def test_an_odd_model_is_one_message(sweeper: Run, net: type[nn.Module], said: str) -> None:
    argv = [word for word in QUICK if "head_size" not in word]
    answer = sweeper(
        *["check", "parameterization=spectral", f"model._target_={__name__}.{net.__name__}"],
        *[*argv, "~model.head_size", "~model.ffn_ratio", "~model.norm_gain"],
    )
    assert answer.code == 2 and not answer.crashed, answer
    errors = [line for line in answer.err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and said in answer.err
