"""One thread a process: tests run in several, whose threads would wait for each other."""

import gc
import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

import pytest
from hypothesis import HealthCheck, settings
from omegaconf import OmegaConf

from sweeper import registry
from tests.golden import Golden, message_file, no_other, section_of

# How long an example takes is the machine's affair, and no law of what is tested.
# A law that breaks does so soon: `make test-long` tries more.
settings.register_profile(
    "laws",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("SWEEPER_EXAMPLES", "30")),
)
settings.load_profile("laws")

# A shell without job control starts what runs in its background deaf to SIGINT, and so would be
# every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag: texts that differ from `tests/golden/` become the kept ones."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What commands remember of this user lies in a folder of the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def trained_here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A command in this process trains in it where it names no launcher: workers take seconds.

    The value composes choices as users get them, see `shipped`.
    """
    from sweeper.config import compose

    folder, shipped = tmp_path_factory.mktemp("conf"), compose.conf_folder()
    for path in shipped.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "config.yaml").unlink()
    text = (shipped / "config.yaml").read_text(encoding="utf-8")
    inline = text.replace("- launcher: local\n", "- launcher: inline\n")
    assert inline != text
    (folder / "config.yaml").write_text(inline, encoding="utf-8")
    compose.conf_folder = lambda: folder
    choices = compose._choices_composed
    # Hydra takes 0.2 s: what one worker has composed, the others read.
    shared = "PYTEST_XDIST_WORKER" in os.environ
    beside = tmp_path_factory.getbasetemp().parent if shared else folder

    def composed(words: tuple[str, ...]) -> bytes:
        path = beside / f"composed-{sha256(repr(words).encode()).hexdigest()}"
        with suppress(OSError):
            return path.read_bytes()
        made: bytes = choices.__wrapped__(words)
        part = path.with_name(f"{path.name}-{os.getpid()}")
        with suppress(OSError):  # a test's, where no disk takes anything
            part.write_bytes(made)
            part.rename(path)
        return made

    compose._choices_composed = cache(composed)
    # A third of that time it reads the same files, again and again.
    OmegaConf.load = staticmethod(_once(OmegaConf.load))
    return choices


def _once(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reads each content but once, and from its own file, which an error names."""
    kept = dict[str, bytes]()

    def loaded(file: Any) -> Any:
        if not hasattr(file, "read"):
            return load(file)
        text = file.read()
        if text not in kept:
            file.seek(0)
            kept[text] = pickle.dumps(load(file))
        return pickle.loads(kept[text])

    return loaded


@pytest.fixture
def shipped(trained_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration as users have it: by default workers train."""
    monkeypatch.setattr("sweeper.config.compose.conf_folder", registry.conf_folder)
    monkeypatch.setattr("sweeper.config.compose._choices_composed", trained_here)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    """Compares a text with the one that is kept under its name, or as this test's message.

    What is kept of a test beyond the messages that it said fails it.
    """
    update = bool(request.config.getoption("--update-golden"))
    golden = Golden(request.node, update=update)
    yield golden
    if request.node.stash.get(PASSED, False):
        own = section_of(request.node)
        path = message_file(request.node.path)
        no_other(path, lambda name, n: name != own or n <= golden.said, update=update)


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a fixture know whether its test came to its end."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


SECTIONS = pytest.StashKey[dict[Path, set[str]]]()
"""By test file, the sections that its tests may have; of files that were collected whole."""


@pytest.fixture(scope="module", autouse=True)
def every_message_has_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Messages of a test that is gone fail its file."""
    yield
    sections = request.config.stash[SECTIONS].get(request.path)
    if sections is not None:
        update = bool(request.config.getoption("--update-golden"))
        no_other(message_file(request.path), lambda name, _: name in sections, update=update)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look for garbage among it takes a seventh of the time.

    And whoever parses the whole package looks for garbage half of the time, unless seldom.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


WAITING = ("faults/", "launch/", "command/", "cli/", "report/test_live", "study/test_wandb")
WAITING += ("test_bench", "test_figures.py", "test_wheel")
"""Tests that wait for processes, for seconds: begun first, they leave none idle at the end."""


@pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every worker its part of the tests that wait, first; skip what no GPU is here for."""
    parts = {Path(word.partition("::")[0]).name for word in config.args if "::" in word}
    whole: dict[Path, set[str]] = {}
    for item in items:
        if item.path.name not in parts:
            sections = whole.setdefault(item.path, set())
            if "golden" in getattr(item, "fixturenames", ()):
                sections.add(section_of(item))
    config.stash[SECTIONS] = whole
    _waiting_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    _skip_without_gpu(items)


def _waiting_first(items: list[pytest.Item], workers: int) -> None:
    """Order the tests for workers of which each begins with a part of the whole, in order."""
    tests = Path(__file__).parent

    def waits(item: pytest.Item) -> bool:
        return item.path.relative_to(tests).as_posix().startswith(WAITING)

    kinds = [[item for item in items if waits(item) is first] for first in (True, False)]
    parts = [
        kind[len(kind) * worker // workers : len(kind) * (worker + 1) // workers]
        for worker in range(workers)
        for kind in kinds
    ]
    items[:] = chain.from_iterable(parts)


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
