"""Keyword arguments are the words of a command line, and next commands are calls again."""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn

from sweeper.api import words
from sweeper.api.words import CALLS, dotted, in_python, settings_words
from sweeper.config.compose import compose_tree
from sweeper.errors import SHELL, Call, ConfigError, Keyword, spelled
from sweeper.verbs.requests import ExportRequest, ReportRequest, SearchRequest, TransferRequest
from tests.refusals import raises_config_error
from tests.toy_models import Residual


def tree(**settings: Any) -> dict[str, Any]:
    return compose_tree(settings_words("search", settings, None))


def test_keywords_are_keys_groups_and_sections() -> None:
    made = tree(
        width=32,
        steps=20,
        search="lr",
        optimizer={"name": "sgd", "momentum": 0.5},
        transfer={"widths": [16, 32], "eta": None, "correct": True},
        parameterization={"name": "mup", "space": {"eta": {"low": -9}}},
        data={"name": "text", "path": Path("it's.txt")},
        schedule={"name": "wsd", "decay": 0.25},
        **{"check.seeds": 2},
    )
    assert made["model"]["width"] == 32 and made["train"]["steps"] == 20
    assert made["search"]["_target_"] == "sweeper.search.line_search.LearningRateLine"
    assert made["optimizer"]["momentum"] == 0.5 and made["optimizer"]["_target_"].endswith("SGD")
    assert made["transfer"]["widths"] == [16, 32] and made["transfer"]["correct"] is True
    assert made["parameterization"]["space"]["eta"]["low"] == -9
    assert made["data"]["path"] == "it's.txt" and made["check"]["seeds"] == 2
    assert made["train"]["schedule"] == {"name": "wsd", "decay": 0.25}


def test_a_class_stands_for_its_dotted_path_and_has_arguments_of_its_own() -> None:
    made = tree(model={"name": Residual, "heads": 4, "roles": {"*.bias": "vector"}}, depth=3)
    assert made["model"]["_target_"] == "tests.toy_models.Residual"
    assert made["model"]["heads"] == 4 and made["model"]["depth"] == 3
    assert made["model"]["roles"] == ["*.bias=vector"] and "head_size" not in made["model"]


@pytest.mark.parametrize(
    ("settings", "key", "meant"),
    [
        ({"widht": 64}, "widht", "width"),
        ({"optimizer": "adamv"}, "optimizer", "adamw"),
        ({"train": {"step": 5}}, "train.step", "train.steps"),
        ({"train": 5}, "train", "mapping"),
        ({"steps": {1, 2}}, "train.steps", "a number"),
        ({"model": {"config": {"x y": 1}}}, "model.config.x y", "letters"),
    ],
)
def test_what_is_no_key_is_refused_with_what_was_meant(
    settings: dict[str, Any], key: str, meant: str
) -> None:
    with raises_config_error(key) as caught:
        tree(**settings)
    assert meant in str(caught.value)


def in_function() -> type:
    class Inner(nn.Module): ...

    return Inner


@pytest.mark.parametrize(
    "named", [lambda width: None, partial(Residual, width=4), in_function(), Residual(4, 1), 5]
)
def test_what_has_no_name_is_refused(named: Any) -> None:
    with raises_config_error("model"):
        dotted("model", named)


def test_a_class_that_was_defined_anew_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("nb_cells")
    monkeypatch.setitem(sys.modules, "nb_cells", module)
    exec("class Net: ...", vars(module))
    old = module.Net
    assert dotted("model", old) == "nb_cells.Net"
    exec("class Net: ...", vars(module))
    with raises_config_error("model", "nb_cells.Net"):
        dotted("model", old)


def test_a_command_is_a_call_that_gives_the_same_words() -> None:
    overrides = ("transfer.widths=[16,32]", "transfer.step=0.5")
    request = TransferRequest(
        study="a b", to_width=256, validate=True, overrides=overrides, root=Path("/x")
    )
    seen: list[Any] = []

    class sweeper:  # noqa: N801 - stands for the module
        @staticmethod
        def transfer(study: str, to_width: int, **settings: Any) -> None:
            seen.extend([study, to_width, settings])

    eval(CALLS.call(request.call), {"sweeper": sweeper})
    study, width, settings = seen
    assert (study, width, settings.pop("root"), settings.pop("validate")) == ("a b", 256, "/x", 1)
    assert settings_words("transfer", settings, None) == [*overrides]
    shell = ExportRequest(to="pytorch", study="a").call
    assert CALLS.call(shell) == SHELL.call(shell)


def test_a_search_again_names_the_notebook_s_class() -> None:
    argv = ("model._target_=__main__.Net", "model.width=16", "search=lr", "search.axes=[eta]")
    request = SearchRequest(overrides=argv, study="nb")
    assert CALLS.call(request.call) == (
        "sweeper.search(study='nb', model={'name': Net, 'width': 16}, "
        "search={'name': 'lr', 'axes': ['eta']})"
    )


def test_a_call_in_a_message_is_python_s_own() -> None:
    call = Call("search", Keyword("study", "plain"), "model._target_=net.Net", "train.steps=3")
    assert spelled((call, " writes it anew"), CALLS) == (
        "`sweeper.search(study='plain', model='net.Net', train={'steps': 3})` writes it anew"
    )
    # Of other verbs a shell takes it as it stands.
    check = Call("check", Keyword("study", "nb"), Keyword("scales"))
    assert spelled(("type ", check), CALLS) == "type `sweeper check --study nb --scales`"


def test_errors_name_the_keywords_that_were_given() -> None:
    for given, key in ((["steps"], "steps"), (["train"], "train.steps")):
        remedy = ("as in ", Call("search", Keyword("study", "a")))
        with pytest.raises(ConfigError) as caught, in_python(given):
            raise ConfigError("train.steps", 0, remedy)
        assert caught.value.key == key and caught.value.allowed == (
            "as in `sweeper.search(study='a')`"
        )
        assert str(caught.value).startswith(f"{key}=0 is refused: as in `sweeper.search(")


def test_a_shell_s_command_runs_in_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "in_notebook", lambda: True)
    assert CALLS.call(ReportRequest(name=("a",)).call) == "!sweeper report a"
