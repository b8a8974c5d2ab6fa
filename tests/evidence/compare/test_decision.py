import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from sweeper.errors import BadInput, ConfigError, MissingValue
from sweeper.evidence.compare.decision import VariantAnswer, Winner, _losses, decide
from sweeper.evidence.compare.differences import ComputeLaw, VariantLosses, VariantQuestion
from sweeper.evidence.compare.reading import VariantRuns, joined, variant_runs
from sweeper.evidence.runs.read import read

SIZES = ((1.3e8, 2.6e9), (3e8, 6e9), (6e8, 1.2e10))
TARGET = {"params": 1.2e9, "tokens": 2.4e10}
PINNED = {"floor": 1.6, "exponent": 0.0941}


def law(compute: float) -> float:
    return 1.6 + 84 * compute**-0.0941


def table(gains: dict[str, list[float]], **columns: Any) -> list[dict[str, Any]]:
    return [
        {"change": name, "params": n, "tokens": d, "loss": law(n * d) - of[i], **columns}
        for name, of in {"base": [0.0] * 3, **gains}.items()
        for i, (n, d) in enumerate(SIZES)
        if not math.isnan(of[i])
    ]


def won(rows: object, briefly: bool = True, **question: Any) -> Winner:
    runs = variant_runs(read(pandas.DataFrame(rows), columns="loss=loss"), "change", "base")
    question.setdefault("counts", TARGET)
    return decide(runs, VariantQuestion(**question), briefly=briefly)


def of(rows: object, name: str = "new", **question: Any) -> VariantAnswer:
    return next(v for v in won(rows, **question).variants if v.name == name)


def test_a_clear_gain_is_better_and_a_clear_loss_worse() -> None:
    gains = {"new": [0.05, 0.045, 0.04], "bad": [-0.05, -0.045, -0.04], "same": [0.001, -0.001, 0]}
    result = won(table(gains))
    answers = [("new", "better"), ("same", "cannot say"), ("bad", "worse")]
    assert [(v.name, v.answer) for v in result.variants] == answers
    new = result.variants[0]
    assert new.first == new.last == 1 and new.difference.high < 0 < new.compute.low - 1
    assert result.by == "prior" and 0.001 < result.noise < 0.005
    assert result.target.octaves == pytest.approx(2, abs=0.05) and result.flops_known


@pytest.mark.parametrize("clocked", [False, True])
def test_an_answer_is_that_of_its_interval(clocked: bool) -> None:
    """By loss and by the clock, and where one run of the best and of the worst diverged."""
    gains = {f"v{i}": [0.0012 * i, 0.0011 * i, 0.001 * i] for i in range(-10, 11)}
    rows = table(gains, **{"tokens_per_s": 100.0} if clocked else {})
    rows += [{**row, "loss": math.inf} for row in rows[-6:] + rows[3:6] if not clocked]
    for row in rows[3:] if clocked else []:
        row["tokens_per_s"] *= 1 + 0.01 * (int(row["change"][1:]) % 7 - 3)
    result = won(rows)
    for each in result.variants:
        shown = {"better": each.difference.high < 0, "worse": each.difference.low > 0}
        assert shown.get(each.answer, each.difference.low <= 0 <= each.difference.high)
        factor = each.wall_clock if clocked else each.compute
        shown = {"better": factor.low >= 1, "worse": factor.high <= 1}
        assert clocked == math.isfinite(each.wall_clock.value)
        assert shown.get(each.answer, factor.low <= 1 <= factor.high) or each.code == "diverged"
    assert {each.answer for each in result.variants} == {"better", "worse", "cannot say"}
    # Of many the luckiest is looked at.
    assert result.tail == pytest.approx(0.05 / math.sqrt(21))


def test_compute_is_that_of_the_pinned_law() -> None:
    result = of(table({"new": [0.02, 0.02, 0.02]}), **PINNED)
    at = result.sizes[0]
    base = law(1.3e8 * 2.6e9) - 1.6
    assert at.difference.value == pytest.approx(-0.02)
    assert at.compute.value == pytest.approx((base / (base - 0.02)) ** (1 / 0.0941))
    assert at.compute.low < at.compute.value < at.compute.high


