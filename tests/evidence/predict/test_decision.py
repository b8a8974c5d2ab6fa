import hashlib
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import sweeper
from sweeper import predict
from sweeper.errors import BadInput, ConfigError, as_text, spelled
from sweeper.evidence.follow.decision import read_prediction
from sweeper.evidence.predict.decision import (
    PREDICTED,
    UNDECIDED,
    LossTarget,
    Prediction,
    _far,
)
from sweeper.evidence.predict.page import answer_text, tables
from sweeper.evidence.predict.regime import BETTER, choose_runs, tried
from sweeper.evidence.runs.loss_runs import LossRuns, law_notes, law_runs, loss_runs_of
from sweeper.evidence.runs.read import read
from sweeper.files import parse_record
from tests.refusals import raises_config_error
from tests.stats.test_power_law import hoffmann as truth


def surface(
    sizes: int = 4, horizons: int = 4, seeds: int = 2, noise: float = 0.003, draw: int = 1
) -> Any:
    random = np.random.default_rng(draw)
    rows = [
        {"params": n, "tokens": d, "seed": seed}
        for n in 2e7 * 2.5 ** np.arange(sizes)
        for d in 5e8 * 2.0 ** np.arange(horizons)
        for seed in range(seeds)
    ]
    frame = pandas.DataFrame(rows)
    loss = 1.69 + 406.4 / frame.params**0.34 + 410.7 / frame.tokens**0.28
    frame["loss"] = loss * np.exp(noise * random.standard_normal(len(frame)))
    return frame


def test_many_runs_of_one_size_crowd_out_no_other() -> None:
    frame = surface()
    many = pandas.concat([frame, *[frame[:1]] * 5000], ignore_index=True)
    many["seed"] = range(len(many))
    kept = loss_runs_of(law_runs(read(many))).spread(100)
    counts = np.bincount(kept.cells)
    assert len(kept) == 100 and len(counts) == 16 and sorted(counts)[-2:] == [2, 70]


def predicted(frame: Any, **asked: Any) -> Prediction:
    return sweeper.predict(frame, **asked)


def notes_of(frame: Any) -> list[str]:
    """What is said of a table's runs before any law is fitted; BadInput where they allow none."""
    table = law_runs(read(frame))
    return [spelled(as_text(note)) for note in law_notes(table, loss_runs_of(table))]


@cache
def usual() -> Prediction:
    return predicted(surface(), to_params=1e9, to_tokens=1e10)


def test_a_grid_predicts_what_lies_beyond_it() -> None:
    made, real = usual(), 1.69 + 406.4 / 1e9**0.34 + 410.7 / 1e10**0.28
    assert made.answer == PREDICTED
    assert made.prediction.low < real < made.prediction.high
    assert made.prediction.high - made.prediction.low < 0.25
    assert [test.hit for test in made.back_test] == [True]
    assert made.target.beyond == pytest.approx(1e9 * 1e10 / (3.125e8 * 4e9))
    assert made.law.form == "additive" and not made.notes
    # By hand, of the parameters that the document has.
    names = ("E", "A", "B", "alpha", "beta")
    e, a, b, alpha, beta = (getattr(made.law, name).value for name in names)
    assert e + a / 1e9**alpha + b / 1e10**beta == pytest.approx(made.prediction.loss, abs=0.02)


def test_how_far_a_law_is_carried_is_said() -> None:
    runs = loss_runs_of(law_runs(read(surface())))
    largest = float(runs.flops.max())
    aims = [
        LossTarget(params=1.0, tokens=1.0, flops=flops, beyond=flops / largest)
        for flops in (8 * largest, 1e28, 1e13)
    ]
    near, (far,), (small,) = (_far(runs, aim) for aim in aims)
    assert not near and "no interval" in far and "smaller" in small


