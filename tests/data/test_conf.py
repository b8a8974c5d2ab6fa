from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

CONF = Path(__file__).parents[2] / "conf" / "data"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_group_file_holds_the_source_with_its_defaults(path: Path) -> None:
    config = OmegaConf.load(path)
    mandatory = {"path": "a.npy"} if OmegaConf.is_missing(config, "path") else {}
    source = instantiate(config, **mandatory)
    name = "user" if path.stem == "own" else path.stem
    assert type(source).__name__.lower() in (name, f"{name}data")
    assert {field.name for field in fields(source)} == set(config) - {"_target_"}
    assert source == type(source)(**mandatory)
