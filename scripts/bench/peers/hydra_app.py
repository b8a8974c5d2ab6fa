"""The program that Hydra's sweeps run."""

from __future__ import annotations

import hydra
from common import NAMES, objective
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

ConfigStore.instance().store(name="config", node=dict.fromkeys(NAMES, 1.0))


@hydra.main(version_base="1.2", config_path=None, config_name="config")
def main(config: DictConfig) -> float:
    """One trial."""
    return objective(config)


if __name__ == "__main__":
    main()
