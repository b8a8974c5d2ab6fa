"""Which classes of transformers can be trained here, and for what."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from sweeper.errors import BadInput, ConfigError

Task = Literal["causal", "masked", "images"]
"""Next tokens, masked tokens, or classes of images."""

SUFFIXES: dict[str, Task] = {
    "ForCausalLM": "causal",
    "ForMaskedLM": "masked",
    "ForImageClassification": "images",
}
_MAPPINGS: dict[str, Task] = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "causal",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "images",
}
_ALLOWED = "a class of transformers for *ForCausalLM, *ForMaskedLM or *ForImageClassification"
_OTHER_TASK = "ForConditionalGeneration"
SEE_WHAT_FOLLOWS = ("CpmAntForCausalLM", "XLNetLMHeadModel")
"""Given tokens alone, these look at the ones that they are to predict."""


def library(module: str = "transformers") -> Any:
    """A module of transformers; BadInput where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"model=hf needs transformers 5 or newer: pip install 'sweeper[hf]' ({error})"
        ) from error


@cache
def known_classes() -> dict[str, Task]:
    """Names of all classes that can be trained here, with what for."""
    auto = library("transformers.models.auto.modeling_auto")
    found: dict[str, Task] = {}
    for mapping, task in _MAPPINGS.items():
        for value in getattr(auto, mapping).values():
            names = (value,) if isinstance(value, str) else value
            found |= {name: task for name in names if not name.endswith(_OTHER_TASK)}
    return found


def task_of(name: str) -> Task:
    """What the class `name` of transformers is for; ConfigError for any other."""
    ending = next((task for suffix, task in SUFFIXES.items() if name.endswith(suffix)), None)
    task = known_classes().get(name, ending)
    if task is None or not hasattr(library(), name):
        close = get_close_matches(name, known_classes(), n=3, cutoff=0.6)
        asked = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError("name", name, f"{_ALLOWED}{asked}")
    if name in SEE_WHAT_FOLLOWS:
        allowed = "a model of the next token: called with tokens alone this one sees what follows"
        raise ConfigError("name", name, allowed)
    return task


def model_class(name: str) -> Any:
    """The class itself; its name has passed `task_of`."""
    return getattr(library(), name)
