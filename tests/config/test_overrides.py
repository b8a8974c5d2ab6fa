from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sweeper.config.command_line import of_study, place_of, with_place
from sweeper.config.compose import compose_tree, override_value, parse_overrides
from sweeper.config.studies import split_root
from tests.refusals import raises_config_error

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


def test_flags_and_overrides_name_the_same() -> None:
    assert with_place(["a=1"], "mine", "my/runs") == ["a=1", "study=mine", "root=my/runs"]
    assert of_study(["study=mine", "root=r", "a=1"], None, None) == ("mine", ["root=r", "a=1"])
    assert of_study(["study.name='mine'"], None, "r") == ("mine", ["root=r"])
    mapping = ["study={name: a, storage: null}"]
    assert of_study(mapping, None, None) == (None, mapping), "no name"
    for words in (["mine", "root=r"], ["study=mine", "root='r'"]):
        assert place_of(words, None, None) == ("mine", Path("r"))
    assert place_of([], "mine", "~/r") == ("mine", Path.home() / "r")
    assert place_of([], None, None) == (None, Path("runs"))


def test_both_at_once_agree_or_are_refused() -> None:
    assert with_place(["study=a"], "a", None) == ["study=a", "study=a"]
    for key, arguments in (("study", (["study=a"], "b", None)), ("root", (["root=a"], None, "b"))):
        with raises_config_error(key, ["b", "a"]):
            with_place(*arguments)
    with raises_config_error("study", ["b", "a"]):
        of_study(["study.name=a"], "b", None)
    with raises_config_error("study", ["c", "a", "b"]):
        place_of(["a", "study=b"], "c", None)


def test_what_has_names_of_the_user_s_needs_no_plus() -> None:
    words = ["parameterization=effective_theory", "model=vit", "data=digits"]
    words += ["parameterization.constants={position.weight: 0.0004, *.qkv.weight: 0.5}"]
    tree = compose_tree([*words, "data.augment={shift: 2}", "model.dropout=0.1"])
    constants = tree["parameterization"]["constants"]
    assert constants == {"position.weight": 0.0004, "*.qkv.weight": 0.5}
    asked = {"shift": 2, "flip": False, "erase": 0, "crop": 0, "randaugment": 0, "magnitude": 9}
    assert tree["data"]["augment"] == {**asked, "mixup": 0, "cutmix": 0}
    assert compose_tree(["model.dropout=0.1"])["model"]["dropout"] == 0.1


@example("null")
@example("1e3")
@example("~/x")
@example("a~b")
@example("it's ${x} \\\\")
@given(TEXT)
def test_any_folder_is_read_back(root: str) -> None:
    (word,) = with_place([], None, root)
    (override,) = parse_overrides([word])
    assert override_value("root", override.value()) == root


def test_what_an_experiment_says_of_its_launcher_is_not_said_of_another() -> None:
    tree = compose_tree(["experiment=demo", "launcher=inline"])
    assert tree["launcher"] == {"_target_": "sweeper.launch.inline.Inline"}
    assert tree["train"]["steps"] == 200
    assert compose_tree(["experiment=demo", "launcher=local"])["launcher"]["workers"] == 2


def test_root_is_told_from_other_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_root([]) == (Path("runs"), [])
    monkeypatch.setenv("WHERE", "/data")
    words = ["a.b=1", "root=${oc.env:WHERE}/runs", "c=2"]
    assert split_root(words) == (Path("/data/runs"), ["a.b=1", "c=2"])
    assert split_root(['root="~/x"'])[0] == Path.home() / "x"
