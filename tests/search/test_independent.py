import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from scipy.stats import sem
from scipy.stats import t as student

from sweeper.config.compose import compose_tree
from sweeper.registry import build_plugin
from sweeper.search.independent import FRESH_SEED, IndependentSearch
from sweeper.search.strategy import History
from sweeper.stats.line import LineRule
from sweeper.trial import Axis, Log2Hps, Space, defaults
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.search.fakes import Objective, basin, batches, run_search, space_of

SPACE = {
    "eta": Axis(low=-1, high=3, default=1),
    "a": Axis(low=-2, high=2),
    "b": Axis(low=-3, high=3),
}
SMALL = IndependentSearch(runs=2 * 9 * 2, seeds=2, retune=False)


def conclude(search: IndependentSearch, objective: Objective, space: Space = SPACE) -> Any:
    return search.conclude(space, run_search(search, space, objective))


def where(hps: Log2Hps) -> tuple[float, ...]:
    return tuple(hps[name] for name in SPACE)


def test_the_paper_s_phases_are_9_330_and_6_runs_and_the_default_s_fewer() -> None:
    space = space_of("umup")
    after = [("combine", 6), ("retune", 12), ("compare", 10)]
    phases = [(p.name, p.trials) for p in IndependentSearch().plan(space)]
    assert phases == [("eta", 9), ("lines", 5 * 7 * 3), *after]
    whole = build_plugin(compose_tree(["search=paper"])["search"])
    phases = [(p.name, p.trials) for p in whole.plan(space)]
    assert phases == [("eta", 9), ("lines", 330), ("combine", 6)]
    assert whole.fresh_seeds == 0
    search = IndependentSearch(runs=330)
    history = run_search(search, space, basin(space))
    counts = Counter(r.trial.phase for r in history.results)
    # The five lines share the 3 runs of their common point, one of which the line over eta has.
    assert counts == {"eta": 9, "lines": 330 - 4 * 3 - 1, "combine": 6, "retune": 12}
    found = search.conclude(space, history)
    assert not any(line.extended for line in found.lines)
    assert [len(line.points_log2) for line in found.lines] == [9, 22, 22, 22, 22, 22]


def test_it_names_the_settings_that_let_each_line_go_on(golden: Golden) -> None:
    search = IndependentSearch(
        eta=LineRule(points=3, extend=0),
        lines=LineRule(extend=0),
        runs=6,
        seeds=1,
        retune=LineRule(points=3, extend=0),
    )
    objective = basin(SPACE, at={"eta": 9, "a": 9, "b": 0})
    notes = conclude(search, objective).notes
    advice = [note.partition("still at the end of the grid")[2] for note in notes]
    assert all("raise search." in text for text in filter(None, advice)) and any(advice)
    golden.says("\n".join(filter(None, advice)))


def test_a_space_of_eta_alone_has_no_lines_and_one_finalist(golden: Golden) -> None:
    space, search = space_of("standard"), IndependentSearch()
    assert [phase.trials for phase in search.plan(space)] == [9, 0, 6]
    history = run_search(search, space, basin(space, spread=0.01))
    assert Counter(r.trial.phase for r in history.results) == {"eta": 9, "combine": 3}
    found = search.conclude(space, history)
    assert found.combination is not None and found.combination.difference == 0
    golden.says(found.notes[-1])
    assert found.seeds == 3 and found.best_log2["eta"] == found.lines[0].optimum_log2


def test_lines_run_at_the_optimal_eta_and_all_their_rounds_together() -> None:
    objective = basin(SPACE, at={"eta": 1.1, "a": 0.1, "b": -1.4})
    rounds = [points for _, points in batches(SMALL, SPACE, objective)]
    assert [points[0].phase for points in rounds[:-1]] == [*["eta"] * 2, *["lines"] * 2, "combine"]
    assert {where(point.log2_hps) for point in rounds[2]} == {(1, a, 0) for a in range(-2, 3)} | {
        (1, 0, b) for b in range(-3, 4)
    }
    assert {point.seed for points in rounds[:2] for point in points} == {0}
    assert {point.seed for point in rounds[2]} == {0, 1}
    ends = conclude(SMALL, objective).phase_ends
    lines = 9 + len(rounds[2]) + len(rounds[3])
    assert ends == {"eta": 9, "lines": lines, "combine": lines + 3}  # only b was moved


def test_fresh_seeds_compare_and_the_better_is_taken(golden: Golden) -> None:
    found = conclude(SMALL, basin(SPACE, at={"eta": 1.9, "a": 1, "b": -1}, spread=0.001))
    assert found.combination is not None and where(found.best_log2) == (2, 1, -1)
    assert found.best_log2 == found.combination.combined_log2
    assert where(found.combination.single_log2) in {(2, 1, 0), (2, 0, -1)}
    assert found.combination.difference == pytest.approx(-0.1, abs=0.005)
    assert found.seeds == 3
    golden.says(found.notes[-1])
    history = run_search(SMALL, SPACE, basin(SPACE))
    fresh = {r.trial.seed for r in history.results if r.trial.phase == "combine"}
    assert fresh == set(range(FRESH_SEED, FRESH_SEED + 3))