def test_the_law_is_found_where_it_is_not_pinned_and_in_losses_of_any_scale() -> None:
    """Nats; squared errors of 0.1 and of 1e-9."""
    rows = table({"new": [0.02, 0.018, 0.016], "same": [0.001, -0.001, 0.0]})
    scaled = [[{**r, "loss": r["loss"] * by} for r in rows] for by in (0.1, 1e-9)]
    nats, pinned, first, other = of(rows), of(rows, **PINNED), *(of(each) for each in scaled)
    assert nats.compute.low < pinned.compute.value < nats.compute.high
    assert abs(nats.compute.value - pinned.compute.value) < 0.05
    assert first.compute.value == pytest.approx(other.compute.value, rel=1e-6)
    assert first.compute.value > 1.05
    assert first.compute.low < nats.compute.value < first.compute.high
    assert first.difference.low == pytest.approx(1e8 * other.difference.low, rel=1e-6)


def test_a_parameter_may_gain_more_than_a_token() -> None:
    """L = 1.6 + 30 / (N^0.11 D^0.05) has the exponent 0.08 over compute, and the tilt 0.03."""
    rows = [
        {"change": name, "params": n, "tokens": d, "loss": 1.6 + 30 * n**-0.11 * d**-0.05}
        for name in ("base", "new")
        for n in (1e8, 1e9)
        for d in (2e9, 2e10)
    ]
    runs = variant_runs(read(pandas.DataFrame(rows)), "change", "base")
    law = ComputeLaw.of(runs, VariantQuestion(floor=1.6))
    assert [*law.exponents, *law.tilts] == pytest.approx([0.08, 0.03], abs=0.003)


def test_a_gain_that_costs_more_time_than_it_is_worth_is_a_loss() -> None:
    rows = table({"new": [0.02, 0.018, 0.017]}, tokens_per_s=100.0)
    for row in rows:
        row["tokens_per_s"] *= 0.6 if row["change"] == "new" else 1
    result = of(rows)
    assert (result.answer, result.code) == ("worse", "wall_clock")
    assert result.loss_difference.high < 0 < result.difference.low and result.wall_clock.high < 1
    assert result.wall_clock.value == pytest.approx(0.6 * result.compute.value)
    assert of(table({"new": [0.04, 0.04, 0.04]}, tokens_per_s=100.0)).answer == "better"


def test_tokens_that_differ_are_allowed_for() -> None:
    """A fifth more tokens at every size, and no other change: no gain at equal tokens."""
    rows = table({"new": [0.0, 0.0, 0.0]})
    for row in rows[3:]:
        row["tokens"] *= 1.2
        row["loss"] = law(row["params"] * row["tokens"])
    result = of(rows)
    assert result.answer == "cannot say" and abs(result.difference.value) < 0.002


def test_what_was_not_tuned_is_a_bound() -> None:
    def tuned(best: int, of_base: int) -> Any:
        return [
            {**row, "lr": rate, "loss": row["loss"] + 0.01 * abs(i - at)}
            for row in table({"new": [-0.05] * 3})
            for at in ((of_base if row["change"] == "base" else best),)
            for i, rate in enumerate((0.001, 0.002, 0.004))
        ]

    assert of(tuned(1, 1)).answer == "worse"
    result = of(tuned(2, 1))
    assert (result.answer, result.code, result.bound) == ("cannot say", "bound", "end")
    turned = [{**row, "loss": 7 - row["loss"]} for row in tuned(0, 0)]
    assert won(turned).baseline_bound == "end"
    assert of(turned).code in ("bound", "baseline_bound")


def test_runs_that_diverge_decide_by_the_one_rule() -> None:
    rows = [{**row, "seed": s} for row in table({"new": [0.05] * 3}) for s in range(4)]
    once = [dict(row) for row in rows]
    once[12]["loss"] = math.inf
    assert of(once).diverged == 1 and of(once).answer == "better"
    often = [dict(row) for row in rows]
    for row in often[12:]:
        row["loss"] = math.inf if row["seed"] < 3 else row["loss"]
    assert (of(often).answer, of(often).code) == ("worse", "diverged")


