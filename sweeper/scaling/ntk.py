"""The NTK parameterization: the standard one written with multipliers in place of init."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.scaling.abc import NTK, Gauge
from sweeper.scaling.relative import Relative


@dataclass(frozen=True, kw_only=True)
class Ntk(Relative):
    """Everett et al., Table 1, second row: trains exactly as `standard` with the same alignment.

    It is a gauge, not a learning-rate strategy: the "neural-tangent" strategy of the effective
    theory of Transformers is `effective_theory` with s = 0 (erratum E17).
    """

    def gauge(self) -> Gauge:
        """(0, 0), (1/2, 0), (1/2, 0)."""
        return NTK
