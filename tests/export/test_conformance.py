"""Every exporter under three parameterizations, two optimizers: files, header, list."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml

from sweeper.errors import ConfigError
from sweeper.export.compare import NAMES, lacking
from sweeper.export.exporter import EXPORTERS, build_exporter
from tests.export.plans import OPTIMIZERS, OPTIONS, PARAMETERIZATIONS, made, missing, plan
from tests.test_architecture import MODULES, imports

ALL = [
    (to, parameterization, name)
    for to in EXPORTERS
    for parameterization in PARAMETERIZATIONS
    for name in OPTIMIZERS
]


@pytest.mark.parametrize(("to", "parameterization", "optimizer"), ALL)
def test_files_are_read_by_their_languages_and_are_the_same_twice(
    to: str, parameterization: str, optimizer: str
) -> None:
    planned = plan(parameterization, optimizer)
    files = made(planned, to)
    assert files == made(planned, to) and files
    for name, text in files.items():
        assert "{{" not in text and "{%" not in text and text.endswith("\n"), name
        match Path(name).suffix:
            case ".py":
                ast.parse(text)
            case ".yaml":
                yaml.safe_load(text)
            case ".json":
                json.loads(text)
        assert not [line for line in text.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize(("to", "parameterization", "optimizer"), ALL)
def test_the_header_says_where_it_is_from_and_what_is_left_out(
    to: str, parameterization: str, optimizer: str
) -> None:
    planned = plan(parameterization, optimizer)
    lacks = missing(planned, to)
    assert lacks.keys() <= NAMES.keys()
    text = " ".join(next(iter(made(planned, to).values())).replace("#", " ").split())
    assert f"Parameterization: {planned.parameterization} with {optimizer}" in text
    assert "Tuned at n_embd 32, n_layer 2; for n_embd 128, n_layer 4." in text
    for always in ("attention: q k^T times", "residual branches: their outputs times"):
        assert always in text
    assert "output: logits times" in text and "Assumes eps" in text and "Weight decay is" in text
    for name in lacks:
        assert f"- {name}, {NAMES[name]}: " in text
    assert text.count("(accepted)") == len(lacks)


@pytest.mark.parametrize("to", EXPORTERS)
def test_at_the_base_a_plan_of_constants_1_lacks_no_factor_of_width(to: str) -> None:
    """Nothing scales there: what remains are constants, and what the trainer never says."""
    lacks = missing(plan("completep", width=32, depth=2), to)
    scaled = {"residual", "skip", "output", "hidden_lr", "readout_lr", "embedding_lr", "loss"}
    assert not lacks.keys() & scaled


def test_exporters_do_not_know_each_other() -> None:
    modules = {path.rpartition(".")[0].removeprefix("sweeper.") for path in EXPORTERS.values()}
    shared = {"export.groups"}  # how torch's optimizers are called
    for name in modules:
        known = {target.removeprefix("sweeper.") for target in imports(MODULES[name])}
        assert not known & (modules - {name} - shared), name


def test_every_exporter_has_one_template() -> None:
    folder = Path(MODULES["export.exporter"]).parent / "templates"
    stems = {path.name.partition(".")[0] for path in folder.iterdir()}
    assert {to.replace("-", "_") for to in EXPORTERS} == {s for s in stems if s[0] != "_"}


def test_an_unknown_trainer_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(ConfigError) as caught:
        build_exporter("torchtitn", {})
    assert all(name in str(caught.value) for name in EXPORTERS)
    with pytest.raises(ConfigError) as caught:
        build_exporter("sweeper.plan.plan.TransferPlan", {})
    assert (caught.value.key, caught.value.value) == ("--to", "sweeper.plan.plan.TransferPlan")


def test_a_class_of_the_user_s_own_is_an_exporter() -> None:
    exporter = build_exporter("tests.export.own.Own", {"greeting": "hi"})
    assert exporter.files(plan("mup"), "head") == {"own.txt": "head hi"}
    assert {lack.name for lack in lacking(plan("mup"), exporter)} == {"attention"}


@pytest.mark.parametrize(
    ("to", "option"),
    [("hf", {"family": "llama"}), ("torchtitan", {"config": "x"}), ("pytorch", {"x": 1})],
)
def test_an_option_that_is_none_is_refused(to: str, option: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_exporter(to, option)
    assert caught.value.key == next(iter(option))


def test_hf_without_a_family_asks_for_one() -> None:
    assert OPTIONS["hf"]
    with pytest.raises(ConfigError) as caught:
        lacking(plan("mup"), build_exporter("hf", {}))
    assert caught.value.key == "family" and "granite" in str(caught.value)
