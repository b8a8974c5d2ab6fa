"""The figures: every script has its config, at every size, and what they share is right."""

from __future__ import annotations

import json
import math
from itertools import permutations, product
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sweeper.config.compose import compose_tree
from sweeper.config.settings import Settings, resolve
from sweeper.data.corpus import placeholder_data
from sweeper.engine.architecture import build_model, build_named
from sweeper.registry import groups
from sweeper.search.independent import FRESH_SEED
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import Size
from sweeper.trial import Log2Hps, Point
from tests.command_lines import compose
from tests.golden import Golden
from tests.scripts import load_script
from tests.search.fakes import point_result

FOLDER = Path(__file__).parents[1] / "scripts/figures"
SHARED = ("lab", "claims", "strategies", "idea", "rejudge", "spent")
SIZES = (None, *groups()["size"])
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


lab = load_script("figures/lab.py")
claims = load_script("figures/claims.py")
rejudge = load_script("figures/rejudge.py")
coupling: Any = load_script("figures/coupling.py")
rms: Any = load_script("figures/rms.py")
fp8: Any = load_script("figures/fp8.py")
strategies = load_script("figures/strategies.py")


def number(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def check_that_it_can_be_built(settings: Settings, size: Size, **_: bool) -> None:
    """A ladder's model is built, and not traced as `resolve` does: the base's is."""
    spec = settings.spec(placeholder_data(settings.source), "float32", size)
    unit = build_named("parameterization", spec.parameterization).unit_scaled
    with torch.device("meta"):
        build_model(spec, unit, size.width, size.depth)


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_a_script_and_an_experiment(name: str) -> None:
    assert callable(load_script(f"figures/{name}.py").main)
    compose((f"experiment={name}",))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("effective_theory", "paper"),  # one of each kind in every run
        *(pytest.param(*both, marks=pytest.mark.long) for both in product(NAMES, SIZES)),
    ],
)
def test_its_experiment_is_a_search_at_every_size(
    name: str, size: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.config.settings.check_model_size", check_that_it_can_be_built)
    settings = resolve(compose_tree([f"experiment={name}", *([f"size={size}"] if size else [])]))
    assert settings.search.plan(settings.space)


def test_all_figures_are_in_the_document_s_order_with_a_caption() -> None:
    assert set(NAMES) <= set(claims.ORDER) == set(claims.CAPTIONS)


def test_a_number_below_another_is_told_by_intervals_alone() -> None:
    low, high = Estimate(value=1, low=0, high=2), Estimate(value=4, low=3, high=5)
    wide = Estimate(value=2, low=-9, high=9)
    assert lab.below(low, high) == "reproduced" and lab.below(high, low) == "not reproduced"
    assert lab.below(low, wide) == lab.below(wide, low) == "cannot say"
    assert lab.estimate(number(1, 0, "inf")).high == float("inf")
    assert lab.within(low) == "+1.00 [+0.00, +2.00]"
    assert lab.mean([1.0, 2.0]) == 1.5 and lab.mean([1.0, "inf"]) == float("inf")
    assert lab.compared(Estimate(value=-0.2, low=-0.3, high=0.1)) == (
        "0.200 [-0.100, 0.300] nats lower"
    )
    more = Estimate(value=0.2, low=-0.1, high=0.3)
    assert lab.compared(more, "{:.1f}") == "0.2 [-0.1, 0.3] nats higher"


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (-0.23, -0.1, "reproduced"),
        (-0.6, -0.3, "not reproduced"),
        (-0.6, -0.2, "cannot say"),  # not 0, and perhaps not far from it
        (-0.5, 0.1, "cannot say"),
        (float("-inf"), float("inf"), "cannot say"),
    ],
)
def test_a_bound_takes_an_interval_that_lies_within_it(
    low: float, high: float, answer: str
) -> None:
    drift = Estimate(value=(low + high) / 2, low=low, high=high)
    assert lab.near(drift, 0.0, 0.25) == answer
    power = Estimate(value=drift.value - 0.5, low=low - 0.5, high=high - 0.5)
    assert lab.near(power, lab.RULE, 0.25) == answer