def test_equal_input_gives_equal_documents_and_the_digest_is_the_files(tmp_path: Path) -> None:
    made = usual()
    path = made.write(tmp_path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made.sha256
    again = predicted(surface(), to_params=1e9, to_tokens=1e10)
    first, second = (parse_record(each.text().encode()) for each in (made, again))
    assert first.pop("time")[:10] == second.pop("time")[:10]
    assert first == second
    assert made.text().replace('"loss": 2', '"loss": 1') != made.text()
    path.write_text(made.text().replace('"loss": 2', '"loss": 1'))
    with pytest.raises(BadInput, match="it was changed since it was written"):
        read_prediction(path)


def test_one_axis_alone_predicts_along_it() -> None:
    frame = surface(6, 4, 3)
    frame = frame[frame.tokens == 5e8]
    made = predicted(frame, to_params=1e10)
    assert made.law.form == "size"
    assert made.target.tokens == 5e8
    with pytest.raises(BadInput):
        predicted(frame, to_params=1e10, to_tokens=1e10)


def test_a_fixed_ratio_predicts_along_the_ladder_and_names_why() -> None:
    frame = surface(6, 1, 3)
    frame["tokens"] = 20 * frame.params
    frame["loss"] = 1.69 + 406.4 / frame.params**0.34 + 410.7 / frame.tokens**0.28
    frame["loss"] *= np.exp(0.002 * np.random.default_rng(1).standard_normal(len(frame)))
    made = predicted(frame, to_params=1e10)
    assert made.law.form == "compute"
    assert made.target.tokens == pytest.approx(2e11)
    real = 1.69 + 406.4 / 1e10**0.34 + 410.7 / 2e11**0.28
    assert made.prediction.low < real < made.prediction.high
    with pytest.raises(BadInput, match="cannot be told apart"):
        predicted(frame, to_params=1e10, to_tokens=1e10)
    with raises_config_error("flops"):
        predicted(frame, flops=1e22)


def test_two_sizes_say_nothing_yet_and_name_the_runs_that_would() -> None:
    made = predicted(surface(2, 4), to_params=1e9, to_tokens=1e10)
    assert made.answer == UNDECIDED
    assert made.reasons
    assert made.settle_flops == pytest.approx(sum(run.flops for run in made.settle))


def test_a_law_that_breaks_at_the_last_rung_fails_its_back_test() -> None:
    frame = surface(5, 4)
    frame.loc[frame.params == frame.params.max(), "loss"] *= 1.08
    made = predicted(frame, to_params=1e10, to_tokens=1e10)
    assert made.answer == UNDECIDED
    assert made.back_test[0].failed
    assert made.back_test[0].nats > 0.1
    assert made.back_test[0].compute < 0.9


def test_a_stray_run_is_named_and_pulls_little() -> None:
    frame = surface()
    plain = usual().prediction
    frame.loc[5, "loss"] *= 1.3
    made = predicted(frame, to_params=1e9, to_tokens=1e10)
    assert made.inputs.strays == ("row 6",)
    assert made.prediction.loss == pytest.approx(plain.loss, abs=0.03)


@pytest.mark.parametrize(("sizes", "tried"), [(3, 0), (4, 1), (6, 2)])
def test_a_ladder_of_one_horizon_is_tried_from_four_sizes_on(sizes: int, tried: int) -> None:
    frame = surface(sizes, 1, 3)
    made = predicted(frame, to_params=2e7 * 2.5 ** (sizes + 1))
    assert len(made.back_test) == tried
    assert (made.answer == UNDECIDED) >= (tried == 0)
    assert made.prediction.low < made.prediction.loss < made.prediction.high


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"loss": -1.0}, "row 8.* loss"),
        ({"loss": math.inf}, "row 8.* loss"),
        ({"tokens": 1e-3}, "row 8.* tokens per parameter"),
        ({"tokens": 0.0}, "row 8.* tokens"),
        ({"flops": 1e25}, "row 8"),  # it contradicts 6 N D
        (dict(surface().iloc[2]), "row 3 and row 8"),
    ],
)
def test_a_row_that_is_wrong_is_named(change: dict[str, Any], part: str) -> None:
    frame = surface().assign(flops=lambda t: 6 * t.params * t.tokens)
    for column, value in change.items():
        frame.loc[7, column] = value
    if "seed" in change:
        frame = frame.drop(columns="flops")
    with pytest.raises(BadInput, match=f"(?s).*{part}"):
        predicted(frame, to_params=1e9, to_tokens=1e10)


