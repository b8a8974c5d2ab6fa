from pathlib import Path

import pytest

from sweeper.config.compose import compose_tree
from sweeper.errors import BadInput
from sweeper.files import read_json, write_json
from sweeper.search.strategy import LineResult
from sweeper.stats.line import LineRule, replay_line
from sweeper.sweep.warm_start import OutsideAnswer, outside, warm_tree
from sweeper.trial import Axis
from tests.cli.driver import TINY, make_workplace, run_in
from tests.refusals import raises_config_error


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workplace(tmp_path_factory.mktemp("warm"))
    run_in(folder, "search", *TINY, "study=a")
    return folder / "runs"


def tree(root: Path, *words: str) -> dict[str, object]:
    return compose_tree([*TINY, f"root={root}", *words])


def test_ranges_are_the_old_interval_and_lines_have_three_points(root: Path) -> None:
    best = read_json(root / "a/search.json")["best_log2"]["eta"]
    cold = tree(root)
    warm = warm_tree(cold, "a", set())
    axis = Axis(**warm["parameterization"]["space"]["eta"])
    assert axis.default == best and axis.step is not None and axis.step >= 0.5
    assert axis.grid(1.0) == pytest.approx([best - axis.step, best, best + axis.step])
    assert warm["search"]["line"]["points"] == 3
    state = replay_line(LineRule(points=3), axis, lambda value: (value - best) ** 2)
    assert sorted(state.losses) == pytest.approx(axis.grid(1.0)) and not state.missing


def test_what_is_typed_stays_and_other_parameterizations_are_refused(root: Path) -> None:
    typed = {"parameterization.space.eta.low", "search.line.points"}
    cold = tree(root)
    warm = warm_tree(cold, "a", typed)
    assert warm["search"] == cold["search"]
    ranges = [each["parameterization"]["space"]["eta"] for each in (warm, cold)]
    assert ranges[0] == ranges[1]
    other = "standard" if "umup" in str(cold["parameterization"]) else "umup"
    with raises_config_error("search.from"):
        warm_tree(
            {**cold, **{k: tree(root, f"parameterization={other}")[k] for k in cold}}, "a", []
        )
    with pytest.raises(BadInput):
        warm_tree(cold, "none", set())


def test_other_verbs_do_not_pass_over_where_a_search_begins(root: Path) -> None:
    with raises_config_error("search.from", "a"):
        tree(root, "search.from=a")


def test_a_study_without_an_answer_is_refused(root: Path) -> None:
    record = read_json(root / "a/search.json")
    (root / "b").mkdir()
    (root / "b/config.yaml").write_bytes((root / "a/config.yaml").read_bytes())
    write_json(root / "b/search.json", {**record, "objective": None})
    with pytest.raises(BadInput):
        warm_tree(tree(root), "b", set())
    # Of somebody else: a width beyond any float, and what is no record.
    write_json(root / "b/search.json", {**record, "base": {**record["base"], "width": 10**400}})
    assert warm_tree(tree(root), "b", set())["parameterization"]
    write_json(root / "b/search.json", {**record, "space_log2": 5})
    with pytest.raises(BadInput, match=r"search\.json"):
        warm_tree(tree(root), "b", set())


def test_an_optimum_at_the_old_intervals_end_lies_outside() -> None:
    space = {
        "eta": Axis(low=-1, high=1, default=0.0, step=1.0),
        "alpha": Axis(low=-1, high=1, default=0.0, step=1.0),
        "cold": Axis(low=-1, high=1, default=0.0),
    }
    lines = [
        LineResult(name=name, points_log2=((at, 1.0),), optimum_log2=at, objective=1.0)
        for name, at in (("eta", 1.0), ("alpha", 0.0), ("cold", 1.0))
    ]
    assert outside(space, lines) == [OutsideAnswer(name="eta", start=0.0, optimum=1.0)]