def test_claims_are_kept_with_figure_command_and_size(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    monkeypatch.chdir(tmp_path)
    figure_lab = lab.Lab(name="x", words=["size=middle"])
    study = figure_lab.folder / "umup"
    study.mkdir(parents=True)
    config = {"model": {"width": 8, "depth": 1}, "data": {"_target_": "sweeper.data.text.Stdlib"}}
    config["train"] = {"steps": 3, "batch_size": 2, "seq_len": 4}
    (study / "config.yaml").write_text(json.dumps(config))
    figure_lab.claim("paper, Fig. 1", "it | stays", "+0.1", "cannot say")
    kept = figure_lab.measured("rms", lambda: {"at": [0.12345678, math.inf]})
    figure_lab.finish(lambda: lab.panels(1, 1)[0])
    assert "cannot say" in capsys.readouterr().out
    record = json.loads((figure_lab.folder / "claims.json").read_text())
    assert record["numbers"] == {"rms": kept} == {"rms": {"at": [0.123457, "inf"]}}
    assert record["command"] == "python scripts/figures/x.py size=middle"
    assert record["size"] == "width 8, depth 1, 3 steps of 2 x 4"
    assert (figure_lab.folder / "x.png").exists() and (figure_lab.folder / "x.svg").exists()
    golden.says(claims.section(record))
    golden.says(claims.tally([record]))
    assert (
        claims.tally([record, record]) == "2 claims: 0 reproduced, 0 not reproduced, 2 cannot say"
    )


def test_a_verdict_gives_the_reason_of_a_size_that_fails_before_one_that_is_open() -> None:
    answers = ("cannot say yet", "holds", "fails")
    sizes = [
        {"size": {"batch_size": 2**i}, "answer": answer, "reason": f"r{i}"}
        for i, answer in enumerate(answers)
    ]
    judged = {"axis": "batch_size", "sizes": sizes}
    assert lab.why(judged) == "; batch size 4: r2"
    assert lab.why({**judged, "sizes": sizes[:2]}) == "; batch size 1: r0"
    assert lab.why({**judged, "sizes": sizes[1:2]}) == ""


def test_the_page_quotes_a_claim_only_while_its_answer_is_the_same() -> None:
    claim = {"claim": "it stays over width", "measured": "+0.1", "answer": "reproduced"}
    record = {"figure": "x", "claims": [claim]}
    assert claims.quote("so {x: reproduced: it\n  stays}.", [record]) == "so +0.1."
    for words in ("{x: not reproduced: it stays}", "{x: reproduced: it goes}"):
        with pytest.raises(SystemExit, match="it is now"):
            claims.quote(words, [record])


def test_no_row_is_longer_than_a_claim_can_be() -> None:
    lines = claims.page().splitlines()
    assert max(len(line) for line in lines if line.startswith("|")) <= claims.LONGEST


def test_the_page_is_that_of_its_records() -> None:
    assert claims.page() == (claims.DOCS / "papers.md").read_text()


def test_kept_losses_give_every_claim_again() -> None:
    """The page says what today's rules say of the losses."""
    records = [json.loads(path.read_text()) for path in rejudge.RECORDS.glob("*.json")]
    records = [record for record in records if "claims" in record]
    for record in records:
        assert record["claims"] == rejudge.claims_now(record), record["figure"]
    stale = {**records[0]["claims"][0], "answer": "maybe"}
    edited = {**records[0], "claims": [stale, *records[0]["claims"][1:]]}
    rows = [*rejudge.rejudged("a", edited)]
    assert [row.changed for row in rows] == [True, *[False] * (len(rows) - 1)]


# What single figures count.


def bowl(first: float, second: float) -> list[list[float]]:
    """A separable grid of 5 x 5, -2 to 2, with its optimum at these two."""
    places = range(-2, 3)
    return [[(a - first) ** 2 + (b - second) ** 2 for b in places] for a in places]


def test_a_grid_is_cut_off_where_an_optimum_lies_at_its_end() -> None:
    assert not coupling.cut_off(bowl(0, 1))
    assert coupling.cut_off(bowl(0, 3)) and coupling.cut_off(bowl(-2, 0))


def test_a_diverged_row_has_no_optimum_to_count() -> None:
    losses = bowl(1, 1)
    losses[0] = ["inf"] * 5
    assert not coupling.cut_off(losses)


def test_means_over_pairs_have_the_spread_of_a_mean() -> None:
    """Of n values with standard deviation s, a mean is within 1.96 s / sqrt(n) in 95 %."""
    values = [0.01 * (i % 2) for i in range(400)]
    mean = coupling.over_pairs(values)
    half = 1.96 * 0.005 / 20
    assert mean.value == pytest.approx(0.005)
    assert (mean.low, mean.high) == pytest.approx((0.005 - half, 0.005 + half), rel=0.05)
    less = coupling.difference([0.0] * 10, values)
    assert (less.value, less.low) == pytest.approx((-mean.value, -mean.high), rel=0.05)


@pytest.mark.parametrize(
    ("stretches", "count"),
    [
        ([2.0, 1.5, 1.0, 0.5], 0),
        ([2.0, 1.0, 1.05, 0.9], 0),  # by less than the rise
        ([2.0, 1.0, 1.2, 0.9], 1),
        ([2.0, 1.0, 1.2, 1.3, 0.9, 1.4], 2),  # neighbours are one spike
        ([2.0, 1.0, 1.2, 1.0, 1.2], 2),
        ([1.0, float("inf")], 1),
    ],
)
def test_a_spike_is_a_stretch_above_the_least_before(stretches: list[float], count: int) -> None:
    curve = [loss for loss in stretches for _ in range(5)] + [0.0] * (100 - 5 * len(stretches))
    assert strategies.spikes(strategies.curve_means(curve)) == count


def record(sizes: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """As `check --scales` writes it: the RMS of every operand of a product, at steps 0 and 9."""
    return [
        {
            "product": product,
            "operand": operand,
            "step": step,
            "rms": size,
            "e4m3": {"underflow": 0.25, "overflow": 0.0},
        }
        for step, ends in ((0, 0), (9, 1))
        for product, both in sizes.items()
        for operand in ("input", "weight", "gradient")
        for size in (both[ends],)
    ]


def test_growth_is_by_kind_of_product_and_leads_are_over_all_others() -> None:
    sizes = {"layers.0.ffn.down": (1.0, 2.0), "layers.1.ffn.down": (1.0, 8.0), "head": (0.5, 1.0)}
    run = rms.operands(record({**sizes, "layers.0.core.logits": (1.0, 99.0)}))
    grown = rms.growth(run, "input")
    assert grown == pytest.approx({"layers.*.ffn.down": 2.0, "head": 1.0})
    assert rms.lead(grown, ["layers.*.ffn.down"]) == pytest.approx(1.0)
    assert rms.lead(grown, ["head"]) == pytest.approx(-1.0)
    assert run["weight"][0].lost == 0.25


def test_a_cast_under_which_all_diverge_costs_everything() -> None:
    assert fp8.overall([math.inf, math.inf]).low == math.inf
    half = fp8.overall([0.1, math.inf])
    assert half.low == -math.inf
    cost = fp8.overall([0.1, 0.2, 0.3])
    assert cost.low < cost.value == pytest.approx(0.2) and cost.high < 0.5


# The curves of what was spent.


spent = load_script("figures/spent.py")

losses = st.lists(st.floats(-10, 10) | st.just(math.inf), min_size=1, max_size=6)


@given(losses)
def test_expected_best_is_the_average_over_all_orders(values: list[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]
    told = [value if math.isfinite(value) else max(finite, default=0.0) for value in values]
    orders = list(permutations(told))
    expected = [mean(min(order[:n]) for order in orders) for n in range(1, len(values) + 1)]
    curve = spent.expected_best(values)
    if not finite:
        assert curve == ()
        return
    assert [runs for runs, _ in curve] == list(range(1, len(values) + 1))
    assert [loss for _, loss in curve] == pytest.approx(expected, abs=1e-9)


def test_the_cost_curve_has_means_ends_fresh_and_shows_the_harm_of_combining() -> None:
    """Worked by hand: eta 0 is lucky with seed 0, and a 1 with b 1 is worse than either."""
    rows = [
        ("eta", 0, 0, 0, 3.0, 3.0),
        ("eta", 1, 0, 0, 2.5, 2.5),
        ("lines", 1, 0, 1, 2.9, 2.7),  # the other seed of the base: its mean rises
        ("lines", 1, 1, 0, 2.0, 2.7),  # one seed of two is no mean
        ("lines", 1, 1, 1, 2.8, 2.4),
        ("combine", 1, 2, FRESH_SEED, 3.5, 2.4),
        ("combine", 1, 2, FRESH_SEED + 1, 3.7, 3.6),  # combining harms
        ("combine", 1, 1, FRESH_SEED, 2.5, 3.6),
        ("combine", 1, 1, FRESH_SEED + 1, 2.7, 2.6),  # the single change is kept
        ("retune", 2, 1, FRESH_SEED, 2.0, 2.6),
        ("retune", 2, 1, FRESH_SEED + 1, 2.4, 2.6),  # nothing is decided yet
    ]
    results = [
        point_result(Point(log2_hps=Log2Hps({"eta": e, "a": a}), seed=s, phase=p), loss)
        for p, e, a, s, loss, _ in rows
    ]
    base, combined, single = (Log2Hps({"eta": 1, "a": a}) for a in (0, 2, 1))
    curve = spent.independent_curve(results, base, 2, [combined, single], 2)
    assert [loss for _, loss in curve] == pytest.approx([row[-1] for row in rows])