def test_what_a_table_says_of_itself_is_noted_or_refused() -> None:
    frame = surface()
    assert not notes_of(frame.assign(flops=6 * frame.params * frame.tokens))
    assert not notes_of(frame.assign(lr_schedule="wsd"))
    (note,) = notes_of(frame.assign(lr_schedule=["wsd", "cosine"] * (len(frame) // 2)))
    assert "cosine" in note and "where=" in note
    thousands = frame.assign(tokens=frame.tokens / 1000)
    (note,) = notes_of(thousands)
    assert "thousands" in note
    with pytest.raises(BadInput, match="in thousands"):
        notes_of(thousands.assign(flops=6 * frame.params * frame.tokens))
    with pytest.raises(BadInput, match="all rows"):
        notes_of(frame.assign(params=frame.params / 1e9, tokens=frame.tokens / 1e9))


def test_another_prediction_is_kept_and_an_equal_one_keeps_its_digest(tmp_path: Path) -> None:
    made = usual()
    earlier = replace(made, time="2026-01-01T00:00:00+00:00")
    earlier.write(tmp_path)
    assert made.dated(tmp_path).sha256 == earlier.sha256
    assert made.dated(tmp_path).keep_earlier(tmp_path) is None
    other = replace(made, command="another").dated(tmp_path)
    kept = other.keep_earlier(tmp_path)
    assert kept is not None and hashlib.sha256(kept.read_bytes()).hexdigest() == earlier.sha256
    assert other.keep_earlier(tmp_path / "nowhere") is None
    (tmp_path / "prediction.json").write_text("[" * 100_000)  # deeper than any reader goes
    assert made.dated(tmp_path) is made


@pytest.mark.parametrize(
    "asked",
    [
        {"to_params": -1.0, "to_tokens": 1e9},
        {"to_params": 1e308, "to_tokens": 1e9},
        {"flops": 1e-9},
    ],
)
def test_a_question_that_is_none_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        sweeper.predict(surface(), **asked)
    for none in (-1.0, 0.0, math.inf, math.nan):
        with raises_config_error("flops"):
            sweeper.predict(surface(), flops=none)


def test_a_table_in_bits_per_byte_is_told_in_them() -> None:
    frame = surface().rename(columns={"loss": "val_bpb"})
    made = predicted(frame, flops=1e22)
    units = [column.unit for table in tables(made) for column in table.columns]
    assert units.count("bits/byte") == 1 and "nats" not in units


def test_the_floor_is_below_the_law_that_is_drawn() -> None:
    """The fit of few sizes has its floor above the middle of the draws, which is what is drawn."""
    sizes = np.array([3.16e4, 1.12e5, 4.21e5, 1.63e6]).repeat(3)
    noise = np.tile([-0.01, 0.0, 0.01], 4)
    frame = {"params": sizes, "tokens": np.full(12, 3.2e5), "loss": 2.82 + 5.6 / sizes**0.35}
    frame["loss"] += noise
    made = predict(frame, to_params=2.5e7, to_tokens=3.2e5)
    assert isinstance(made, Prediction) and made.prediction is not None
    assert made.law.E.value < made.prediction.loss
    assert made.law.E.value < min(point.loss.value for point in made.curve)


def test_rows_of_two_data_sets_are_refused_and_names_of_models_are_not() -> None:
    frame = surface().assign(dataset=lambda t: np.where(t.seed == 0, "a", "b"))
    with pytest.raises(BadInput, match="differ in dataset"):
        notes_of(frame)
    assert len(law_runs(read(frame, ignore=["dataset"]))) == len(frame)
    assert len(law_runs(read(frame, where="dataset == 'a'"))) == len(frame) / 2
    named = surface().assign(model=lambda t: "gpt-" + t.params.astype(str))
    assert len(law_runs(read(named))) == len(named)


def test_four_runs_near_a_line_are_a_ladder_of_compute() -> None:
    params = np.array([1.5e8, 3e8, 6e8, 1.4e9])
    frame = {"params": params, "tokens": np.array([16.8, 20.0, 17.3, 16.9]) * params}
    frame["loss"] = 1.7 + 90 / (params * frame["tokens"]) ** 0.1
    made = predicted(frame, to_params=7e9)
    assert made.law.form == "compute"


def test_what_the_user_knows_is_kept_and_told() -> None:
    made = predicted(surface(), to_params=1e9, to_tokens=1e10, fixed="E=1.69,alpha=0.34,beta=0.28")
    assert made.law.E.value == pytest.approx(1.69, abs=0.01)
    assert made.law.alpha is not None and made.law.alpha.value == pytest.approx(0.34, abs=0.001)
    assert made.fixed == {"E": 1.69, "alpha": 0.34, "beta": 0.28}
    assert "E at 1.69" in answer_text(made)
    plain = usual().prediction
    assert made.prediction.high - made.prediction.low < plain.high - plain.low
    for wrong in ({"E": 9.0}, {"gamma": 0.2}, "alpha", "E=1,E=2", {"E": 10**400}):
        with pytest.raises(ConfigError):
            predicted(surface(), fixed=wrong)


def test_hours_follow_from_what_the_largest_runs_took() -> None:
    frame = surface(noise=0.002)
    flops = 6 * frame.params * frame.tokens
    frame = frame.assign(seconds=flops / np.where(flops > flops.max() / 4, 1e15, 1e14))
    made = predicted(frame, to_params=1e9, to_tokens=2e10)
    assert made.hours == pytest.approx(1.2e20 / 1e15 / 3600) and usual().hours is None


def test_of_a_table_with_rates_the_law_is_that_of_tuned_runs() -> None:
    best = surface(seeds=1)
    grid = pandas.concat(
        best.assign(lr=2.0**log2, loss=best.loss + 0.05 * (log2 + 8) ** 2)
        for log2 in (-10, -9, -8, -7, -6)
    )
    # At the highest rate the largest model diverges: it bounds the curve, and refuses nothing.
    grid.loc[(grid.lr == 2.0**-6) & (grid.params == grid.params.max()), "loss"] = math.inf
    kept = law_runs(read(grid.reset_index(drop=True)))
    assert sorted(kept.frame.loss) == pytest.approx(sorted(best.loss)) and len(kept) == len(best)
    assert loss_runs_of(kept).loss.max() < 20
    where = "lr < 0.01"
    every = law_runs(read(grid.reset_index(drop=True), ignore=["lr"], where=where))
    assert len(every) == 4 * len(best) and len(kept.notes) == len(every.notes) + 1
    # A rate that a log has of each run's end is no rate that was tried.
    logged = best.assign(lr=np.linspace(1e-3, 1.05e-3, len(best)))
    assert len(law_runs(read(logged))) == len(best)
    # Nowhere is a lower rate known to be worse.
    ends = law_runs(read(grid[grid.lr >= 2.0**-8].reset_index(drop=True)))
    assert len(ends) == len(best) and "none is known to be tuned" in str(ends.notes[-1])
    # Whole steps of several batches meet a horizon but roughly.
    steps = np.random.default_rng(0).uniform(0.999, 1.001, len(grid))
    assert len(law_runs(read(grid.assign(tokens=grid.tokens * steps)))) == len(best)
    # Checkpoints a few steps apart, their rate decaying, are no choice among rates.
    logged = pandas.concat(
        best.assign(tokens=best.tokens.max() * 1.004**i, lr=2.0**-i) for i in range(16)
    )
    logged = logged.drop_duplicates(["params", "tokens"])
    assert len(law_runs(read(logged))) == len(logged)
    named = law_runs(read(grid.assign(lr=[f"lr {lr:g}" for lr in grid.lr])[grid.loss < 20]))
    assert "no number in 'lr'" in str(named.notes) and len(named) > len(every)
    two = pandas.concat([grid.assign(data="a"), grid.assign(data="b", loss=grid.loss + 1)])
    with pytest.raises(BadInput, match="differ in data"):
        law_runs(read(two.reset_index(drop=True)))


def test_tokens_that_nobody_names_are_proposed_by_what_the_runs_have() -> None:
    with raises_config_error("to_tokens", None) as caught:
        predicted(surface(), to_params=1e9)
    low, *_, high = np.sort(surface().tokens / surface().params)
    assert f"{low:.3g} to {high:.3g} tokens a parameter" in caught.value.allowed


BUDGETS = 1e18 * 3.0 ** np.arange(5)
RATIOS = 2.0 ** np.arange(-4, 10, 1.5)


def isoflops(*, bend: float, noise: float = 0.002, seed: int = 0) -> LossRuns:
    """Budgets of nine sizes; below two tokens a parameter losses lie off the law by `bend`."""
    random = np.random.default_rng(seed)
    flops, ratio = (a.ravel() for a in np.meshgrid(BUDGETS, RATIOS))
    params = np.sqrt(flops / 6 / ratio)
    tokens = ratio * params
    loss = truth(params, tokens) * np.exp(noise * random.standard_normal(len(flops)))
    loss *= np.exp(bend * np.maximum(np.log(2 / ratio), 0) ** 1.5)
    return LossRuns(params, tokens, loss, flops, np.arange(len(loss)), [""] * len(loss))


def test_runs_that_bend_are_left_out() -> None:
    runs = isoflops(bend=0.08)
    kept, rest = choose_runs(runs, ratio=20, beyond=10)
    assert rest is not None and rest.code == "undertrained" and rest.ratio == 3
    assert rest.count == int((runs.tokens / runs.params < 3).sum()) == len(runs) - len(kept)
    assert rest.of == len(runs) and rest.miss < BETTER * rest.miss_all


def test_no_run_is_left_out_of_a_law_that_holds_of_all() -> None:
    runs = isoflops(bend=0.0)
    kept, rest = choose_runs(runs, ratio=20, beyond=2)
    assert rest is None and kept is runs


@pytest.mark.parametrize(
    ("asked", "ratios", "spans"),
    [
        ((20, 4), (0, 1, 3), (np.inf, 32, 8)),
        ((2, 4), (0, 1), (np.inf, 32, 8)),
        ((0.5, 20), (0,), (np.inf, 32)),
        ((0.5, 100), (0,), (np.inf,)),
    ],
)
def test_runs_like_the_one_to_come_stay(
    asked: tuple[float, float], ratios: tuple[float, ...], spans: tuple[float, ...]
) -> None:
    assert tried(*asked) == (ratios, spans)
    if len(ratios) == len(spans) == 1:
        assert choose_runs(isoflops(bend=0.08), *asked)[1] is None


def test_an_undertrained_tables_interval_is_that_of_its_good_runs() -> None:
    runs = isoflops(bend=0.08)
    frame = {"params": runs.params, "tokens": runs.tokens, "loss": runs.loss}
    made = sweeper.predict(frame, to_params=1e9, to_tokens=2e10)
    message = made.prediction
    real = float(truth(np.array(1e9), np.array(2e10)))
    assert message is not None and message.low <= real <= message.high
    assert message.high - message.low < 0.03 * real
    unlike = made.inputs.unlike
    assert unlike is not None and unlike.count == int((runs.tokens / runs.params < 3).sum()) == 20
