"""The exporters by the names of their trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.errors import ConfigError
from sweeper.export.exporter import Exporter
from sweeper.plugin import build_plugin, import_target

EXPORTERS: Mapping[str, str] = {
    "automodel": "sweeper.export.automodel.Automodel",
    "hf": "sweeper.export.hf.Hf",
    "llm-foundry": "sweeper.export.llm_foundry.LlmFoundry",
    "megatron": "sweeper.export.megatron.Megatron",
    "nanogpt-mup": "sweeper.export.nanogpt_mup.NanogptMup",
    "olmo-core": "sweeper.export.olmo_core.OlmoCore",
    "pytorch": "sweeper.export.pytorch.Pytorch",
    "torchtitan": "sweeper.export.torchtitan.Torchtitan",
}
"""A new one is a file, a template and a line here."""


def build_exporter(name: str, options: Mapping[str, Any]) -> Exporter:
    """The exporter of a trainer, or of the class at a dotted path, with its options.

    ConfigError for an unknown name, and for an option that it does not have or refuses.
    """
    if name not in EXPORTERS and "." not in name:
        allowed = f"one of {', '.join(EXPORTERS)}, or a class as package.module.Class"
        raise ConfigError("--to", name, allowed)
    target = EXPORTERS.get(name, name)
    kind = import_target(target, "--to")
    # A class without a trainer's name is a beginning of one, as Exporter itself.
    if not (isinstance(kind, type) and issubclass(kind, Exporter) and hasattr(kind, "trainer")):
        raise ConfigError("--to", name, "a subclass of sweeper.export.exporter.Exporter")
    exporter: Exporter = build_plugin({"_target_": target, **options})
    return exporter
