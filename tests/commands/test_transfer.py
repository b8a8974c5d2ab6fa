import json
import math
import os
import shutil
import socket
from pathlib import Path

import pytest

from sweeper.commands.transfer import split_root
from sweeper.lock import StudyLock
from tests.commands.driver import Run, assert_refused, rewrite_results, tree

QUICK = ["transfer.widths=[16,32]", "transfer.seeds=2", "transfer.span=0.5", "transfer.extend=0"]
"""A ladder of two widths, three points a curve."""


class TestPlan:
    def test_is_shown_and_written(self, sweeper: Run, study: Path) -> None:
        answer = sweeper("transfer", "--to-width", "64", "--to-depth", "3")
        assert answer.code == 0 and answer.err == ""
        assert "Plan for width 64, depth 3 (tuned at width 16, depth 1)" in answer.out
        assert "layers.0-2.attention.qkv.weight" in answer.out and "readout" in answer.out
        plan = json.loads((study / "transfer/w64-d3/plan.json").read_text())
        best = json.loads((study / "search.json").read_text())["best"]
        assert plan["hps"] == best and plan["target"] == {"width": 64, "depth": 3}
        assert plan["source"]["study"] == "a" and plan["source"]["eta_from"] == "the study"
        assert answer.out.splitlines()[-1] == (
            "Next: sweeper transfer --study=a --to-width=64 --to-depth=3 --validate"
        )

    def test_json(self, sweeper: Run, study: Path) -> None:
        answer = sweeper("transfer", "--to-width", "32", "--json")
        assert answer.document["plan"]["target"] == {"width": 32, "depth": 1}
        assert answer.document["verdicts"] is None and "Plan for" in answer.err

    def test_of_the_latest_study_or_of_another(self, sweeper: Run, study: Path) -> None:
        shutil.copytree(study, study.with_name("b"), copy_function=shutil.copy)
        assert sweeper("transfer", "--to-width", "32", "--json").document["study"] == "b"
        document = sweeper("transfer", "--study", "a", "--to-width", "32", "--json").document
        assert document["study"] == "a"

    def test_another_root(self, sweeper: Run, study: Path, workplace: Path) -> None:
        os.rename(workplace / "runs", workplace / "my runs")
        answer = sweeper("transfer", "--to-width", "32", 'root="my runs"')
        assert answer.code == 0 and "Plan: my runs/a/transfer/w32-d1/plan.json" in answer.out
        assert not (workplace / "runs").exists()

    def test_an_eta_of_ones_own(self, sweeper: Run, study: Path) -> None:
        answer = sweeper("transfer", "--to-width", "32", "transfer.eta=-3", "--json")
        assert answer.document["plan"]["hps"]["eta"] == 2.0**-3
        assert answer.document["plan"]["source"]["eta_from"] == "transfer.eta"

    def test_a_search_that_is_not_finished(self, sweeper: Run, study: Path) -> None:
        rewrite_results(study, lambda lines: lines[1:])
        assert "the search is not finished" in sweeper("transfer", "--to-width", "32").out
        rewrite_results(study, lambda lines: ["{", *lines[1:]])
        assert "is damaged" in sweeper("transfer", "--to-width", "32").out
        rewrite_results(study, lambda lines: [])
        assert_refused(
            sweeper("transfer", "--to-width", "32"), "has no finished trial of this configuration"
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to-width", "100"], "--to-width 100: a multiple of head_size"),
        (["--to-width", "8" + "0" * 18], "--to-width 8000000000000000000: at most"),
        (["--to-width", "32", "--to-depth", "1000000"], "--to-depth 1000000: at most"),
        (["--to-width", "32", "--study", "nope"], "there is no study 'nope' in runs; known: a"),
        (["--to-width", "32", "--study", "../a"], "study.name='../a' is refused"),
        (["--to-width", "32", "parameterization=mup"], "parameterization cannot be changed"),
        (["--to-width", "32", "parameterization.space.eta.low=0"], "cannot be changed for"),
        (["--to-width", "32", "experiment=demo"], "experiment cannot be changed"),
        (["--to-width", "32", "study=b"], "study cannot be changed"),
        (["--to-width", "32", "train.steps=5"], "no finished trial of this configuration"),
        (["--to-width", "32", "train.stepz=5"], "did you mean train.steps"),
        (["--to-width", "32", "train=null"], "train=None is refused"),
        (["--to-width", "32", "~transfer.widths"], "cannot be taken away"),
        (["--to-width", "32", "+foo=1"], "foo=1 is refused"),
        (["--to-width", "32", "transfer.widths=[20]"], "transfer.widths=20 is refused"),
        (["--to-width", "32", "transfer.max_shift=nan"], "transfer.max_shift=nan is refused"),
        (["--to-width", "32", "data.path=/nope"], "/nope cannot be read"),
        (["--to-width", "32", "data=tokens"], "data.path needs a value"),
        (["--to-width", "32", "root=nope"], "there is no study in nope yet"),
        (["--to-width", "32", "root=text.txt"], "root='text.txt' is refused"),
        (["--to-width", "32", "root=${oc.env:NOPE_NOPE}"], "'NOPE_NOPE' not found"),
        (["--to-width", "32", "--strict"], "give both"),
        (["--to-width", "32", "a,b"], "is not an override"),
        (["--to-width", "32", "launcher.device=tpu"], "launcher.device='tpu' is refused"),
    ],
)
def test_bad_input_is_one_message_and_writes_nothing(
    sweeper: Run, study: Path, words: list[str], said: str
) -> None:
    before = tree(study)
    flag = ["--json"] * (len(said) % 2)
    assert_refused(sweeper("transfer", *words, *flag), said)
    assert tree(study) == before


