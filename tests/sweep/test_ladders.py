"""What stays of an earlier verdict, and the axes of which a verdict says nothing."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.config import settings as settings_module
from sweeper.config.compose import compose_tree
from sweeper.config.settings import resolve
from sweeper.data.corpus import placeholder_data
from sweeper.decide.ladder_verdict import Verdict
from sweeper.decide.validation import Validation
from sweeper.stats.ladder import LadderRule, LadderSize, Size, SizeCurve, SizeOverrides
from sweeper.sweep.base_search import without_result
from sweeper.sweep.experiment import short_run
from sweeper.sweep.ladders import _rests_on_less, _with_earlier, check_hours, target_size
from sweeper.sweep.planning import Unvalidated, unvalidated
from sweeper.sweep.settled_ladder import SettledLadder
from sweeper.sweep.study_replay import at_fixed_ratio
from sweeper.trial import Axis, Log2Hps, PluginSpec, Result, defaults
from tests.engine.tiny_trials import trial
from tests.refusals import raises_config_error
from tests.search.fakes import Experiment

BASE = LadderSize(width=16, depth=1, batch_size=2, steps=4)
WIDE, LARGE_BATCH = replace(BASE, width=32), replace(BASE, batch_size=4)


def curve(size: LadderSize, *losses: float) -> SizeCurve:
    return SizeCurve(size=size, losses={0.0: losses, 0.5: losses})


def judged(*axes: str, **changed: Any) -> Validation:
    record: dict[str, Any] = {
        "planned_log2": -3.0,
        "log2_hps": {"eta": -3.0},
        "axes": tuple(Verdict(axis=axis, answer="holds", sizes=()) for axis in axes),
        "curves": (curve(BASE, 3.0, 3.1), curve(WIDE, 2.9, 2.8)),
    }
    return Validation(**record | changed)


def test_what_other_ladders_showed_stays_for_the_same_plan() -> None:
    new = judged("batch_size", curves=(curve(BASE, 3.0), curve(LARGE_BATCH, 3.2)))
    both = _with_earlier(new, judged("batch_size", "width"))
    assert [verdict.axis for verdict in both.axes] == ["batch_size", "width"]
    assert {curve.size: curve.losses[0.0] for curve in both.curves} == {
        BASE: (3.0,),
        WIDE: (2.9, 2.8),
        LARGE_BATCH: (3.2,),
    }
    assert both.over("batch_size") is new.over("batch_size"), "what both judged is the new one's"
    assert _with_earlier(new, None) == new


@pytest.mark.parametrize(
    "other",
    [
        {"hyperparameter": "alpha"},
        {"log2_hps": {"eta": -2.0}},
        {"planned_log2": -2.5},
        {"law": PluginSpec(name="horizon")},
    ],
)
def test_of_another_plan_nothing_stays(other: dict[str, Any]) -> None:
    new = judged("batch_size")
    assert _with_earlier(new, judged("width", **other)) == new


def test_a_verdict_on_fewer_of_the_same_runs_rests_on_less() -> None:
    whole = judged("width")
    fewer = judged("width", curves=(curve(BASE, 3.0), curve(WIDE, 2.9)))
    assert _rests_on_less(fewer, whole)
    assert not _rests_on_less(whole, fewer) and not _rests_on_less(whole, whole)
    others = judged("width", curves=(curve(BASE, 9.0), curve(WIDE, 2.9)))
    elsewhere = judged("width", curves=(curve(LARGE_BATCH, 3.0),))
    assert not _rests_on_less(others, whole) and not _rests_on_less(elsewhere, whole)
    assert not _rests_on_less(replace(fewer, log2_hps={"eta": 0.0}), whole)
    assert not _rests_on_less(replace(fewer, axes=judged("depth").axes), whole)
    # What was planned may be another: it is not judged by.
    assert _rests_on_less(replace(fewer, planned_log2=0.0), whole)


@pytest.mark.parametrize(
    ("ladders", "target", "open_axes"),
    [
        ({"widths": (16, 32)}, Size(width=64, depth=1), []),
        ({"widths": (16, 32)}, Size(width=64, depth=2), [("depth", 2, 1)]),
        ({"widths": (16,), "depths": (1, 2)}, Size(width=16, depth=4), []),
        ({"widths": (16, 32)}, replace(WIDE, batch_size=8), [("batch_size", 8, 2)]),
        ({"widths": (16, 32)}, replace(WIDE, steps=8), [("steps", 8, 4)]),
        ({"sizes": ({"width": 32, "depth": 2},), "widths": ()}, Size(width=64, depth=4), []),
        ({"sizes": ({"width": 32},), "widths": ()}, Size(width=64, depth=4), [("depth", 4, 1)]),
    ],
)
def test_axes_that_no_ladder_climbs_are_not_validated(
    ladders: dict[str, Any], target: Size, open_axes: list[tuple[str, int, int]]
) -> None:
    ladders = {**ladders, "sizes": tuple(SizeOverrides(**s) for s in ladders.get("sizes", ()))}
    rule = LadderRule(**ladders)
    settings = Experiment(transfer=rule, base=Size(width=16, depth=1)).settings
    settings.ladder_base, settings.steps_of = BASE, None
    verdicts: list[Any] = [
        SimpleNamespace(axis=axis, sizes=[SimpleNamespace(size=size) for size in sizes])
        for axis, sizes in rule.ladders(BASE).items()
    ]
    found = unvalidated(settings, target, verdicts)  # type: ignore[arg-type]
    assert found == [Unvalidated(axis=axis, target=to, base=at) for axis, to, at in open_axes]
    # Every ladder changes the steps where they follow from the parameters.
    settings.steps_of = len
    assert "steps" not in [axis.axis for axis in unvalidated(settings, target, verdicts)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hours", "seconds", "least"),
    [(1.9, [3600.0] * 4, "2"), (1e-9, [1.0], "0.001"), (1e-9, [5000.0, 2400.0], "1.1")],
)
def test_hours_without_room_for_the_first_runs_are_refused(
    hours: float, seconds: list[float], least: str
) -> None:
    check_hours(None, seconds, slots=2)
    check_hours(2.0, seconds, slots=2)
    check_hours(hours, [math.nan], slots=1)  # nobody knows
    with raises_config_error("budget", f"{hours:g}h") as caught:
        check_hours(hours, seconds, slots=2)
    assert f"at least {least}h, which the {len(seconds)} run" in str(caught.value)


SMALL = ["search=lr", "model.width=16", "model.head_size=8", "model.depth=1", "train.steps=40"]


def opened(*words: str, precision: str = "float32") -> settings_module.Experiment:
    settings = resolve(compose_tree([*SMALL, "transfer.widths=[16,32]", *words]))
    corpus: Any = SimpleNamespace(identity=lambda: placeholder_data(settings.source))
    return settings_module.Experiment(settings=settings, corpus=corpus, precision=precision)


@pytest.mark.parametrize(
    ("asked", "found", "measured"),
    [("auto", "bfloat16", "float32"), ("auto", "float32", "float32"), ("float64", "", "float64")],
)
def test_what_measures_trains_in_full_precision(asked: str, found: str, measured: str) -> None:
    experiment = opened(f"train.precision={asked}", precision=found)
    hps = defaults(experiment.settings.space)
    run = short_run(experiment, Size(width=32, depth=1), hps, 7, "coordinates", steps=3)
    train = run.spec.train
    assert (train.precision, train.steps, run.spec.width) == (measured, 3, 32)
    assert (run.seed, run.measurement) == (7, "coordinates")


def test_a_target_has_its_own_steps_where_they_are_asked_for() -> None:
    experiment, wide = opened(), Size(width=32, depth=1)
    assert target_size(experiment, wide, None, None) is wide
    train = experiment.settings.raw["train"]
    tokens = 80 * train["batch_size"] * train["seq_len"]
    asked = target_size(experiment, wide, tokens, None)
    assert isinstance(asked, LadderSize) and (asked.width, asked.steps) == (32, 80)


def test_a_settled_ladder_goes_on_once_a_run_of_its_own_has_ended() -> None:
    losses: dict[int, float] = {0: 3.0}

    def trial(size: LadderSize, eta: float, seed: int) -> Any:
        return SimpleNamespace(key=str(seed))

    def loss(size: LadderSize, eta: float, seed: int) -> float | None:
        return losses.get(seed)

    rule = LadderRule(widths=(16, 32))
    judge: Any = None  # nothing is looked at
    ladder = SettledLadder(trial, ["0"], None, 1, rule, {}, BASE, loss, judge)
    ladder.asked |= {(BASE, 0.0, 0), (BASE, 0.0, 1)}
    assert not ladder.goes_on, "one was there, and the other has not ended"
    losses[1] = 2.9
    assert ladder.goes_on


def test_steps_at_a_fixed_ratio_follow_from_the_parameters() -> None:
    """Of the ladder's sizes; the base must have that ratio already, but for rounding."""
    experiment = opened("transfer.tokens_per_parameter=1")
    settings = experiment.settings
    models = (Size(width=width, depth=1) for width in (16, 32))
    parameters = {size.width: experiment.prepared(size).parameters() for size in models}
    train = settings.raw["train"]
    ratio = 40 * train["batch_size"] * train["seq_len"] / parameters[16]

    def at(ratio: float | None) -> settings_module.Experiment:
        rule = replace(settings.transfer, tokens_per_parameter=ratio)
        return at_fixed_ratio(replace(experiment, settings=replace(settings, transfer=rule)))

    for near in (ratio, 1.04 * ratio, 0.96 * ratio):
        base, wide = at(near).settings.ladders()["width"]
        assert base.steps == 40, "the base says its own"
        wanted = 40 * near / ratio * parameters[32] / parameters[16]
        assert wide.steps == pytest.approx(wanted, rel=6e-3)
    for far in (1.06 * ratio, 0.94 * ratio):
        with raises_config_error("train.steps", 40) as caught:
            at(far)
        assert f"tokens_per_parameter={ratio:.3g}" in str(caught.value)
        assert f"train.steps={int(40 * far / ratio)}" in str(caught.value)
    assert at(None).settings.steps_of is None


