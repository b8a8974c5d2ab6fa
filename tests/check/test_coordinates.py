from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.check.judge import (
    CheckRule,
    CoordinateCheck,
    Runs,
    check_coordinates,
    judge_slope,
)
from sweeper.data.corpus import TokenCorpus
from sweeper.engine.measure import ModuleMeasurement, measure_modules
from sweeper.report.sentences import check_todo
from sweeper.scaling.spec import LOGITS, Role
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import ModelSize, Size
from sweeper.trial import Trial
from tests.engine.tiny_trials import ETA, PARAMETERIZATIONS, check_tree, corpus
from tests.refusals import raises_config_error
from tests.specs import spec_of

RULE = CheckRule(steps=3, seeds=6, share=0.25)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return corpus(tmp_path_factory.mktemp("tokens"))


def measured(
    tokens: TokenCorpus,
    parameterization: str,
    sizes: list[Size],
    norm_gain: bool = False,
    **keys: Any,
) -> Runs:
    runs = {}
    for size in sizes:
        made = check_tree(parameterization, RULE.steps)
        made["model"] |= {"width": size.width, "depth": size.depth, "norm_gain": norm_gain}
        made["base"] = {"width": 32, "depth": sizes[0].depth}
        made["parameterization"] |= keys
        hps = dict.fromkeys(PARAMETERIZATIONS[parameterization][1], 0.0) | {
            "eta": ETA[parameterization] - 1
        }
        trials = [Trial(spec=spec_of(made), log2_hps=hps, seed=seed) for seed in range(RULE.seeds)]
        runs[size] = [measure_modules(trial, tokens) for trial in trials]
    return runs


def umup_over_width(tokens: TokenCorpus, norm_gain: bool = False) -> CoordinateCheck:
    sizes = [Size(width=width, depth=2) for width in (32, 64, 128)]
    runs = measured(tokens, "umup", sizes, norm_gain)
    return check_coordinates("width", runs, RULE, {Role.EMBEDDING: -0.5})


def test_the_right_rules_pass(tokens: TokenCorpus) -> None:
    check = umup_over_width(tokens)
    assert check.answer == "pass" and check.origins == ()
    head = next(module for module in check.modules if module.name == "head")
    assert head.slopes[0].slope.value == pytest.approx(-0.5, abs=0.1)
    assert {slope.quantity for slope in head.slopes if slope.one_sided} == {"output", "change"}


@pytest.mark.long
def test_a_gain_does_not_shrink_with_the_embedding_before_it(tokens: TokenCorpus) -> None:
    """u-muP's embedding moves less the wider it is, its norms' gains as much at any width."""
    check = umup_over_width(tokens, norm_gain=True)
    assert check.answer != "fail", check.origins
    expected = {module.name: module.slopes[-1].expected for module in check.modules}
    assert expected["embedding"] == -0.5 and expected["layers.0.attention_norm"] == 0.0


def test_over_the_depth_the_sum_of_the_layers_is_judged(tokens: TokenCorpus) -> None:
    sizes = [Size(width=32, depth=depth) for depth in (1, 2, 4)]
    right = check_coordinates("depth", measured(tokens, "mup", sizes), RULE)
    assert [module.name for module in right.modules] == ["embedding", "norm", "head", LOGITS]
    assert right.answer == "pass" and right.sizes == (1, 2, 4)
    wrong = check_coordinates("depth", measured(tokens, "mup", sizes, depth="none"), RULE)
    [norm] = [module for module in wrong.modules if module.name == "norm"]
    assert norm.worst.reason == "grows"


# What is judged, on made-up measurements.


def runs_of(*modules: tuple[str, Role | None, int, float, float], seeds: int = 4) -> Runs:
    """Modules as (name, role, growth of entries, slope of the output, of the changes)."""
    runs = {}
    for width in (16, 32, 64):
        size = Size(width=width, depth=1)
        runs[size] = [
            [
                ModuleMeasurement(
                    name=name,
                    role=role,
                    entries=8 * width**grows,
                    rms=width**at,
                    changes=(width**by * (1 + 0.01 * seed),) * RULE.steps,
                    direct_changes=(width**by,) * RULE.steps if role else (),
                )
                for name, role, grows, at, by in modules
            ]
            for seed in range(seeds)
        ]
    return runs


def answers(check: CoordinateCheck) -> dict[str, str]:
    return {module.name: module.answer for module in check.modules}