@pytest.mark.parametrize("text", ["{{{", "", "3", "- 1\n", "model: 3\n", "\x00", "a: ${nope}"])
def test_a_damaged_config_of_the_study(sweeper: Run, study: Path, text: str) -> None:
    (study / "config.yaml").write_text(text)
    assert_refused(sweeper("transfer", "--to-width", "32"))


class TestValidate:
    def test_trains_the_ladder_once(self, sweeper: Run, study: Path) -> None:
        words = ["transfer", "--to-width", "32", "--validate", *QUICK]
        first = sweeper(*words)
        assert first.code == 0 and first.err.startswith("validate: 1/12 trials\nSpeed at ")
        assert "Learning-rate curves over width" in first.out
        assert "The transfer over width " in first.out
        folder = study / "transfer/w32-d1"
        names = {path.name for path in folder.iterdir()}
        assert names == {"plan.json", "validation.json", "curves-width.png", "curves-width.svg"}
        curves = json.loads((folder / "validation.json").read_text())["curves"]
        assert [(c["width"], len(c["points"])) for c in curves] == [(16, 3), (32, 3)]
        again = sweeper(*words)
        assert (again.code, again.out, again.err) == (0, first.out, "")

    def test_strict_exits_with_3_unless_it_holds(self, sweeper: Run, study: Path) -> None:
        words = ["transfer", "--to-width", "32", "--validate", "--strict", "--json", *QUICK]
        fails = sweeper(*words, "transfer.max_regret=1e-9", "transfer.seeds=1")
        assert fails.code == 3
        assert fails.document["verdicts"][0]["answer"] in ("fails", "cannot say yet")
        holds = sweeper(*words, "transfer.max_regret=1000", "transfer.max_shift=50")
        answer = holds.document["verdicts"][0]["answer"]
        assert holds.code == {"holds": 0}.get(answer, 3)

    def test_a_target_that_is_deeper_adds_the_ladder_over_depth(
        self, sweeper: Run, study: Path
    ) -> None:
        words = ["--to-width", "16", "transfer.depths=[2]", "transfer.widths=[16]"]
        answer = sweeper("transfer", "--validate", *QUICK, *words, "--json")
        assert [verdict["axis"] for verdict in answer.document["verdicts"]] == ["depth"]

    def test_a_second_driver_is_refused(self, sweeper: Run, study: Path) -> None:
        with StudyLock(study):
            answer = sweeper("transfer", "--to-width", "32", "--validate", *QUICK, "--json")
        assert (answer.code, answer.out) == (2, "")
        who = f"process {os.getpid()} on {socket.gethostname()}"
        assert f"study a already has a driver: {who}" in answer.err.splitlines()[-1]

    def test_runs_that_diverge_are_a_finding(self, sweeper: Run, study: Path) -> None:
        words = ["transfer", "--to-width", "32", "--validate", *QUICK, "transfer.eta=55"]
        answer = sweeper(*words, "--json")
        assert answer.code == 0 and "Traceback" not in answer.err
        assert answer.document["verdicts"][0]["answer"] in ("fails", "cannot say yet")
        losses = json.loads((study / "transfer/w32-d1/validation.json").read_text())["curves"]
        assert math.inf in [float(x) for p in losses[1]["points"] for x in p["losses"]]


def test_root_is_told_from_other_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_root([]) == (Path("runs"), [])
    monkeypatch.setenv("WHERE", "/data")
    words = ["a.b=1", "root=${oc.env:WHERE}/runs", "c=2"]
    assert split_root(words) == (Path("/data/runs"), ["a.b=1", "c=2"])
    assert split_root(['root="~/x"'])[0] == Path.home() / "x"
