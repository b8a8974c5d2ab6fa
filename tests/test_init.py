"""What users import, and how little that loads."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import sweeper


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'clasify'"):
        sweeper.clasify  # noqa: B018


@pytest.mark.parametrize("name", ["search", "export"])
def test_a_verb_is_a_function_beside_the_package_of_its_name(name: str) -> None:
    inner = {"search": "strategy", "export": "groups"}[name]
    code = f"import sweeper, pydoc, sweeper.{name}.{inner} as inner\n"
    code += f"from sweeper.{name} import {inner}\n"
    code += f"assert sweeper.{name}.{inner} is inner is {inner}\n"
    code += f"print(pydoc.render_doc(sweeper.{name}).splitlines()[0])"
    assert fresh(code).endswith(f": function {name} in module sweeper.api.calls")


@pytest.mark.parametrize("name", ["follow", "plan_for", "classify", "open_study", "export"])
def test_an_unknown_keyword_is_one_message_with_near_names(name: str) -> None:
    call = getattr(sweeper, name)
    first = next(iter(inspect.signature(call).parameters))
    with pytest.raises(sweeper.ConfigError, match=f"no keyword has .* did you mean.* {first}"):
        call(**{f"{first}s": 3})
    with pytest.raises(sweeper.BadInput, match=r"transfer: missing .* 'to_width'"):
        sweeper.transfer("a", to_wdth=64)


def test_importing_the_package_loads_no_torch() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'pandas', 'optuna', 'hydra'} & {*sys.modules}"
    light = "sweeper.ParamSpec, sweeper.Role, sweeper.TransferPlan, sweeper.BadInput"
    code = f"import sys, sweeper; print({heavy}); {light}; print('torch' in sys.modules)"
    assert fresh(code).split() == ["set()", "False"]
