import hashlib
import shlex
from dataclasses import replace
from io import BytesIO
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sweeper.engine.prepare import prepare
from sweeper.engine.runner import Engine
from sweeper.evidence.runs.curves import earlier_runs
from sweeper.files import read_json
from sweeper.study.study import StudyRecord
from sweeper.trial import Log2Hps, Result
from tests.cli.driver import Run
from tests.evidence.made import record_results, validated
from tests.evidence.predict.test_decision import surface

WIDTHS = (16, 32, 64, 128)


def law(params: float, tokens: float) -> float:
    return 1.5 + 60 / params**0.4 + 40 / tokens**0.5


@pytest.fixture(scope="module")
def of_law(finished: Path) -> list[Result]:
    """Results of widths x steps, two rates and two seeds each, by the law; one has diverged."""
    trained = StudyRecord.read(finished).results()[0].trial
    random, results, train = np.random.default_rng(0), [], trained.spec.train
    for width, times in product(WIDTHS, (1, 4, 16, 64)):
        steps = train.steps * times
        tokens = steps * train.batch_size * train.seq_len
        best = law(prepare(replace(trained.spec, width=width)).parameters(), tokens)
        for (eta, worse), seed in product(((0.0, 0.0), (2.0, 0.3)), range(2)):
            end = (best + worse) * np.exp(0.002 * random.standard_normal())
            results.append(validated(trained, width, eta, seed, objective=end, steps=steps))
    diverged = replace(results[0], status="diverged", objective=float("inf"))
    diverged = replace(diverged, trial=replace(results[0].trial, log2_hps=Log2Hps({"eta": 5.0})))
    return [*results, diverged]


@pytest.fixture
def ladder(of_law: list[Result], study: Path) -> Path:
    record_results(study, of_law)
    return study


def test_a_study_predicts_a_wider_and_longer_run(ladder: Path, sweeper: Run) -> None:
    answer = sweeper("predict", "--to-width", "256", "--to-tokens", "51200", "--json")
    assert answer.code == 0, answer.err
    document = answer.document
    trained = StudyRecord.read(ladder).results()[-1].trial.spec
    size = prepare(replace(trained, width=256)).parameters()
    screen = document["prediction"]
    assert document["answer"] == "predicted"
    assert document["target"]["params"] == size
    assert screen["low"] < law(size, 51200) < screen["high"]
    assert screen["high"] - screen["low"] < 0.4
    # Half the runs are at the worse rate, one diverged; the search's own are beside it.
    assert document["inputs"]["runs"] == len(WIDTHS) * 4 * 2
    why = {why: count for count, why in document["inputs"]["left_out"]}
    assert why["not finished, or diverged"] == "1 run"
    assert any("optimum" in reason for reason in why)
    path = ladder / "transfer" / "w256-d1" / "prediction.json"
    report = (ladder / "report.html").read_text()
    assert 'href="transfer/w256-d1/prediction.html"' in report
    assert hashlib.sha256(path.read_bytes()).hexdigest() == document["sha256"]
    names = {f"prediction.{ending}" for ending in ("html", "json", "png", "svg")}
    assert {file.name for file in path.parent.iterdir()} == names


def test_a_budget_names_a_model_of_the_study(ladder: Path, sweeper: Run) -> None:
    document = sweeper("predict", "--flops", "1e12", "--json").document
    choice = document["choice"]
    assert choice["depth"] == 1
    assert choice["width"] % 16 == 0
    trained = StudyRecord.read(ladder).results()[-1].trial.spec
    size = prepare(replace(trained, width=choice["width"])).parameters()
    assert size == pytest.approx(document["optimum"]["params"]["value"], rel=0.35)
    assert choice["steps"] > 0


