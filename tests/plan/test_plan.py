"""A plan on disk and in words: what is read back, refused, absorbed and left to the model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.plan.plan import TransferPlan, own_plan, plan_parts
from sweeper.records import to_json
from tests.golden import Golden
from tests.plan.helpers import CHANGED, mup_tree, plain_model, plan
from tests.refusals import refused


def saved(folder: Path, record: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(record))
    return path


def test_a_plan_is_saved_as_it_is_loaded(tmp_path: Path, golden: Golden) -> None:
    made = plan("umup")
    assert made.save(tmp_path) == tmp_path / "plan.json"
    assert made.save(str(tmp_path / "mine.json")) == tmp_path / "mine.json"
    for path in (tmp_path, str(tmp_path), tmp_path / "mine.json"):
        assert TransferPlan.load(path) == made
    with refused(golden):
        made.save(tmp_path / "no/plan.json")


def test_factors_on_the_optimizer_s_settings_are_shown_as_factors() -> None:
    hps = {"eta": 0.125, "weight_decay": 0.5, "eps": 2.0, "one_minus_beta2": 1.999}
    made = replace(plan("mup"), hps=hps)
    factors = "eta 0.125, weight_decay x 0.5, eps x 2, (1 - beta2) x 1.999"
    assert str(made).splitlines()[1] == f"mup with adamw: {factors}"
    # A command that scales by itself is given its own eps.
    own = own_plan(made.base, made.target, {**hps, "one_minus_x": "y"}, {})
    values = "eta 0.125, weight_decay 0.5, eps 2, one_minus_beta2 1.999, one_minus_x y"
    assert str(own).splitlines()[1] == f"own: {values}"


def test_no_two_rows_have_a_name_in_common() -> None:
    """A number stands where it tells one row from another, and is a * elsewhere."""
    rates = {"a.0.b.0.w": 1, "a.1.b.0.w": 1, "a.0.b.2.w": 2, "a.1.b.2.w": 2, "c.0.w": 1, "c.2.w": 2}
    rates |= {"c.4.w": 1, "d.0.w": 3, "d.1.w": 3}
    made, first = plan("mup"), plan("mup").parameters[0]
    parameters = tuple(
        replace(first, name=name, target=replace(first.target, lr=float(rate)))
        for name, rate in rates.items()
    )
    names = [row.values[0] for row in plan_parts(replace(made, parameters=parameters))[1].rows]
    assert names == ["a.*.b.0.w, c.0.w, c.4.w", "a.*.b.2.w, c.2.w", "d.*.w"]


def test_a_plan_without_the_later_fields_is_read(tmp_path: Path) -> None:
    record = to_json(plan())
    for name in ("optimizer", "needs"):
        del record[name]
    for parameter in record["parameters"]:
        del parameter["update"]
    record["base"] = {"width": 1, "depth": 1}  # the least that there is
    assert TransferPlan.load(saved(tmp_path, record)).absorbed() == plan().absorbed()


def test_files_that_are_no_plan(tmp_path: Path, golden: Golden) -> None:
    with refused(golden):
        TransferPlan.load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with refused(golden):
        TransferPlan.load(tmp_path / "broken.json")
    with refused(golden):
        TransferPlan.load(saved(tmp_path, [1, 2]))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("base", "width"), 0),
        (("target", "depth"), -1),
        (("source", "seed"), "x"),
        (("parameters", 0, "target", "eps"), -1.0),
        (("parameters", 0, "target", "weight_decay"), -1.0),
        (("parameters", 0, "name"), "head.weight"),
        (("parameters", 0, "name"), ""),
        (("factors", 0, "value"), 0.0),
        (("factors", 0, "kind"), "no name"),
        (("version",), 99),
        (("parameters",), [{"name": "x"}]),
        (("colour",), 1),
        (("parameters", 0, "update"), "nonsense"),
        (("parameters", 0, "target", "multiplier"), 0.0),
    ],
)
def test_a_damaged_number_is_refused_by_name(
    where: tuple[Any, ...], value: object, golden: Golden, tmp_path: Path
) -> None:
    record: Any = to_json(plan())
    part = record
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    with refused(golden):
        TransferPlan.load(saved(tmp_path, record))


def test_reading_a_plan_needs_no_torch(tmp_path: Path) -> None:
    path = saved(tmp_path, to_json(plan()))
    code = (
        "import sys; from sweeper.plan.plan import TransferPlan;"
        f"TransferPlan.load({str(path)!r}).absorbed(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_needs_of_umup(golden: Golden) -> None:
    needs = plan("umup", alpha_ffn_act=1.0).needs
    assert needs[0].startswith("layers.*.attention.core: multiply q k^T by 0.125")
    golden.says("\n".join(needs))


@pytest.mark.parametrize("name", ["SGD", "Lion", "AdamW"])
def test_an_optimizer_without_eps_is_given_none(name: str) -> None:
    made = mup_tree()
    made["optimizer"] = {"_target_": f"sweeper.engine.optimizers.first_order.{name}"}
    planned, has = plan("mup", made, **CHANGED), name == "AdamW"
    groups = planned.param_groups(plain_model(planned, made))
    assert [("eps" in group) for group in groups] == [has] * len(groups)
    assert ("eps" in str(planned)) == has == any(need.startswith("eps") for need in planned.needs)
