"""Every exporter under three parameterizations, two optimizers: files, header, list."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from sweeper.errors import BadInput
from sweeper.export.exporter import EXPORTERS, build_exporter, is_table, schedule_lines
from sweeper.export.lacks import NAMES, lacking
from sweeper.export.megatron import Megatron
from sweeper.plan.plan import TransferPlan
from sweeper.records import to_json
from sweeper.schedule import OWN, Config, record
from sweeper.trial import TrainSettings
from tests.export.plans import HPS, MUP, OPTIONS, UMUP, made, missing, nano_plan, plan
from tests.plan.test_planning import LAW
from tests.refusals import raises_config_error
from tests.scripts import load_script

structure = load_script("structure.py")


@pytest.mark.parametrize("to", EXPORTERS)
@pytest.mark.parametrize(
    ("parameterization", "optimizer"), [("mup", "adamw"), ("completep", "adamw"), ("umup", "lion")]
)
def test_files_are_read_by_their_languages_and_say_what_is_left_out(
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
    lacks = missing(planned, to)
    assert lacks.keys() <= NAMES.keys()
    text = " ".join(next(iter(files.values())).replace("#", " ").split())
    assert f"Parameterization: {planned.parameterization} with {optimizer}" in text
    assert "Tuned at n_embd 32, n_layer 2; for n_embd 128, n_layer 4." in text
    assert "Weight decay is" in text and "The plan has no" not in text
    assert ("Assumes eps" in text) is planned.has_eps is (optimizer != "lion")
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
    imports = structure.imports_within(structure.sources("export"))
    for name in modules:
        assert not imports[name] & (modules - {name} - shared), name


def test_an_unknown_trainer_is_refused_with_all_that_are_known() -> None:
    with raises_config_error("to", "torchtitn") as caught:
        build_exporter("torchtitn", {})
    assert all(name in str(caught.value) for name in EXPORTERS)
    with raises_config_error("to", "sweeper.plan.plan.TransferPlan"):
        build_exporter("sweeper.plan.plan.TransferPlan", {})


def test_a_class_of_the_user_s_own_is_an_exporter() -> None:
    exporter = build_exporter("tests.export.own.Own", {"greeting": "hi"})
    assert exporter.files(plan("mup"), "head") == {"own.txt": "head hi"}
    assert {lack.name for lack in lacking(plan("mup"), exporter)} == {"attention"}


@pytest.mark.parametrize(
    ("to", "option"),
    [("hf", {"family": "llama"}), ("torchtitan", {"config": "x"}), ("pytorch", {"x": 1})],
)
def test_an_option_that_is_none_is_refused(to: str, option: dict[str, object]) -> None:
    with raises_config_error(next(iter(option))):
        build_exporter(to, option)


@pytest.mark.parametrize("to", EXPORTERS)
def test_a_law_s_betas_and_words_are_in_the_files(to: str) -> None:
    law = replace(LAW, factors=replace(LAW.factors, betas={"beta1": 0.6, "beta2": 0.996}))
    text = "\n".join(made(replace(plan("mup"), law=law), to).values())
    assert "Law: mine, from 512 tokens" in text
    assert "0.996" in text and "0.6" in text


# Gammas: by hand what they multiply, and what is said where they cannot be.


@cache
def planned(*gammas: str) -> TransferPlan:
    """By muP from width 32 to 64, with some of the gammas of `plans.HPS`."""
    chosen = {key: HPS["umup"][key] for key in gammas}
    groups = {"groups": UMUP["groups"]} if "gamma_first" in gammas else {}
    return nano_plan(64, 2, MUP | groups, {"eta": 2.0**-7} | chosen)


@pytest.mark.parametrize("to", EXPORTERS)
def test_every_trainer_trains_with_them_or_is_said_not_to(to: str) -> None:
    exporter, whole = build_exporter(to, OPTIONS.get(to, {})), plan("umup")
    lacks = {lack.name for lack in lacking(whole, exporter)}
    asked, silent = {setting.name: setting.lr for setting in whole.absorbed()}, []
    for parameter in whole.parameters:
        setting = exporter.setting(whole, parameter)
        # A multiplier that stays in the forward pass is no part of the rate that is compared.
        lr = asked[parameter.name] / setting.forward
        if setting.lr != pytest.approx(lr, rel=1e-9):
            key = "embedding" if is_table(parameter) else parameter.role
            if f"{key}_lr" not in lacks:
                silent.append(parameter.name)
    assert not silent


def test_megatron_says_what_it_cannot_train() -> None:
    """Under muP alone: u-muP's own rates of embeddings and head are not Megatron's anyway."""
    exporter = Megatron()
    assert not {lack.name for lack in lacking(planned(), exporter)} & {
        "hidden_lr",
        "embedding_lr",
        "readout_lr",
    }
    for gamma, lacks in (
        ("gamma_hidden", {"embedding_lr", "readout_lr", "vector_lr"}),
        ("eta_emb", {"embedding_lr"}),
        ("gamma_readout", {"readout_lr"}),
        ("gamma_first", {"hidden_lr", "vector_lr"}),
    ):
        assert lacks <= {lack.name for lack in lacking(planned(gamma), exporter)}, gamma


HOSTILE = (
    "a\"\"\"'''\\\n\r\u2028\x85\x00\x1b[2J\u202e {{ pwned }}: $(pwned) `pwned`\nimport pwned #"
)
"""What would end a text, a line, a comment or a document in one of the languages."""


def texts(record: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where texts stand in a record, the first of a list for all; names of what it maps too."""
    if isinstance(record, dict):
        for name, item in record.items():
            yield (*path, name, "its name")
            yield from texts(item, (*path, name))
    elif isinstance(record, list):
        yield from texts(record[0], (*path, 0)) if record else ()
    elif isinstance(record, str):
        yield path


