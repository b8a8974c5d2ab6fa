import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from sweeper.evidence.follow.decision import read_prediction
from sweeper.evidence.predict.band import rebinned, stretch_edges
from sweeper.schedule import OWN
from sweeper.study.study import StudyRecord
from sweeper.trial import curve
from tests.cli.driver import Run
from tests.evidence.made import STEPS, prediction, record_results, run, validated
from tests.evidence.predict.test_band import ladder

METRIC = ("--metric", "jsonl:log.jsonl:loss")


@pytest.fixture
def folder(workplace: Path) -> Path:
    prediction().write(workplace / "transfer/w64")
    return workplace / "transfer/w64"


def write(losses: np.ndarray) -> None:
    rows = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses.tolist())]
    Path("log.jsonl").write_text("\n".join(rows) + "\n")


def follow(sweeper: Run, *flags: str):  # type: ignore[no-untyped-def]
    prediction = ["--prediction", "transfer/w64/prediction.json"]
    usual = (*prediction, *METRIC)
    filled = [w for i in (0, 2) if usual[i] not in flags for w in usual[i : i + 2]]
    return sweeper("follow", *filled, *flags)


def test_a_run_on_course_ends_by_0_and_one_off_it_by_3(folder: Path, sweeper: Run) -> None:
    write(run(1)[:600])
    answer = follow(sweeper, "--once")
    assert answer.code == 0, answer.err
    assert "On the band at step 599" in answer.out and ": not reached" in answer.out
    page = (folder / "follow.html").read_text()
    assert 'http-equiv="refresh"' in page and "http://" not in page.replace("http://www.w3", "")
    write(run(1)[:600] * np.exp(0.08 * (np.arange(600) >= 300)))
    answer = follow(sweeper, "--once", "--json")
    assert answer.code == 3
    assert answer.document["state"] == "above"
    assert abs(answer.document["since"] - 300) <= 20