@given(slope=st.floats(-1.5, 1.5), expected=st.sampled_from([0.0, -0.5]))
def test_a_power_of_the_width_is_read_off_and_judged(slope: float, expected: float) -> None:
    runs = runs_of(("e", Role.EMBEDDING, 1, 0.0, slope), ("h", Role.HIDDEN, 1, 0.0, 0.0))
    runs = {size: runs[size] for size in sorted(runs, reverse=True)}  # their order says nothing
    check = check_coordinates("width", runs, RULE, {Role.EMBEDDING: expected})
    module = check.modules[0]
    assert all(s.slope.value == pytest.approx(slope, abs=1e-9) for s in module.slopes[1:])
    off = slope - expected
    if abs(abs(off) - RULE.threshold) > 1e-6:
        assert module.answer == ("pass" if abs(off) < RULE.threshold else "fail")
        reason = "" if module.answer == "pass" else "grows" if off > 0 else "vanishes"
        assert module.worst.reason == reason
    assert check.origins == (("e",) if module.answer == "fail" else ())


@given(
    value=st.floats(-2, 2),
    narrow=st.floats(0, 1),
    wider=st.floats(0, 1),
    expected=st.floats(-1, 1),
    threshold=st.floats(0.01, 1),
    one_sided=st.booleans(),
)
def test_a_wider_interval_never_settles_what_a_narrow_one_left_open(
    value: float, narrow: float, wider: float, expected: float, threshold: float, one_sided: bool
) -> None:
    def judged(half: float, threshold: float = threshold) -> str:
        slope = Estimate(value=value, low=value - half, high=value + half)
        return judge_slope(slope, expected, threshold, one_sided=one_sided)[0]

    assert judged(narrow + wider) in (judged(narrow), "cannot say")
    # A laxer threshold passes all that a strict one does, and fails nothing more.
    strict, lax = judged(narrow), judged(narrow, 2 * threshold)
    assert strict != "pass" or lax == "pass"
    assert lax != "fail" or strict == "fail"
    if not one_sided:
        mirrored = Estimate(value=-value, low=-value - narrow, high=-value + narrow)
        assert judge_slope(mirrored, -expected, threshold, one_sided=False)[0] == strict


def test_what_runs_before_a_hidden_weight_shrinks_with_the_embedding() -> None:
    modules = [
        ("e", Role.EMBEDDING, 1, 0.0, -0.5),
        ("norm", None, 1, 0.0, -0.5),
        ("h", Role.HIDDEN, 1, 0.0, 0.0),
        ("act", None, 1, 0.0, -0.1),
        ("wild", None, 1, 0.0, 0.4),
    ]
    check = answers(check_coordinates("width", runs_of(*modules), RULE, {Role.EMBEDDING: -0.5}))
    assert check == dict.fromkeys(("e", "norm", "h", "act"), "pass") | {"wild": "fail"}
    check = answers(check_coordinates("width", runs_of(*modules), RULE))
    assert check == dict.fromkeys(("e", "norm", "wild"), "fail") | {"h": "pass", "act": "pass"}


def test_what_is_as_large_at_any_width_may_begin_small_but_not_grow() -> None:
    for role, output, change, answer in (
        (None, -0.5, -0.5, "pass"),
        (None, 0.5, 0.0, "fail"),
        (None, 0.0, 0.5, "fail"),
        (Role.READOUT, -0.5, 0.0, "pass"),
        (Role.READOUT, -0.5, -0.5, "fail"),
    ):
        check = check_coordinates("width", runs_of(("head", role, 0, output, change)), RULE)
        assert check.answer == answer, (role, output, change)


def test_a_few_weights_that_shrink_as_without_alignment_do_not_fail() -> None:
    others = [(f"h{i}", Role.HIDDEN, 1, 0.0, 0.0) for i in range(2)]
    for slope, more, answer in (
        (-0.4, others, "cannot say"),
        (-0.6, others, "fail"),  # more than alignment explains
        (-0.4, others[:1], "fail"),  # half of the weights: a rule
    ):
        modules = [("k", Role.HIDDEN, 1, 0.0, slope), *more]
        check = check_coordinates("width", runs_of(*modules), RULE)
        assert check.answer == answer, (slope, answer)
        assert check.settled_by(RULE) == (
            "check.batch=1" if answer == "cannot say" else "check.seeds=12"
        )


