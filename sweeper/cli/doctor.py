"""`sweeper doctor`: what a search needs and finds here, and how to get what is missing."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path

from packaging.requirements import Requirement

from sweeper import __version__
from sweeper.cli.next import NextCommand
from sweeper.cli.output import DONE, Output
from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, SweeperError, first_line
from sweeper.launch.slurm_queue import partitions
from sweeper.registry import groups
from sweeper.study.lock import StudyLock
from sweeper.study.optuna_copy import check_storage
from sweeper.study.study import Study, read_root

NOT_ABLE = 2
"""The exit code where no search can run."""
USES = {
    "dashboard": "Optuna's pages of a study",
    "digits": "data=digits",
    "hf": "model=hf",
    "tensorboard": "logger=tensorboard, and metrics from TensorBoard's files",
    "wandb": "logger=wandb, and metrics from W&B's files",
}
"""What the optional packages are for, by extra."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked for; `get` is the command that brings it, where one does."""

    name: str
    here: bool
    what: str
    needed: bool = False
    get: str | None = None

    @property
    def state(self) -> str:
        """In one word."""
        return "ok" if self.here else "missing" if self.needed else "not here"


def doctor(root: str | None, storage: str | None, output: Output) -> int:
    """Look for everything and say what is here; 2 where no search can run."""
    folder = read_root(DEFAULT_ROOT if root is None else root)
    findings = []
    for finding in _findings(folder, storage):
        output.say(f"{finding.state:8} {finding.name:16} {finding.what}")
        if finding.get is not None and not finding.here:
            output.say(f"{'':25} get it: {finding.get}")
        findings.append(finding)
    missing = [finding.name for finding in findings if finding.needed and not finding.here]
    able = not missing
    found = "A search can run here." if able else f"No search can run: {', '.join(missing)}."
    demo = NextCommand.of("search", "experiment=demo", root=folder, why="to see a first search")
    rows = [{**asdict(finding), "state": finding.state} for finding in findings]
    document = {"able": able, "sweeper": __version__, "findings": rows}
    output.end(found, {}, document, demo if able else None)
    return DONE if able else NOT_ABLE


def _findings(root: Path, storage: str | None) -> Iterator[Finding]:
    yield _python()
    yield _configs()
    yield from _packages()
    yield from _torch()
    yield _compiler()
    yield from _root(root)
    if storage is not None:
        yield _storage(storage)
    yield _slurm()
    yield from _extras()


def _python() -> Finding:
    version, cores = platform.python_version(), os.cpu_count()
    able = sys.version_info >= (3, 11)
    what = f"{version} on {platform.system()} {platform.machine()}, {cores} cores"
    get = "uv python install 3.12, then install sweeper in its environment"
    return Finding(name="python", here=able, needed=True, what=what, get=get)


def _configs() -> Finding:
    get = f"{_pip()} --force-reinstall --no-deps sweeper=={__version__}"
    try:
        count = sum(map(len, groups().values()))
    except BadInput as error:
        return Finding(name="sweeper", here=False, needed=True, what=str(error), get=get)
    return Finding(
        name="sweeper", here=True, needed=True, what=f"{__version__}, {count} configurations"
    )


def _pip() -> str:
    """The command that installs into the environment of this command."""
    return f"{shlex.quote(sys.executable)} -m pip install"


def _requirements() -> list[Requirement]:
    """What sweeper asks for, the extras included; empty where it was never installed."""
    try:
        return [Requirement(text) for text in metadata.requires("sweeper") or ()]
    except metadata.PackageNotFoundError:
        return []


def _package(requirement: Requirement) -> tuple[bool, str]:
    """Whether a package is there in a version that is taken, and what is there."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False, "not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return True, version
    return False, f"{version}, but {requirement.specifier} is needed"


def _install(requirement: Requirement) -> str:
    return f"{_pip()} {shlex.quote(f'{requirement.name}{requirement.specifier}')}"


def _packages() -> Iterator[Finding]:
    """The packages that every search needs: a line for each that is missing, or one for all."""
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
    """That torch computes, and the GPUs that it sees."""
    get = f"{_pip()} 'torch>=2.6'"
    try:
        torch = import_module("torch")
        # That it imports proves little: a broken build fails at the first product or gradient.
        weight = torch.ones(2, 2, requires_grad=True)
        (weight @ weight).sum().backward()
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
        yield Finding(name="GPU", here=False, what=what, get=f"{_pip()} --force-reinstall torch")
    else:
        what = f"torch is built for CUDA {torch.version.cuda}, and sees no GPU"
        yield Finding(
            name="GPU", here=False, what=what, get="nvidia-smi  # says what the driver has"
        )


def _compiler() -> Finding:
    """What torch.compile needs, which is used where it pays."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacks = [] if compiler else ["no C++ compiler"]
    lacks += [] if header.is_file() else ["no headers of Python"]
    what = ", ".join(lacks) + ": steps are not compiled" if lacks else str(compiler)
    get = "apt-get install g++ python3-dev"
    return Finding(name="compiler", here=not lacks, what=what, get=get)


def _root(root: Path) -> Iterator[Finding]:
    """That a study can be kept: its lock, its record and Optuna's journal, beside the studies."""
    # Nothing is left behind: the root itself is not made, its nearest folder that exists is tried.
    place = root.absolute()
    place = next(folder for folder in (place, *place.parents) if folder.exists())
    get = "sweeper doctor --root FOLDER"
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as temporary:
            free = shutil.disk_usage(temporary).free / 2**30
            what = f"{root} can be written, {free:.0f} GiB free"
            yield Finding(name="root", here=True, needed=True, what=what)
            yield _journal(Path(temporary) / "study")
    except OSError as error:
        what = f"{root} cannot be written ({error.strerror or error}): try another folder"
        yield Finding(name="root", here=False, needed=True, what=what, get=get)


def _journal(folder: Path) -> Finding:
    try:
        with StudyLock(folder), Study.open(folder) as study:
            trouble = "; ".join(study.notices)
    except SweeperError as error:
        trouble = str(error)
    version = metadata.version("optuna")
    what = trouble or f"optuna {version} keeps its journal in a study's folder"
    return Finding(name="storage", here=not trouble, needed=True, what=what)


def _storage(url: str) -> Finding:
    """A storage of the user's own, asked for by name."""
    try:
        check_storage(url)
    except BadInput as error:
        return Finding(name="--storage", here=False, needed=True, what=str(error))
    return Finding(name="--storage", here=True, needed=True, what="it can be used")


def _slurm() -> Finding:
    """Whether launcher=slurm would find a cluster that answers."""
    if shutil.which("sbatch") is None:
        return Finding(name="Slurm", here=False, what="no sbatch: launcher=slurm cannot run")
    try:
        names = ", ".join(partitions())
    except (SweeperError, OSError, subprocess.SubprocessError) as error:
        return Finding(name="Slurm", here=False, what=f"it does not answer: {error}")
    return Finding(name="Slurm", here=True, what=f"partitions {names}")


def _extras() -> Iterator[Finding]:
    """Optional packages, by the extra that brings them."""
    for requirement in _requirements():
        for extra, use in USES.items():
            # Of the extra alone: its marker holds with the extra, and not without.
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                here, what = _package(requirement)
                name, get = requirement.name, _install(requirement)
                yield Finding(name=name, here=here, what=f"{what} (for {use})", get=get)
