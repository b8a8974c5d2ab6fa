import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from matplotlib.figure import Figure

from tests.cli.driver import TINY, VALIDATE, Run, call, make_workplace, run_in
from tests.cli.screens import WIDTHS, counted_ends
from tests.layout import SAVE, without_drawing, without_figures


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Train on one thread: several would spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package", autouse=True)
def no_drawing() -> Iterator[dict[tuple[ModuleType, str], object]]:
    """Tests of `tests/report/` draw the figures; here it would take half of a command's time."""
    with without_drawing(), without_figures() as made:
        yield made


@pytest.fixture(autouse=True)
def screen(request: pytest.FixtureRequest) -> Iterator[dict[int, str]]:
    """Every end of a verb fits on one screen; the latest one by the terminal's columns."""
    problems, seen = list[str](), dict[int, str]()
    # Tests of screens look at all widths, the others at the narrowest.
    widths = WIDTHS if "ends" in request.fixturenames else WIDTHS[:1]
    with counted_ends(problems, seen, widths):
        yield seen
    assert not problems, "\n\n".join(problems)


@pytest.fixture
def drawn(
    no_drawing: dict[tuple[ModuleType, str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the commands of this test find out is drawn, though not laid out."""
    monkeypatch.setattr(Figure, "savefig", SAVE)
    for (module, name), figure in no_drawing.items():
        monkeypatch.setattr(module, name, figure)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, the current one."""
    monkeypatch.chdir(make_workplace(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def sweeper(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in `workplace`, in this process."""
    return partial(call, capsys)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study, made but once; not to be changed."""
    folder = make_workplace(tmp_path_factory.mktemp("finished"))
    run_in(folder, "search", *TINY, "study=a")
    return folder / "runs/a"


@pytest.fixture
def study(finished: Path, workplace: Path) -> Path:
    """A copy of the finished study `a` in `workplace`."""
    return Path(shutil.copytree(finished, workplace / "runs/a"))


@pytest.fixture(scope="session")
def validated(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study whose ladder `VALIDATE` has trained; not to be changed."""
    folder = make_workplace(tmp_path_factory.mktemp("validated"))
    shutil.copytree(finished, folder / "runs/a")
    run_in(folder, *VALIDATE)
    return folder / "runs/a"


@pytest.fixture
def ladder_study(validated: Path, workplace: Path) -> Path:
    """A copy of `validated` in `workplace`."""
    return Path(shutil.copytree(validated, workplace / "runs/a"))