def growing_late(first: float, direct: float) -> CoordinateCheck:
    """A weight, and what comes after it: its change grows with the width by the last step."""
    runs = runs_of(("h", Role.HIDDEN, 1, 0.0, direct), ("act", None, 1, 0.0, 0.4))
    late = {
        size: [
            [run[0], replace(run[1], changes=(size.width**first, *run[1].changes[1:]))]
            for run in seeds
        ]
        for size, seeds in runs.items()
    }
    return check_coordinates("width", late, RULE)


def test_what_grows_after_large_steps_alone_cannot_be_judged() -> None:
    check = growing_late(first=0.0, direct=0.0)
    assert check.answer == "cannot say" and check.settled_by(RULE) == "check.share=0.0625"
    assert growing_late(first=0.4, direct=0.0).answer == "fail"
    explained = growing_late(first=0.0, direct=0.4)
    assert explained.modules[1].answer == "fail" and explained.origins == ("h",)


@pytest.mark.parametrize(("axis", "answer"), [("experts", "pass"), ("granularity", "fail")])
def test_over_sizes_of_experts_only_what_says_something_is_judged(axis: str, answer: str) -> None:
    """Whole changes grow with the size; only modules without parameters go by them, as they may."""
    rows = (("h", Role.HIDDEN, 0, -1.0, 1.0), ("act", None, 0, -1.0, 1.0))
    runs = runs_of(*rows, ("less", None, 0, -1.0, -1.0))
    resized = {
        ModelSize(width=32, depth=1, **{axis: size.width}): [
            [replace(run[0], direct_changes=(1.0,) * RULE.steps), *run[1:]] for run in seeds
        ]
        for size, seeds in runs.items()
    }
    check = check_coordinates(axis, resized, RULE)
    assert [module.answer for module in check.modules] == ["pass", answer, "pass"]


def test_one_seed_has_no_interval_and_two_widths_ask_for_a_third() -> None:
    runs = runs_of(("h", Role.HIDDEN, 1, 0.0, 0.0), seeds=1)
    check = check_coordinates("width", runs, RULE)
    assert check.answer == "cannot say" and check.modules[0].worst.reason == "interval too wide"
    assert check.settled_by(RULE) == f"check.seeds={2 * RULE.seeds}"
    two = check_coordinates("width", {size: runs[size] for size in [*runs][:2]}, RULE)
    assert two.settled_by(RULE) == "transfer.widths=[16,32,64]"
    assert check_todo(two, RULE).startswith("two widths cannot tell: transfer.widths=[16,32,64]")


def test_noise_that_hides_the_slope_cannot_be_judged() -> None:
    assert judge_slope(Estimate(value=0.1, low=-0.3, high=0.5), 0.0, 0.25, one_sided=False) == (
        "cannot say",
        "interval too wide",
    )
    assert (
        judge_slope(Estimate(value=0.1, low=-9, high=0.2), 0.0, 0.25, one_sided=True)[0] == "pass"
    )


def replaced(runs: Runs, value: float, where: int | None) -> Runs:
    changed = {"changes": (value,) * RULE.steps}
    return {
        size: [
            [
                replace(m, direct_changes=(), **changed if where in (None, size.width) else {})
                for m in run
            ]
            for run in seeds
        ]
        for size, seeds in runs.items()
    }


@pytest.mark.parametrize(
    ("value", "where", "answer", "reason"),
    [
        (math.nan, 64, "fail", "not finite"),
        (math.inf, 64, "fail", "not finite"),
        (0.0, 16, "cannot say", "zero at some sizes"),
        (0.0, None, "pass", ""),
    ],
)
def test_numbers_without_a_logarithm(
    value: float, where: int | None, answer: str, reason: str
) -> None:
    runs = replaced(runs_of(("h", Role.HIDDEN, 1, 0.0, 0.0)), value, where)
    module = check_coordinates("width", runs, RULE).modules[0]
    assert module.answer == answer and (module.worst.reason == reason or answer == "pass")


REFUSED: dict[str, list[float]] = {
    "steps": [0],
    "seeds": [0],
    "batch": [-1],
    "scale_steps": [0],
    "seed": [-1],
    "share": [0.0, 1.5],
    "threshold": [0.0, math.nan],
    "eta": [math.nan, 61.0],
}


def test_what_cannot_be_run_is_refused() -> None:
    for key, values in REFUSED.items():
        for value in values:
            with raises_config_error(key):
                CheckRule(**{key: value})  # type: ignore[arg-type]