def test_runs_are_paired_by_their_seeds_in_whatever_order_they_stand() -> None:
    """A seed with which both diverge says nothing; two seeds with which one does would."""
    rows = [{**row, "seed": s} for row in table({"new": [0.05] * 3}) for s in range(4)]
    for row in rows:
        row["loss"] = math.inf if row["seed"] == 0 else row["loss"]
    turned = [*rows[:12], *rows[:11:-1]]
    assert of(rows).answer == of(turned).answer == "better"
    assert of(turned).diverged == 3
    # Without seeds there is the order alone.
    for row in turned:
        del row["seed"]
    assert (of(turned).answer, of(turned).code) == ("cannot say", "diverged")


def test_sizes_need_not_be_shared_but_something_must_be() -> None:
    nan = math.nan
    gains = {"new": [nan, 0.03, 0.03], "way": [nan, nan, 0.06]}
    rows = [row for row in table(gains) if row["change"] != "base" or row["params"] < 5e8]
    result = {v.name: v for v in won(rows).variants}
    assert len(result["new"].missing) == 1 and len(result["way"].missing) == 2
    # Known by way of the other, which was run at a size of each.
    assert result["way"].difference.value < result["new"].difference.value < 0
    lone = [{**rows[0], "change": "apart", "params": 1e10, "tokens": 2e11}]
    assert of(rows + lone, "apart").answer == "cannot say"
    with pytest.raises(BadInput, match="no variant was run at a size of base"):
        won(rows[:1] + lone)
    diverged = [{**row, "loss": math.inf} if row["change"] == "base" else row for row in rows]
    with pytest.raises(BadInput, match="no run of base, the baseline, trained"):
        won(diverged)
    known = variant_runs(read(pandas.DataFrame(rows)), "change", "base")
    cells = [replace(cell, losses=cell.losses * math.inf) for cell in known.cells]
    with pytest.raises(BadInput, match="none trained"):
        ComputeLaw.of(replace(known, cells=cells), VariantQuestion())


def test_a_law_that_is_at_its_floor_says_nothing_of_compute() -> None:
    result = of(table({"new": [0.02] * 3}), exponent=50.0, floor=1.0)
    assert math.isnan(result.compute.value) and math.isfinite(result.difference.value)


def test_the_least_error_is_one_that_numbers_can_tell() -> None:
    result = won(table({"new": [0.004, 0.002, 0.001]}), error=1e-12, briefly=False)
    assert result.variants[0].answer == "cannot say"
    assert all(0 <= each.chance <= 1 for each in result.next_runs)


def test_the_target_follows_the_ladder_where_it_is_not_said() -> None:
    rows = table({"new": [0.02] * 3})
    result = won(rows, counts={"params": 1.2e9}).target.counts["tokens"]
    assert result == pytest.approx(2.4e10, rel=0.05)
    assert won(rows, counts={}).target.counts == {"params": 6e8, "tokens": 1.2e10}
    # The largest that all variants have.
    few = [row for row in rows if row["change"] == "base" or row["params"] < 5e8]
    assert won(few, counts={}).target.counts == {"params": 3e8, "tokens": 6e9}
    with pytest.raises(BadInput, match="needs a column of width"):
        won(rows, counts={"width": 512.0})
    apart = [{**r, "tokens": r["tokens"] * k} for r in rows for k in (1, 8)]
    with pytest.raises(BadInput, match="give to_tokens"):
        won(apart, counts={"params": 1.2e9})


def test_the_next_runs_are_those_that_decide_most_for_their_cost() -> None:
    result = won(table({"new": [0.005, 0.004, 0.004]}), briefly=False)
    assert result.variants[0].answer == "cannot say"
    (proposed,) = result.next_runs
    assert proposed.variant == "new" and 0.2 <= proposed.chance <= 1 and proposed.flops > 0


def test_one_size_with_seeds_is_asked_for_itself() -> None:
    generator = np.random.default_rng(0)
    losses = generator.normal([3.28, 3.277], 0.001, (8, 2))
    rows = [
        {"change": name, "loss": loss}
        for pair in losses
        for name, loss in zip(("base", "new"), pair, strict=True)
    ]
    result = won(rows, counts={})
    new = result.variants[0]
    assert new.answer == "better" and result.by == "seeds" and result.noise < 0.002
    assert new.difference.low < -0.003 < new.difference.high and math.isnan(new.compute.value)
    # As a session of many tries asks.
    assert won(rows, counts={}, error=1e-9).variants[0].answer == "cannot say"


