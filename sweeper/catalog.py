"""Which configs and studies there are: groups, options, names, read off the folders alone.

Shell completion and error messages ask here; nothing heavy is imported.
"""

from __future__ import annotations

from pathlib import Path

from sweeper.errors import BadInput

OVERLAYS = ("experiment", "size")
"""Groups whose options set keys of other groups, and which may be null."""


def home() -> Path:
    """The folder `conf/`: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise BadInput(f"the configs are missing: neither {package / 'conf'} nor beside {package}")


def groups(config_dir: Path | None = None) -> dict[str, list[str]]:
    """Options of every group, by name; those of the user's `config_dir` are among them.

    Folders of `config_dir` that are no group of ours are passed over.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise BadInput(f"--config-dir {config_dir} is not a folder")
    found: dict[str, set[str]] = {}
    for root in (home(), config_dir):
        if root is None:
            continue
        for path in root.glob("[!.]*/[!.]*.yaml"):
            if root != config_dir or path.parent.name in found:
                found.setdefault(path.parent.name, set()).add(path.stem)
    return {name: sorted(options) for name, options in sorted(found.items())}


def studies(root: Path) -> list[str]:
    """Names of all studies in `root`: a study has a `config.yaml`."""
    return sorted(path.parent.name for path in root.glob("[!.]*/config.yaml"))
