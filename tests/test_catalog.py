from pathlib import Path

import pytest

from sweeper import catalog
from sweeper.errors import BadInput

ROOT = Path(__file__).parents[1]


def test_the_configs_lie_beside_a_checkout() -> None:
    assert catalog.home() == ROOT / "conf"


def test_lists_every_option_of_every_group() -> None:
    found = catalog.groups()
    assert {"mup", "standard", "umup"} <= set(found["parameterization"])
    assert found.keys() == {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()}


def test_adds_the_users_options_to_the_groups(tmp_path: Path) -> None:
    names = ("search/mine.yaml", "other/thing.yaml", ".git/x.yaml", "search/.x.yaml", "top.yaml")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = catalog.groups(tmp_path)
    assert found["search"] == sorted([*catalog.groups()["search"], "mine"])
    assert found.keys() == catalog.groups().keys()


def test_refuses_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "nope"):
        with pytest.raises(BadInput, match=f"--config-dir {path} is not a folder"):
            catalog.groups(path)


def test_says_where_configs_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "__file__", str(tmp_path / "sweeper" / "catalog.py"))
    with pytest.raises(BadInput, match="the configs are missing"):
        catalog.home()