def seeded(
    sizes: dict[str, range], paired: bool = True, by: float = 0.05, draw: int = 4
) -> VariantLosses:
    """Losses of variants with so many seeds, which do much to all and variants little."""
    generator = np.random.default_rng(draw)
    of_seed = generator.normal(0, by, 20)
    rows = [
        {"change": name, "seed": s, "loss": 3 + of_seed[s] - gain + 0.001 * generator.normal()}
        for name, seeds in sizes.items()
        for s, gain in zip(seeds, [0.01 * (name == "b")] * len(seeds), strict=True)
    ]
    runs = variant_runs(read(pandas.DataFrame(rows)), "change", "base")
    runs = replace(runs, paired=paired)
    return _losses(runs, ComputeLaw.of(runs, VariantQuestion()))


def test_seeds_that_some_variants_lack_leave_the_others_beside_each_other() -> None:
    alike = {name: range(4) for name in ("base", "a", "b")}
    paired, plain = seeded(alike), seeded(alike, paired=False)
    # Where all have all seeds it is the two-way analysis of variance.
    assert (paired.freedom, [*paired.counts[:, 0]]) == (plain.freedom, [4, 4, 4])
    assert paired.squares == pytest.approx(plain.squares)
    np.testing.assert_allclose(paired.means, plain.means)
    # Ten seeds of two, four of the third; the last two are of one alone, and tell no difference.
    some = seeded({"base": range(12), "a": range(4), "b": range(10)})
    assert [*some.counts[:, 0]] == [10, 4, 10] and some.freedom == 24 - 3 - 10 + 1
    assert math.sqrt(some.squares / some.freedom) < 0.002
    gains = some.means[0, 0] - some.means[1:, 0]
    np.testing.assert_allclose(gains, [0, 0.01], atol=0.002)
    unpaired = seeded({"base": range(12), "a": range(4), "b": range(10)}, paired=False)
    assert math.sqrt(unpaired.squares / unpaired.freedom) > 0.02
    # Seeds with the same numbers that share nothing are runs of their own.
    many = {name: range(12) for name in alike}
    apart_in = [seeded(many, paired=False, by=0.0, draw=i).freedom == 3 * 11 for i in range(8)]
    assert sum(apart_in) >= 6  # above 2 the variances' ratio lies in 8 % of draws
    assert seeded(many, paired=False, by=0.002).freedom == 2 * 11
    # No seed in common: each has its own runs.
    apart = {"base": range(3), "a": range(3, 6)}
    assert seeded(apart).freedom == seeded(apart, paired=False).freedom == 4


def test_of_what_never_trained_no_difference_is_told() -> None:
    rows = table({"apart": [0.0] * 3, "good": [0.03] * 3})
    for row in rows:
        row["loss"] = math.inf if row["change"] == "apart" else row["loss"]
    result = {each.name: each for each in won(rows).variants}
    assert result["apart"].answer == "worse" and result["apart"].code == "diverged"
    assert math.isnan(result["apart"].difference.value)
    assert math.isnan(result["apart"].compute.value)
    assert result["good"].difference.value == pytest.approx(-0.03, abs=0.02)


def test_large_losses_around_zero_have_priors_of_their_size() -> None:
    rows = [{**row, "loss": 300 * (row["loss"] - 3.3)} for row in table({"a": [0.01] * 3})]
    assert min(row["loss"] for row in rows) < 0 < max(row["loss"] for row in rows)
    result = won(rows)
    assert result.prior_noise > 0.02 and result.noise > 0.02


PARAMS, TOKENS = (1e8, 3e8), (2e9, 6e9)


def rows(**columns: Any) -> list[dict[str, Any]]:
    return [
        {"optimizer": name, "params": n, "tokens": d, "loss": 3.5 - i / 4 - gain, **columns}
        for name, gain in (("adamw", 0.0), ("muon", 0.02))
        for i, (n, d) in enumerate(zip(PARAMS, TOKENS, strict=True))
    ]


def variants(
    table: object, by: str | None = "optimizer", baseline: str | None = "adamw", **how: Any
) -> VariantRuns:
    return variant_runs(read(pandas.DataFrame(table), **how), by, baseline)