def with_text(record: Any, path: tuple[str | int, ...], text: str) -> Any:
    if path[1:] == ("its name",):
        return {text if name == path[0] else name: item for name, item in record.items()}
    if not path:
        return text
    changed = record.copy()
    changed[path[0]] = with_text(record[path[0]], path[1:], text)
    return changed


def shape_of(name: str, text: str) -> object:
    """A file without its values; that it parses is part of it."""
    match Path(name).suffix:
        case ".py":
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant):
                    node.value = None
            return ast.dump(tree)
        case ".yaml":
            return [*yaml.safe_load(text)], [*yaml.safe_load(text)["optimizer"]]
        case ".json":
            return [*json.loads(text)]
    return [re.sub(r" [\w.+-]+$", "", each) for each in text.split("\n") if each[:1] != "#"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[object, TransferPlan | None]:
    """A plan, and by place those with HOSTILE at that place; None: it is refused.

    Nothing of it is in what a terminal shows.
    """
    planned = plan("umup", width=64, depth=2)
    record = to_json(replace(planned, own_factors={"lm_head.weight": 2.0}))
    record["source"] |= {
        "study": "a",
        "made_by": "a",
        "schedule": {"name": "wsd", "shape": "linear", "steps": 9, "warmup": 1, "final_lr": 0.0},
    }
    file, plans = tmp_path_factory.mktemp("plans") / "plan.json", dict[object, Any]()
    for path in ((), *texts(record)):
        file.write_text(json.dumps(with_text(record, path, HOSTILE) if path else record))
        try:
            plans[path] = TransferPlan.load(file)
        except BadInput:
            plans[path] = None
        assert not path or HOSTILE not in str(plans[path]), path
    return plans


@pytest.mark.parametrize("to", EXPORTERS)
def test_no_text_of_a_plan_becomes_more_than_a_text(
    to: str, hostile: dict[object, TransferPlan | None]
) -> None:
    expected: dict[str, object] = {}
    refused = 0
    for path, planned in hostile.items():
        try:
            files = made(planned, to) if planned else None
        except BadInput:
            files = None
        if files is None:
            refused += 1
            continue
        shapes = {name: shape_of(name, text) for name, text in files.items()}
        expected = expected or shapes
        assert shapes == expected, path
        assert all(c.isprintable() or c == "\n" for t in files.values() for c in t), path
    assert refused > 10 and expected


# The schedule of a plan in the words of trainers: where they can be run, they are the schedule.


SQRT = {"name": "wsd", "decay": 0.3, "shape": "1-sqrt"}
CONFIGS: list[Config] = ["constant", "linear", "cosine", "wsd", SQRT, "wsds"]


def scheduled(config: Config, final: float) -> tuple[TrainSettings, TransferPlan]:
    train = TrainSettings(steps=400, batch_size=1, seq_len=1, schedule=config, final_lr=final)
    source = {"study": "a", "schedule": record(train.schedule, train.span)}
    return train, replace(plan("mup"), source=source)


def schedule_text(train: str, config: Config, final: float = 0.1) -> str | None:
    """The line in a trainer's words, None where it says that it has none."""
    _, planned = scheduled(config, final)
    exporter = build_exporter(train, {})
    (_, line) = schedule_lines(planned, exporter)
    return line.partition(": ")[2] if line.startswith("In ") else None


def rates(scheduler: Any, optimizer: torch.optim.Optimizer) -> np.ndarray:
    rates = []
    for _ in range(400):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


def peak_of_one() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("config", CONFIGS[:-1], ids=str)
def test_the_words_of_pytorch_are_the_schedule(config: Config, final: float) -> None:
    call, optimizer = schedule_text("pytorch", config, final), peak_of_one()
    assert call
    names = {"LambdaLR": LambdaLR, "optimizer": optimizer, **vars(math)}
    theirs = rates(eval(call, names), optimizer)
    ours = scheduled(config, final)[0].lr_factors(range(400))
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS[:-1], ids=str)
def test_the_words_of_transformers_are_the_schedule_but_for_a_step(config: Config) -> None:
    final = 0.0 if config == "linear" else 0.1
    text, optimizer = schedule_text("hf", config, final), peak_of_one()
    assert text
    arguments = eval(f"dict({text})")
    scheduler = get_scheduler(
        arguments["lr_scheduler_type"],
        optimizer,
        num_warmup_steps=arguments["warmup_steps"],
        num_training_steps=400,
        scheduler_specific_kwargs=arguments.get("lr_scheduler_kwargs"),
    )
    ours = scheduled(config, final)[0].lr_factors(range(400))
    theirs = rates(scheduler, optimizer)
    if not isinstance(config, dict) and config != "wsd":  # those warm up from the last factor
        assert theirs[0] == 0 and theirs[1] == pytest.approx(ours[0])  # a step later, as is said
    # The first steps of a root are steep; warm-ups of theirs begin at 0, or at the last factor.
    close, warm = (0.1 if config == SQRT else 0.03), 40
    np.testing.assert_allclose(theirs[warm:], ours[warm:], rtol=0, atol=close)