def test_a_command_that_takes_no_batch_counts_in_steps(
    ladder: Path, sweeper: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = {"batch_size", "seq_len"}
    monkeypatch.setattr(Engine, "takes", lambda _, name: name not in takes)
    answer = sweeper("predict", "--to-width", "256", "--to-tokens", "6400", "--json")
    assert answer.code == 0, answer.err
    inputs, target = answer.document["inputs"], answer.document["target"]
    assert (inputs["unit"], inputs["flops_known"]) == ("steps", False)
    assert inputs["varied"] == "parameters and steps" and target["tokens"] == 6400
    answer = sweeper("predict", "--to-width", "256", "--to-tokens", "6400")
    assert "6.4e+03 steps (" in answer.out
    assert "FLOPs" not in answer.out and " tokens (" not in answer.out
    assert sweeper("predict", "--flops", "1e15").code == 2


def test_what_would_tell_is_a_width_and_a_command_that_trains_it(study: Path, sweeper: Run) -> None:
    trained, results = StudyRecord.read(study).results()[0].trial, []
    for width, eta, seed in product((16, 32, 64), (-1.0, 0.0, 1.0), range(3)):
        params = prepare(replace(trained.spec, width=width)).parameters()
        loss = 1.5 + 60 / params**0.4 + 0.05 * eta**2 + 0.003 * seed
        results.append(validated(trained, width, eta, seed, objective=loss))
    record_results(study, results)
    answer = sweeper("predict", "--to-width", "512")
    assert answer.code == 0, answer.err
    assert "run more would tell: width " in answer.out
    command = shlex.split(answer.out.partition("Next, to train what would tell:")[2])
    assert command[:2] == ["sweeper", "transfer"] and "--horizons" in command
    assert sweeper(*command[1:], "--dry-run", "--json").document["sizes"]
    assert len(answer.out.splitlines()) <= 25


def test_the_rungs_that_are_missing_are_trained_and_predict(study: Path, sweeper: Run) -> None:
    flags = ("--to-width", "64", "--horizons", "transfer.widths=[16,32,48]", "transfer.seeds=2")
    flags = (*flags, "transfer.steps=[1,2]")
    dry = sweeper("transfer", *flags, "--dry-run", "--json").document
    # One of the base is the search's own.
    assert [row["runs"] for row in dry["sizes"]] == [5, 6, 6]
    assert dry["branches"] == {"runs": 0, "steps": 0}
    before = len(StudyRecord.read(study).results())
    answer = sweeper("transfer", *flags, "--json")
    assert answer.code == 0, answer.err
    after = StudyRecord.read(study).results()
    assert len(after) == before + 17
    (following,) = answer.document["next"]
    document = sweeper(*shlex.split(following["command"])[1:], "--json").document
    assert document["inputs"]["runs"] == 18
    target = prepare(replace(after[-1].trial.spec, width=64))
    assert document["target"]["params"] == target.parameters()
    # The target is planned, too.
    (written,) = study.glob("transfer/*/plan.json")
    assert read_json(written)["target"]["width"] == 64
    again = sweeper("transfer", *flags)
    assert len(StudyRecord.read(study).results()) == len(after) and "Plan: " in again.out
    nothing = sweeper("transfer", *flags, "--dry-run").out
    assert "0 of 18 runs are to be trained" in nothing


def test_tokens_that_no_law_plans_are_refused_as_for_the_plan(study: Path, sweeper: Run) -> None:
    flags = ("transfer", "--to-width", "64", "--to-tokens", "4096")
    plan = sweeper(*flags)
    assert plan.code == 2 and "law=none has no rule" in plan.err
    refused = sweeper(*flags, "--horizons", "transfer.steps=[1,2]")
    assert (refused.code, refused.err) == (2, plan.err)
    named = sweeper(*flags, "--horizons", "--dry-run", "transfer.steps=[1,2]", "law=joint")
    assert named.code == 0, named.err


@pytest.fixture
def table(tmp_path: Path) -> Path:
    named = surface().rename(columns={"params": "n_params", "loss": "final loss"})
    named.to_csv(path := tmp_path / "runs.csv", index=False)
    return path


def test_a_table_comes_by_a_pipe(
    table: Path, sweeper: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = table.read_bytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(text)))
    flags = ("-", "--columns", "loss=final loss", "--json")
    answer = sweeper("predict", *flags)
    document = answer.document
    # Nothing is left of a pipe that a next command could read.
    assert document["inputs"]["source"] == "stdin" and "Next" not in answer.err
    assert "params is 'n_params'" in answer.err and document["law"]["form"] == "additive"
    assert document["inputs"]["sha256"] == hashlib.sha256(text).hexdigest()
    assert Path("runs/predictions/stdin/prediction.json").exists()