def clash(hps: Log2Hps, seed: int) -> float:
    alone = 3 - 0.1 * (hps["a"] == 1) - 0.2 * (hps["b"] == 1) + 0.01 * (hps["eta"] - 1) ** 2
    return alone + (hps["a"] == 1 and hps["b"] == 1) + 1e-4 * seed


FRESH = range(FRESH_SEED, FRESH_SEED + 3)


@pytest.mark.parametrize(
    ("both", "alone", "combine_seeds", "best", "difference"),
    [
        ((), (), 3, (1, 0, 1), 0.9),
        ((), (), 1, (1, 0, 1), 0.9),
        (FRESH, (), 3, (1, 0, 1), math.inf),
        ((), FRESH, 3, (1, 1, 1), -math.inf),
        (FRESH, FRESH, 3, (1, 0, 1), math.nan),
    ],
)
def test_of_the_finalists_the_one_without_a_lost_seed_is_kept(
    both: Sequence[int],
    alone: Sequence[int],
    combine_seeds: int,
    best: tuple[int, ...],
    difference: float,
) -> None:
    """`both` and `alone` are seeds that the combined optimum and the single change lose."""

    def objective(hps: Log2Hps, seed: int) -> float:
        lost = {(1, 1): both, (0, 1): alone}.get((hps["a"], hps["b"]), ())
        return math.inf if seed in lost else clash(hps, seed)

    search = replace(SMALL, combine_seeds=combine_seeds)
    assert search.plan(SPACE)[-1].trials == 2 * combine_seeds
    found = conclude(search, objective)
    assert where(found.best_log2) == best
    assert found.combination.difference == pytest.approx(difference, nan_ok=True)
    assert math.isnan(found.combination.error) == (bool(both or alone) or combine_seeds == 1)
    if both and alone:  # the best single change that was measured stays
        measured = 2, 2.8 + 0.5e-4
    else:
        loss = 2.8 if best[1] == 0 else 3.7
        measured = combine_seeds, loss + 1e-4 * (FRESH_SEED + combine_seeds // 2)
    assert (found.seeds, found.objective) == pytest.approx(measured)


def test_a_line_that_diverged_everywhere_moves_nothing() -> None:
    """Only seed 0 of the defaults is finite, so that no line over a has a finite mean."""

    def objective(hps: Log2Hps, seed: int) -> float:
        if hps["b"] == 1 or seed >= FRESH_SEED:
            return 2.0
        return 3.0 + hps["eta"] ** 2 if seed == 0 and hps["a"] == 0 else math.inf

    found = conclude(SMALL, objective)
    assert where(found.best_log2) == (0, 0, 1)
    assert next(line for line in found.lines if line.name == "a").objective == math.inf


@pytest.mark.parametrize("b", [Axis(low=-2.5, high=2.5), Axis(low=2, high=2)])
def test_defaults_that_no_line_tries_can_still_win(b: Axis) -> None:
    space = {"eta": SPACE["eta"], "b": b}
    search = IndependentSearch(runs=14, seeds=2, lines=LineRule(extend=0))
    found = conclude(search, basin(space, at={"eta": 1, "b": 0}, spread=1e-4), space)
    assert b.default not in [value for value, _ in found.lines[1].points_log2] or b.low < 0
    assert found.combination.single_log2 == {"eta": 1, "b": 0}
    assert found.objective <= found.lines[1].objective + 1e-3


def test_conclusion_amid_the_lines_is_the_best_that_was_measured() -> None:
    history = run_search(SMALL, SPACE, basin(SPACE, at={"eta": 1, "a": 0, "b": 0}))
    bad = [r for r in history.results if r.trial.log2_hps["b"] == -3]
    found = SMALL.conclude(SPACE, History(history.results[:9] + bad))
    assert where(found.best_log2) == (1, 0, 0) and found.objective == 3.0 and found.seeds == 1
    good = History([r for r in history.results if r.trial.phase != "combine"])
    found = SMALL.conclude(SPACE, good)
    assert where(found.best_log2) == (1, 0, 0) and found.seeds == 2


def test_budget_of_one_point_a_line_tries_the_defaults_alone() -> None:
    search = IndependentSearch(runs=2, seeds=1, combine_seeds=1)
    history = run_search(search, SPACE, basin(SPACE))
    assert Counter(r.trial.phase for r in history.results) == {"eta": 9, "combine": 1}
    assert {(r.trial.log2_hps["a"], r.trial.log2_hps["b"]) for r in history.results} == {(0, 0)}
    with raises_config_error("runs", 1):
        IndependentSearch(runs=1, seeds=1).plan(SPACE)


def test_axes_choose_the_lines_beside_eta() -> None:
    search = IndependentSearch(runs=18, seeds=2, axes=("b",))
    found = conclude(search, basin(SPACE))
    assert [line.name for line in found.lines] == ["eta", "b"]
    assert found.best_log2["a"] == defaults(SPACE)["a"]


def pulled(hps: Log2Hps, seed: int) -> float:
    """The best eta rises by 1 with b, whose best is 1."""
    return 3 + 0.1 * (hps["eta"] - 1 - hps["b"]) ** 2 + 0.3 * (hps["b"] - 1) ** 2 + 0.01 * seed


RETUNED = IndependentSearch(runs=2 * 9 * 2, seeds=2, combine_seeds=2)


def test_eta_is_retuned_after_combining_and_compared_on_other_seeds() -> None:
    history = run_search(RETUNED, SPACE, pulled)
    found = RETUNED.conclude(SPACE, history)
    single = found.combination.single_log2
    assert single["eta"] == 1 and single["b"] != 0
    retune = found.retune
    assert retune.before_log2 == 1 and retune.line.optimum_log2 == found.best_log2["eta"]
    gain = pulled(single, 0) - pulled(found.best_log2, 0)
    assert retune.gain == pytest.approx(gain) and gain > 0 and retune.moves
    assert retune.low == pytest.approx(gain) == retune.high and retune.seeds == 5
    runs = [r for r in history.results if r.trial.phase == "retune"]
    assert {r.trial.seed for r in runs} == {FRESH_SEED, FRESH_SEED + 1} and len(runs) == 2 * 4
    assert found.runs == len(history.results) == found.phase_ends["compare"]
    compared = [r.trial for r in history.results if r.trial.phase == "compare"]
    assert {trial.seed for trial in compared} == set(range(FRESH_SEED + 2, FRESH_SEED + 7))
    assert found.objective == pytest.approx(pulled(found.best_log2, FRESH_SEED + 4))
    assert any("moved it from 2^1 to 2^" in note for note in found.notes)


@pytest.mark.parametrize("loss", [3.0, math.inf])
def test_of_equals_the_eta_before_retuning_stays(loss: float) -> None:
    def objective(hps: Log2Hps, seed: int) -> float:
        if seed >= FRESH_SEED:
            return 3.0 if hps["eta"] == 1 else loss
        return pulled(hps, seed)

    found = conclude(RETUNED, objective)
    assert found.best_log2["eta"] == found.retune.before_log2 == 1 and found.retune.gain == 0
    assert any("left it at 2^1" in note for note in found.notes)


@pytest.mark.parametrize(
    ("extra", "moves"), [(0.0, True), (0.5, False), (math.inf, False), (-math.inf, True)]
)
def test_a_retuned_eta_is_taken_where_fresh_seeds_leave_no_doubt(extra: float, moves: bool) -> None:
    """`extra` is lost with every other fresh seed by the new value, or by the old one."""

    def objective(hps: Log2Hps, seed: int) -> float:
        late = seed >= FRESH_SEED + 2 and seed % 2
        moved = hps["eta"] != 1
        return pulled(hps, 0) + (abs(extra) if late and moved == (extra > 0) else 0.0)

    found = conclude(RETUNED, objective)
    assert found.retune.moves == moves == (found.best_log2["eta"] != 1)
    if math.isfinite(extra):
        etas = found.retune.before_log2, found.retune.line.optimum_log2
        before, after = (Log2Hps({**found.best_log2, "eta": eta}) for eta in etas)
        seeds = range(FRESH_SEED + 2, FRESH_SEED + 7)
        gains = [objective(before, seed) - objective(after, seed) for seed in seeds]
        spread = sem(gains) * student.ppf(0.975, 4)
        interval = found.retune.low, found.retune.gain, found.retune.high
        assert interval == pytest.approx([fmean(gains) + x for x in (-spread, 0, spread)])
    assert math.isfinite(found.objective)


@pytest.mark.parametrize("eta", [Axis(low=1, high=1, default=1), SPACE["eta"]])
def test_nothing_is_retuned_where_eta_is_fixed_or_nothing_else_moved(eta: Axis) -> None:
    at = {"b": 2.0 * (eta.low == eta.high)}
    search = IndependentSearch(runs=36, seeds=2, eta=LineRule(extend=0))
    found = conclude(search, basin(SPACE, at=at), SPACE | {"eta": eta})
    assert found.retune is None and "retune" not in found.phase_ends


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"runs": -1}, "runs"),
        ({"seeds": 0}, "seeds"),
        ({"combine_seeds": 0}, "combine_seeds"),
        ({"retune": LineRule(points=2)}, "retune.points"),
    ],
)
def test_an_empty_search_is_refused(wrong: dict[str, Any], key: str) -> None:
    with raises_config_error(key):
        IndependentSearch(**wrong)
