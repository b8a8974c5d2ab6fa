"""Spectral learning rates with muP's readout: the scheme under which Muon's best rate stays."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sweeper.scaling.scheme import base_std
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Update
from sweeper.scaling.spectral import Spectral
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class SpectralMup(Spectral):
    """`Spectral`, and a readout whose weights start at the base's std over m = width / base width.

    A rule of rates bounds how far the last activations move, by eta in RMS. They move along the
    readout's own rows, since the gradient comes through them: the logits then move by
    `fan_in * std * eta`. With the standard std, fan_in^-1/2, that grows as the root of the width,
    and the best eta falls as it (docs/muon.md). With std ~ 1 / fan_in it stays: a + b = 1, as in
    muP (Everett et al., arXiv:2407.05872, Table 1). A readout tied to an embedding has that
    already: its rows of order 1 are over fan_in. At the base all is as in `Spectral`.
    """

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Spectral's; the readout's std is that of the base, times 1 / m."""
        scale = super().scale(spec, hps, update)
        if spec.role is not Role.READOUT:
            return scale
        return replace(scale, init_std=base_std(spec) / spec.width_ratio)