@pytest.mark.parametrize("to", EXPORTERS)
def test_every_trainer_has_words_or_says_that_it_has_none(to: str) -> None:
    assert schedule_text(to, "cosine")
    assert schedule_text(to, "wsds") is None
    assert not list(schedule_lines(plan("mup"), build_exporter(to, {})))


@pytest.mark.parametrize(
    ("to", "has"),
    [
        (
            "megatron",
            r"--lr-decay-style WSD .*minus_sqrt --lr-wsd-decay-iters 120 --lr-warmup-iters 40",
        ),
        ("torchtitan", r'warmup_steps=40, decay_ratio=0.3, decay_type="sqrt"'),
    ],
)
def test_wsd(to: str, has: str) -> None:
    assert re.search(has, schedule_text(to, SQRT) or "")
    _, planned = scheduled(SQRT, 0.1)
    assert any("wsd 1-sqrt" in text.replace("\n", " ") for text in made(planned, to).values())


@pytest.mark.parametrize("trainer", EXPORTERS)
def test_a_schedule_of_the_script_s_own_is_left_to_the_user(trainer: str) -> None:
    planned = replace(plan("mup"), source={"study": "a", "schedule": OWN})
    (line,) = schedule_lines(planned, build_exporter(trainer, {}))
    assert "LEFT TO YOU" in line and "not known here" in line
    text = "".join(made(planned, trainer).values())
    assert "cosine" not in text and "min-lr" not in text