def test_three_rungs_at_one_ratio_cannot_say_yet(tmp_path: Path, sweeper: Run) -> None:
    head, path = "params,tokens,loss", tmp_path / "three.csv"
    rows = [f"{n},{20 * n},{1.7 + 400 / n**0.34 + 410 / (20 * n) ** 0.28}" for n in (1e7, 3e7, 9e7)]
    path.write_text("\n".join([head, *rows]))
    flags = ["predict", str(path), "--to-params", "1e9", "--to-tokens", "2e10"]
    answer = sweeper(*flags)
    assert answer.code == 0, answer.err
    assert "Cannot say yet: 3 runs of 3 different sizes" in answer.out
    assert "1 run more would tell (parameters x tokens): 2.7e+08 x 5.4e+09" in answer.out
    assert not Path("runs/predictions").exists()
    document = sweeper(*flags, "--json").document
    assert document["answer"] == "cannot say yet" and len(document["settle"]) == 1
    # Of nine runs, six off their best rate: why three count is said where no law is, too.
    tried = [f"{row}{'1' * n},{rate}" for row in rows for n, rate in enumerate((0.01, 0.02, 0.04))]
    path.write_text("\n".join([f"{head},lr", *tried]))
    assert "left out: 6 runs off the best 'lr'" in sweeper(*flags).out


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--to-params", "1e9"], "--to-params="),
        (["TABLE", "--to-width", "64"], "--to-width="),
        (["--to-width", "256"], "three sizes"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_and_writes_nothing(
    table: Path, study: Path, sweeper: Run, flags: list[str], key: str
) -> None:
    named = {"TABLE": [str(table), "--columns", "loss=final loss"]}
    answer = sweeper("predict", *(word for flag in flags for word in named.get(flag, [flag])))
    assert answer.code == 2 and key in answer.err
    assert not Path("runs/predictions").exists()


def test_curves_of_earlier_runs_are_a_band_where_their_sizes_are_the_law_s(
    table: Path, sweeper: Run
) -> None:
    random, steps = np.random.default_rng(0), np.arange(40)
    rows = [
        (f"{size:g} {seed}", step, 3 * (1 + 0.4 / (1 + step)) * (1 + 0.01 * random.normal()), size)
        for size in (1e7, 2e7, 4e7)
        for seed in range(2)
        for step in steps.tolist()
    ]
    curves = table.parent / "curves.csv"
    flags = ("predict", str(table), "--curves", "curves.csv", "--root", "p")
    asked = ("--to-params", "1e9", "--to-tokens", "2e10")
    for column, screen in (("width", "several widths"), ("params", "")):
        lines = [f"{run},{step},{loss},{size:g}" for run, step, loss, size in rows]
        curves.write_text("\n".join([f"run,step,loss,{column}", *lines]))
        answer = sweeper(*flags, *asked)
        assert answer.code == (2 if screen else 0), answer.err
        assert screen in answer.err
    document = read_json(table.parent / "p/predictions/runs/prediction.json")
    assert document["band"]["sizes"] == 3
    answer = sweeper(*flags)
    assert answer.code == 2 and "a run to come, or its budget" in answer.err
    (table.parent / "logs").mkdir()
    answer = sweeper(*flags[:3], "logs", *asked)
    assert answer.code == 2 and "a row a step" in answer.err and "--metric" not in answer.err


def test_earlier_runs_of_a_study_are_those_of_most_steps_as_long_as_they_were(study: Path) -> None:
    trained, results = StudyRecord.read(study).results()[0].trial, []
    for steps, seed in product((40, 80), range(2)):
        curve = tuple(3 + 1 / (1 + k) + 0.01 * seed for k in range(40))
        told = {"objective": 3.0, "steps": steps, "curve": curve}
        results.append(validated(trained, 512, 0.0, seed, **told))
    record_results(study, results)
    runs = earlier_runs(study, "", where="width == 512")
    assert [run.length for run in runs] == [80, 80]
    # Readings are means of two steps, counted from 0.
    assert runs[0].steps[:2].tolist() == [0.5, 2.5] and runs[0].steps[-1] == 78.5
