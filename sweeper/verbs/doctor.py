"""Is this machine ready? What a search needs and finds here, and how to get what is missing."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from pathlib import Path

from packaging.requirements import Requirement

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, Call, Keyword, SweeperError, first_line
from sweeper.launch.executor import Scheduled
from sweeper.records import import_target
from sweeper.registry import groups, plugins
from sweeper.study.lock import StudyLock
from sweeper.study.study import StudyRecord, read_root
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import Outcome, VerbAnswer
from sweeper.verbs.requests import DoctorRequest
from sweeper.version import __version__

EXTRAS = ("dashboard", "digits", "hf", "tensorboard", "vision")
"""Groups of optional packages, as `pip install 'sweeper[hf]'` brings them."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked for; `get` is the command that brings it, where one does.

    Of an optional package, `extra` is the group that it belongs to.
    """

    name: str | Keyword
    here: bool
    what: str
    needed: bool = False
    get: str | Call | None = None
    extra: str = ""


@dataclass(frozen=True, kw_only=True)
class DoctorAnswer(VerbAnswer):
    """What was looked for below `root` and on the machine."""

    root: Path
    findings: Sequence[Finding]

    @property
    def missing(self) -> Sequence[Finding]:
        """What a search needs and does not find: with any of it none can run."""
        return [finding for finding in self.findings if finding.needed and not finding.here]


def doctor(request: DoctorRequest, watcher: Watcher) -> DoctorAnswer:
    """Look for everything that a search needs or may use."""
    root = read_root(DEFAULT_ROOT if request.root is None else str(request.root))
    answer = DoctorAnswer(root=root, findings=tuple(_findings(root)))
    return replace(answer, outcome=Outcome.NOT_ABLE) if answer.missing else answer


PIP = f"{shlex.quote(sys.executable)} -m pip install"
"""The command that installs into the environment of this command."""


def _findings(root: Path) -> Iterator[Finding]:
    version, cores = platform.python_version(), os.cpu_count()
    yield Finding(
        name="python",
        # As `requires-python` in pyproject.toml.
        here=sys.version_info >= (3, 11),
        needed=True,
        what=f"{version} on {platform.system()} {platform.machine()}, {cores} cores",
        get="uv python install 3.12, then install sweeper in its environment",
    )
    get = f"{PIP} --force-reinstall --no-deps sweeper=={__version__}"
    try:
        what = f"{__version__}, {sum(map(len, groups().values()))} configurations"
        yield Finding(name="sweeper", here=True, needed=True, what=what)
    except BadInput as error:
        yield Finding(name="sweeper", here=False, needed=True, what=str(error), get=get)
    yield from _packages()
    yield from _torch()
    # What torch.compile needs, which is used where it pays.
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacks = [] if compiler else ["no C++ compiler"]
    lacks += [] if header.is_file() else ["no headers of Python"]
    what = ", ".join(lacks) + ": steps are not compiled" if lacks else str(compiler)
    get = "apt-get install g++ python3-dev"
    yield Finding(name="compiler", here=not lacks, what=what, get=get)
    yield from _root(root)
    for target in plugins().get("launcher", {}).values():
        kind: object = import_target(target)
        if isinstance(kind, Scheduled):
            name = target.rpartition(".")[2]
            try:
                yield Finding(name=name, here=True, what=kind.available())
            except (SweeperError, OSError, subprocess.SubprocessError) as error:
                yield Finding(name=name, here=False, what=str(error))
    for requirement in _requirements():
        for extra in EXTRAS:
            # Of the extra alone: its marker holds with the extra, and not without.
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                here, what = _package(requirement)
                name, get = requirement.name, _install(requirement)
                yield Finding(name=name, here=here, what=what, get=get, extra=extra)


def _requirements() -> list[Requirement]:
    try:
        return [Requirement(text) for text in metadata.requires("sweeper") or ()]
    except metadata.PackageNotFoundError:
        return []


def _package(requirement: Requirement) -> tuple[bool, str]:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False, "not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return True, version
    return False, f"{version}, but {requirement.specifier} is needed"


def _install(requirement: Requirement) -> str:
    return f"{PIP} {shlex.quote(f'{requirement.name}{requirement.specifier}')}"


def _packages() -> Iterator[Finding]:
    plain = [
        requirement
        for requirement in _requirements()
        if requirement.name != "torch"
        and (requirement.marker is None or requirement.marker.evaluate())
    ]
    states = [(requirement, *_package(requirement)) for requirement in plain]
    lacking = [(requirement, what) for requirement, here, what in states if not here]
    for requirement, what in lacking:
        get = _install(requirement)
        yield Finding(name=requirement.name, here=False, needed=True, what=what, get=get)
    if plain and not lacking:
        what = f"all {len(plain)} that every search needs"
        yield Finding(name="packages", here=True, needed=True, what=what)


def _torch() -> Iterator[Finding]:
    get = f"{PIP} 'torch>=2.6'"
    try:
        torch = import_module("torch")
        # That it imports proves little: a broken build fails at the first product or gradient.
        weight = torch.ones(2, 2, requires_grad=True)
        (weight @ weight).sum().backward()
    # A broken torch raises anything, and some builds exit; doctor has to say so and go on.
    except (Exception, SystemExit) as error:
        what = f"it does not work ({type(error).__name__}: {first_line(error)})"
        yield Finding(name="torch", here=False, needed=True, what=what, get=get)
        return
    what = f"{torch.__version__}, {torch.get_num_threads()} threads"
    yield Finding(name="torch", here=True, needed=True, what=what)
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        what = ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in gpus)
        yield Finding(name="GPU", here=True, what=what)
    elif shutil.which("nvidia-smi") is None:
        yield Finding(name="GPU", here=False, what="none: trials run on the processor")
    elif torch.version.cuda is None:
        what = "there is a driver, but this torch is built for processors alone"
        yield Finding(name="GPU", here=False, what=what, get=f"{PIP} --force-reinstall torch")
    else:
        what = f"torch is built for CUDA {torch.version.cuda}, and sees no GPU"
        yield Finding(
            name="GPU", here=False, what=what, get="nvidia-smi  # says what the driver has"
        )


def _root(root: Path) -> Iterator[Finding]:
    # Nothing is left behind: the root itself is not made, its nearest folder that exists is tried.
    place = root.absolute()
    place = next(folder for folder in (place, *place.parents) if folder.exists())
    get = Call("doctor", Keyword("root", "FOLDER"))
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as temporary:
            free = shutil.disk_usage(temporary).free / 2**30
            what = f"{root} can be written, {free:.0f} GiB free"
            yield Finding(name="root", here=True, needed=True, what=what)
            try:
                with StudyLock(study := Path(temporary) / "study"), StudyRecord.open(study) as kept:
                    trouble = "; ".join(kept.notices)
            except SweeperError as error:
                trouble = str(error)
            journal = f"optuna {metadata.version('optuna')} keeps its journal with a study"
            what = trouble or journal
            yield Finding(name="storage", here=not trouble, needed=True, what=what)
    except OSError as error:
        what = f"{root} cannot be written ({error.strerror or error}): try another folder"
        yield Finding(name="root", here=False, needed=True, what=what, get=get)