def test_variants_stand_side_by_side_by_size() -> None:
    result = variants(rows())
    assert result.names == ["adamw", "muon"] and len(result.cells) == 4
    assert result.log2 == pytest.approx(np.log2([PARAMS, TOKENS]).T)
    assert result.flops == pytest.approx([6 * 1e8 * 2e9, 6 * 3e8 * 6e9])
    assert [dict(each) for each in result.measures] == [
        {"params": n, "tokens": d} for n, d in zip(PARAMS, TOKENS, strict=True)
    ]


def test_counts_that_differ_a_little_are_of_one_size_where_the_baseline_is() -> None:
    table = rows()
    table[2] |= {"params": 1.02e8, "tokens": 2.3e9}
    result = variants(table)
    cell = result.at(1, 0)
    assert len(result.log2) == 2 and result.log2[0] == pytest.approx(np.log2([1e8, 2e9]))
    assert cell is not None and cell.log2 == pytest.approx(np.log2([1.02e8, 2.3e9]))


def test_width_and_budget_or_steps_stand_for_parameters_and_tokens() -> None:
    table = [{"optimizer": r["optimizer"], "loss": r["loss"]} for r in rows()]
    for row, width in zip(table, (512, 1024, 512, 1024), strict=True):
        row |= {"width": width, "flops": 1e17 * width**3, "lr": 0.01}
    result = variants(table)
    assert np.diff(result.log2.sum(axis=1)) == pytest.approx(3)
    assert result.flops == pytest.approx([1e17 * 512**3, 1e17 * 1024**3])
    for horizon in (table, rows()):
        steps = [{**row, "steps": 1000 + i, "batch_size": 8} for i, row in enumerate(horizon)]
        assert not {"steps", "batch_size"} & {key for m in variants(steps).measures for key in m}
    for row in table:
        row.pop("flops")
        row |= {"steps": 1000 * (row["width"] // 512), "batch_size": 8}
    assert np.diff(variants(table).log2, axis=0) == pytest.approx(np.array([[2, 1]]))


def test_the_best_rate_counts_and_an_end_of_the_rates_is_a_bound() -> None:
    table = [
        {**row, "lr": rate, "loss": row["loss"] + 0.01 * abs(i - best)}
        for row in rows()
        for best in ((1 if row["optimizer"] == "adamw" else 2),)
        for i, rate in enumerate((0.001, 0.002, 0.004))
    ]
    result = variants(table)
    mine, theirs = result.at(1, 0), result.at(0, 0)
    assert (theirs.bound, theirs.configurations, theirs.losses.tolist()) == ("", 3, [3.5])
    assert mine.bound == "end" and mine.losses.tolist() == [3.48]
    once = [row for row in table if row["optimizer"] == "adamw" or row["lr"] == 0.004]
    assert [c.bound for c in variants(once).cells] == ["", "", "untuned", "untuned"]


def test_seeds_are_repeats_and_a_run_that_diverged_stays() -> None:
    table = [{**row, "seed": seed} for row in rows() for seed in range(3)]
    table[0]["loss"] = math.inf
    result = variants(table)
    cell = result.at(0, 0)
    assert cell is not None and cell.seeds == ("0", "1", "2")
    assert np.isinf(cell.losses).tolist() == [True, False, False]


def test_two_baselines_are_refused_with_what_takes_one() -> None:
    table = [{**row, "recipe": "new"} for row in rows()]
    table += [{**row, "recipe": "old", "loss": row["loss"] + 0.1} for row in rows()[:2]]
    with pytest.raises(BadInput, match=r'differ in recipe .*where=.*recipe == "new"') as refused:
        variants(table)
    assert "ignore='recipe'" in str(refused.value)
    assert len(variants(table, where='recipe == "new"').cells) == 4


@pytest.mark.parametrize(
    ("by", "baseline", "error", "said"),
    [
        (None, None, MissingValue, "such as optimizer"),
        ("optimiser", None, ConfigError, "optimizer"),
        ("optimizer", None, MissingValue, "one of adamw, muon"),
        ("optimizer", "adam", ConfigError, "adamw"),
        ("kind", None, BadInput, "two variants or more"),
    ],
)
def test_what_is_missing_is_named(
    by: str, baseline: str, error: type[Exception], said: str
) -> None:
    table = [{**row, "name": f"run {i}"} for i, row in enumerate(rows(kind="a"))]
    with pytest.raises(error, match=said) as refused:
        variants(table, by, baseline, ignore=["name"])
    assert "name (" not in str(refused.value)  # a value of each run's own is no variant


def test_a_run_of_no_variant_is_refused_with_what_leaves_it_out() -> None:
    table = rows()
    table[1]["optimizer"] = None
    with pytest.raises(BadInput, match="row 2 has no optimizer") as refused:
        variants(table)
    assert "where='optimizer != None'" in str(refused.value)
    assert len(variants(table, where="optimizer != None").cells) == 3


def test_a_row_that_was_written_twice_is_one_run() -> None:
    plain, seeded = variants(rows() * 2), variants(rows(seed=0) * 2)
    assert [len(cell.losses) for cell in (*plain.cells, *seeded.cells)] == [1] * 8
    assert any("counted once" in str(note) for note in seeded.notes)
    apart = variants([{**row, "seed": seed} for row in rows() for seed in (0, 1, None, None)])
    assert [len(cell.losses) for cell in apart.cells] == [4] * 4


def test_several_tables_are_a_variant_each() -> None:
    tables = [pandas.DataFrame(rows()[:2]), pandas.DataFrame(rows()[2:])]
    result = variant_runs(joined([read(table) for table in tables]), None, None)
    assert result.names == ["source 1", "source 2"] and result.by == "source"


def test_throughput_is_read_by_its_name_and_time_where_it_is_named() -> None:
    table = [{**row, "tokens_per_s": 100.0, "train_time": 5.0} for row in rows()]
    cell = variants(table).at(0, 0)
    assert cell is not None and cell.throughput == 100
    for row in table:
        row.pop("tokens_per_s")
    alone, named = variants(table).at(0, 0), variants(table, columns="time=train_time").at(0, 0)
    assert alone is not None and math.isnan(alone.throughput)
    assert named is not None and named.throughput == pytest.approx(2e9 / 5)


@pytest.mark.parametrize("column", ["tokens_per_s", "train_time"])
def test_a_time_that_is_not_above_0_is_not_known(column: str) -> None:
    role = "throughput" if column == "tokens_per_s" else "time"
    table = [{**row, column: 10.0 * i} for i, row in enumerate(rows())]
    result = variants(table, columns=f"{role}={column}")
    assert [math.isnan(cell.throughput) for cell in result.cells] == [True, False, False, False]
    assert any("not above 0 in 1 row" in str(note) for note in result.notes)


def test_tables_of_one_name_in_several_folders_are_several_variants(tmp_path: Path) -> None:
    places = [tmp_path / name / "runs.csv" for name in ("adamw", "muon", "lion")]
    for place in places:
        place.parent.mkdir()
        place.write_text("params,tokens,loss\n1e8,2e9,3.5\n")
    study = replace(read(places[0]), name=str(tmp_path / "mup-1.5"))
    (tmp_path / "mup-1.5").mkdir()
    result = variant_runs(joined([study, *map(read, places[1:])]), None, None)
    assert result.names == ["mup-1.5", str(places[1]), str(places[2])]
    with pytest.raises(BadInput, match="is given twice"):
        joined([read(places[0]), read(places[0])])


def test_sizes_that_are_not_in_ones_are_refused() -> None:
    rows = [(name, n, n * 2e7, 3 - n / 1e3) for name in "ab" for n in (50, 100, 200)]
    frame = pandas.DataFrame(rows, columns=["kind", "model_size", "tokens", "loss"])
    ones = frame.assign(model_size=frame.model_size * 1e6)
    exa = ones.assign(flops=6e-18 * ones.model_size * ones.tokens)
    for wrong in (frame, exa, exa.drop(columns="tokens")):
        with pytest.raises(BadInput, match="Give all in ones"):
            variant_runs(read(wrong), "kind", "a")
    (note,) = variant_runs(read(ones.assign(tokens=ones.tokens / 1e3)), "kind", "a").notes
    assert "tokens in thousands" in note