def test_the_live_view_ends_with_the_run_by_a_mean(folder: Path, sweeper: Run) -> None:
    losses = run(2)
    write(losses)
    answer, end = follow(sweeper), losses[-STEPS // 10 :].mean()
    assert answer.code == 0
    message = f"mean of its last 100 losses is {end:.4f} (the last one {losses[-1]:.4f}); predict"
    assert message in " ".join(answer.out.split())
    document = follow(sweeper, "--once", "--json").document
    assert document["end"] == pytest.approx(end) and document["last"] == losses[-1]
    assert not (folder / "outcome.json").exists()
    assert 'http-equiv="refresh"' not in (folder / "follow.html").read_text()


def test_a_held_out_end_is_forecast_and_not_read(workplace: Path, sweeper: Run) -> None:
    prediction(gap=1.05).write(workplace / "transfer/w64")
    write(run(4))
    answer = follow(sweeper, "--once", "--json")
    assert answer.code == 0 and answer.document["ended"] and answer.document["end"] is None
    assert answer.document["end_is"] == "its held-out loss at the end"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--metric", "jsonl:none.jsonl:loss"), "none.jsonl"),
        (("--metric", "jsonl:log.jsonl:other"), "other"),
        (("--steps", "200"), "--steps"),
        (("--run", "nowhere"), "--run"),
        (("--prediction", "nothing.json"), "nothing.json"),
        (("--prediction", ""), "--prediction='' is refused"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, sweeper: Run, flags: tuple[str, ...], message: str
) -> None:
    write(run(5)[:600])
    answer = follow(sweeper, "--once", *flags)
    assert answer.code == 2
    assert message in answer.err and not answer.crashed and "{dir}" not in answer.err
    assert not (folder / "follow.html").exists()


def test_a_study_s_prediction_has_the_band_of_its_curves(study: Path, sweeper: Run) -> None:
    trained, results = StudyRecord.read(study).results()[0].trial, []
    curves = ladder(seeds=3)
    for (place, losses), steps in product(enumerate(curves.curves), (50, 100, 200)):
        width = (16, 32, 64)[int(curves.cell[place])]
        for eta, factor in ((0.0, 1.0), (1.0, 1.01)):
            shown = (np.asarray(losses).repeat(2) * factor * (1 + 10 / steps)).tolist()
            kept = tuple(curve(rebinned(shown, stretch_edges(0, 200), stretch_edges(0, steps))))
            told = {"objective": float(np.mean(kept[-len(kept) // 10 :])), "curve": kept}
            results.append(validated(trained, width, eta, place % 3, steps=steps, **told))
    record_results(study, results)
    answer = sweeper("predict", "--to-width", "128", "--to-tokens", "6400", "--json")
    assert answer.code == 0, answer.err
    path = study / "transfer/w128-d1/prediction.json"
    band = read_prediction(path).band
    assert (band.runs, band.sizes, band.steps) == (27, 9, 200)
    assert {direction.name for direction in band.directions} == {"size", "eta"}
    x = (np.arange(len(band)) + 0.5) / len(band)
    assert np.corrcoef(band.mean, np.exp(-6 * x))[0, 1] > 0.99
    assert band.window == pytest.approx(0.1)
    assert math.isclose(max(band.lr), 1.0, rel_tol=0.1)


def test_a_rate_that_jumps_is_off_the_ladder_and_the_schedule_is_named(
    folder: Path, sweeper: Run
) -> None:
    made = prediction()
    replace(made, band=replace(made.band, schedule=OWN)).write(folder)
    for jump, code in ((1.0, 0), (4.0, 3)):
        rates = [0.01 * min(1.0, (i + 1) / 50) * (1 - i / STEPS) for i in range(600)]
        rows = [
            {"step": i, "loss": loss, "lr": rate * (jump if i >= 333 else 1.0)}
            for i, (loss, rate) in enumerate(zip(run(1)[:600].tolist(), rates, strict=True))
        ]
        Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        answer = follow(sweeper, "--once", "--lr", "jsonl:log.jsonl:lr")
        assert answer.code == code, answer.err
        message = " ".join((answer.out + answer.err).split())
        assert "its script's own, and not known" in message and "cosine" not in message
        assert ("the learning rate went from 0.00668 to 0.0267" in message) == (code == 3)
        assert ("step 333" in message) == (code == 3)


def test_earlier_runs_are_a_band_and_a_log_that_goes_on_without_losses_is_off_it(
    workplace: Path, sweeper: Run
) -> None:
    """Megatron leaves the field out where the loss is NaN."""
    random = np.random.default_rng(0)

    def write_log(path: Path, steps: int, last: int) -> None:
        level = 1 + 0.002 * random.standard_normal()
        lines = []
        for step in range(1, steps + 1):
            loss = (2.2 + 3 * math.exp(-step / 50)) * level * (1 + 0.01 * random.standard_normal())
            field = f"lm loss: {loss:.6E} | " if step <= last else ""
            lines.append(f" iteration {step}/ 400 | learning rate: 1.9E-03 | {field}norm: 0.7 |")
        path.write_text("\n".join(lines) + "\n")

    (workplace / "seeds").mkdir()
    for seed in range(5):
        write_log(workplace / f"seeds/{seed}.log", 400, 400)
    metric = r"iteration +(?P<step>\d+)/.*lm loss: (?P<loss>\S+)"
    flags = ("follow", "--prediction", "seeds", "--metric", metric, "--once", "--run")
    for name, last, code in (("healthy", 300, 0), ("nan", 200, 3)):
        write_log(workplace / f"{name}.log", 300, last)
        answer = sweeper(*flags, f"{name}.log")
        assert answer.code == code, answer.err
        assert ("No loss since step 200, though the log goes on" in answer.out) == (code == 3)
    assert sweeper("follow", "--metric", metric, "--run", "nan.log", "--once").code == 2
    # One log is no band, and no storage of Optuna's either.
    for path in (workplace / "healthy.log", (workplace / "nan.log").rename(workplace / "nan.txt")):
        alone = sweeper("follow", "--prediction", path.name, *flags[3:], "healthy.log")
        assert alone.code == 2 and "has 1 run: a band needs several" in alone.err