def result(eta: float, status: str = "complete", seed: int = 0, alpha: float = 0.0) -> Result:
    made = trial(seed=seed, eta=eta, alpha_attn=alpha)
    loss = math.nan if status == "failed" else eta**2
    return Result(trial=made, status=status, objective=loss)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([result(1, "failed")], [1.0]),
        ([result(1, "failed"), result(2, "failed"), result(-1)], [1.0]),
        ([result(1, "failed"), result(-1, "failed")], [-1.0, 1.0]),
        # What lies behind a trial with a result is no neighbour, nor what another seed settled.
        ([result(1), result(2, "failed")], []),
        ([result(1, "failed"), result(1, seed=1)], []),
        ([result(1, "diverged"), result(2, "failed")], []),
        ([result(1, "failed", alpha=1.0)], []),
        ([result(0, "failed", seed=1)], []),
    ],
)
def test_the_best_s_neighbours_without_a_result(others: list[Result], found: list[float]) -> None:
    best = result(0.0)
    lacking = without_result([best, *others], best.trial.log2_hps, {})
    assert sorted(each.trial.log2_hps[name] for name, each in lacking) == found


def test_of_choices_those_of_the_best_count() -> None:
    space = {"kind": Axis(low=0, high=1, default=0, choices=("plain", "bad"))}
    best = Log2Hps({**result(0.0).trial.log2_hps, "kind": 0.0})

    def chosen(eta: float, kind: str) -> Result:
        failed = result(eta, "failed")
        return replace(failed, trial=replace(failed.trial, choices={"kind": kind}))

    assert without_result([chosen(1, "bad"), chosen(0, "bad")], best, space) == []
    ((name, found),) = without_result([chosen(1, "bad"), chosen(2, "plain")], best, space)
    assert (name, found.trial.log2_hps["eta"]) == ("eta", 2)
