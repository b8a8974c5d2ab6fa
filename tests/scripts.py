"""The scripts of `scripts/`, which are no package, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "scripts"


def load_script(place: str) -> ModuleType:
    """The script at `place` in the folder; it finds its neighbours as it does when it is run."""
    path = FOLDER / place
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
