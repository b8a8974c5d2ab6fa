"""From a trial's specification to what its training needs: model, scales, optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isclose, prod

from torch import nn

from sweeper.classifier.operations import apply_scales, unscaled_notes
from sweeper.engine.architecture import Architecture, architecture, build_model, build_named
from sweeper.engine.optimizers.optimizer import Optimizer
from sweeper.errors import ConfigError, key_prefix
from sweeper.models.initial_values import hold_padding
from sweeper.registry import TARGET
from sweeper.scaling.gamma import GAMMAS, group_gammas, named_by_user
from sweeper.scaling.prescription import (
    SETTING_FACTORS,
    AbsorbedParam,
    Prescription,
    absorb_multiplier,
    prescription_of,
)
from sweeper.scaling.spec import Parameterization, ParamSpec, ScaledOp, with_layer
from sweeper.trial import SCHEDULE_HPS, PlainHps, TrainSettings, TrialSpec

PROBES = (
    ScaledOp(name="", kind="attention", geometry={"head_size": 16, "seq_len": 64, "causal": True}),
    ScaledOp(name="", kind="residual", geometry={"branch": 1, "branches": 4, "base_branches": 2}),
    ScaledOp(name="", kind="gated_silu", geometry={}),
)
"""Operations of typical sizes: they show whether a parameterization scales their kind at all."""
USUAL_LOGIT = 16**-0.5
"""The factor on q k^T of the attention among them, where no parameterization changes it."""


def optional_hyperparameters(optimizer: Optimizer) -> tuple[str, ...]:
    """What a space may hold beside its parameterization's own: factors on settings."""
    return (*SETTING_FACTORS, *SCHEDULE_HPS, *optimizer.hyperparameters)


@dataclass(frozen=True, eq=False)
class PreparedSpec:
    """What all trials of a specification share; one object for each, see `prepare`."""

    spec: TrialSpec
    parameterization: Parameterization
    optimizer: Optimizer
    architecture: Architecture

    @property
    def by_engine(self) -> bool:
        """Whether our engine trains it, and no command's script."""
        return self.spec.runner.get("name") == "engine"

    @property
    def specs(self) -> tuple[ParamSpec, ...]:
        """Every parameter."""
        return self.architecture.specs

    @property
    def scaled_ops(self) -> tuple[ScaledOp, ...]:
        """Every operation that can be scaled."""
        return self.architecture.scaled_ops

    @property
    def trained_specs(self) -> tuple[ParamSpec, ...]:
        """The parameters that are not frozen."""
        return tuple(spec for spec in self.specs if not spec.frozen)

    def model(self) -> nn.Module:
        """The module at its size, on the default device, its weights not drawn."""
        spec = self.spec
        model = build_model(spec, self.parameterization.unit_scaled, spec.width, spec.depth)
        apply_scales(model, self.architecture.sites)
        hold_padding(model)
        return model

    @property
    def train(self) -> TrainSettings:
        """How its trials are trained."""
        return self.spec.train

    def complete(self, hps: PlainHps) -> PlainHps:
        """`hps` with 1 for those that they lack: the ones that change nothing."""
        return PlainHps({**dict.fromkeys(self.parameterization.hyperparameters, 1.0), **hps})

    def prescriptions(self, hps: PlainHps) -> dict[str, Prescription]:
        """What is prescribed for every parameter, by name, given hyperparameters."""
        return {spec.name: self.prescription(spec, hps) for spec in self.specs}

    def prescription(self, spec: ParamSpec, hps: PlainHps) -> Prescription:
        """What `spec` is trained with: factors times eta and the optimizer's settings."""
        return prescription_of(spec, self.parameterization, self.optimizer, self.complete(hps))

    def trained_with(self, hps: PlainHps) -> dict[str, AbsorbedParam]:
        """What the engine trains every parameter with, by name; frozen ones are left out.

        Where the model has a buffer for a multiplier, it is in `buffers`. Elsewhere init, rate and
        eps absorb it, by the rule that an exported plan uses.
        """
        absorbed = {}
        for spec in self.trained_specs:
            prescription = self.prescription(spec, hps)
            if self._has(_multiplier(spec)):
                prescription = replace(prescription, multiplier=1.0)
            absorbed[spec.name] = absorb_multiplier(
                prescription,
                self.optimizer.kind(spec),
                name=spec.name,
                shape=spec.shape,
                init=spec.init,
            )
        return absorbed

    def _has(self, buffer: str) -> bool:
        return buffer in self.architecture.scale_buffers

    def buffers(self, hps: PlainHps) -> dict[str, float]:
        """Values of the model's scale buffers, by full name."""
        factors: dict[str, float] = {}
        complete = self.complete(hps)
        for spec in self.trained_specs:
            scale = self.parameterization.scale(spec, complete, self.optimizer.kind(spec))
            name = _multiplier(spec)
            if scale.multiplier != 1.0:
                factors[name] = scale.multiplier
            # Also where it equals the multiplier: the module has another buffer for the backward
            # pass, which would stay at 1.
            if scale.backward_multiplier is not None:
                backward = f"{name.removesuffix('multiplier')}backward_multiplier"
                factors[backward] = scale.backward_multiplier
        factors |= self._op_factors(hps)
        return {name: value for name, value in factors.items() if self._has(name)}

    def _op_factors(self, hps: PlainHps) -> dict[str, float]:
        factors: dict[str, float] = {}
        skipped, complete = 1.0, self.complete(hps)
        for op in self.scaled_ops:
            values = self.parameterization.scale_op(op, complete)
            if op.kind == "residual" and not self._has(f"{op.name}.skip"):
                # x_l = a_l f_l(x_l-1) + b_l x_l-1, divided by B_l = b_1 ... b_l, is
                # y_l = (a_l / B_l) f_l(x_l-1) + y_l-1. A pre-norm branch does not see the stream's
                # scale: f_l(x_l-1) = f_l(y_l-1). So the stream y needs no factor of its own.
                skipped *= values.get("skip", 1.0)
                values = {"branch": values["branch"] / skipped}
            factors |= {f"{op.name}.{buffer}": value for buffer, value in values.items()}
        return factors

    def not_applied(self, hps: PlainHps) -> dict[str, float]:
        """Factors other than 1 that the model has no place for, by the names of buffers.

        Multipliers are not among them: they are absorbed. A `backward_multiplier` is, as what
        remains to be applied: its ratio to the multiplier.
        """
        factors = {k: v for k, v in self._op_factors(hps).items() if not self._has(k)}
        for spec in self.trained_specs:
            ours, backward = self.prescription(spec, hps), f"{_owner(spec)}.backward_multiplier"
            if not self._has(backward):
                factors[backward] = ours.backward_multiplier / ours.multiplier
        return {name: value for name, value in factors.items() if not isclose(value, 1.0)}

    def unseen_ops(self) -> list[str]:
        """Kinds of operations that should be scaled, and of which a plain model shows none.

        A model that declares operations itself is taken to declare all that it has, unless its
        `declares_all_operations` is False.
        """
        seen = {op.kind for op in self.scaled_ops}
        if self.architecture.complete:
            return []
        hps = self.complete(PlainHps({}))
        return [
            op.kind
            for op in PROBES
            if op.kind not in seen
            if any(
                not isclose(value, USUAL_LOGIT if name == "logit" else 1.0)
                for name, value in self.parameterization.scale_op(op, hps).items()
                if (op.kind, name) != ("attention", "output")
            )
        ]

    def left_out(self, hps: PlainHps) -> list[str]:
        """Sentences on what of the parameterization the engine's trials are trained without."""
        kinds = [kind for kind in self.unseen_ops() if kind != "attention"]
        if self._keeps_attention(hps):
            kinds.insert(0, "attention")
        notes = list(unscaled_notes(kinds, self.architecture.hints))
        # Parts of the parameterization without a place in this model, over all layers by one name.
        if named := dict.fromkeys(with_layer(name, "*") for name in self.not_applied(hps)):
            notes.append(
                f"the model has no place for {', '.join(named)} of the parameterization: "
                "not applied"
            )
        return notes

    def _keeps_attention(self, hps: PlainHps) -> bool:
        """Whether an attention that nothing scales has another factor than the parameterization's.

        One that was not seen to run is taken to have, where the parameterization has any.
        """
        complete = self.complete(hps)
        for seen in self.architecture.attentions:
            geometry = {**PROBES[0].geometry, "head_size": seen.head_size}
            op = ScaledOp(name="", kind="attention", geometry=geometry)
            logit = self.parameterization.scale_op(op, complete)["logit"]
            if not isclose(seen.scale or seen.head_size**-0.5, logit, rel_tol=1e-6):
                return True
        return not self.architecture.attentions and "attention" in self.unseen_ops()

    def dead_hyperparameters(self) -> list[str]:
        """The parameterization's hyperparameters, and gammas, that change nothing in this model."""

        # 2 in place of 1, one at a time: what is left as it was has no place in this model.
        def trained(**changed: float) -> object:
            hps = self.complete(PlainHps(changed))
            return self.trained_with(hps), self.buffers(hps)

        ones = trained()
        rules = self.parameterization
        names = dict.fromkeys((*rules.hyperparameters, *GAMMAS, *group_gammas(rules)))
        return [name for name in names if trained(**{name: 2.0}) == ones]

    def parameters(self) -> int:
        """Number of weights of one trial."""
        return sum(prod(spec.shape) for spec in self.specs)

    def tokens(self) -> int:
        """Tokens that one trial trains on; an array is as many as its model's attention sees."""
        return self.train.steps * self.train.batch_size * self._example_length()

    def flops(self) -> float:
        """Floating-point operations of one trial (Kaplan et al., arXiv:2001.08361)."""
        read = self.architecture
        heads = {site.parameter for site in read.sites}
        heads |= {str(op.geometry["parameter"]) for op in read.unseen_ties}
        products = [s for s in self.specs if s.role != "embedding" or s.name in heads]
        weights = sum(prod(spec.shape) for spec in products)
        # A product and an addition for each weight forward, twice that backward. Attention has two
        # products, q k^T and that with v, of width x sequence each: 2 x 6.
        attention = 0
        if self._attention_lengths() or read.attentions:
            attention = 12 * self.spec.width * self._example_length() * self.spec.depth
        return float(self.tokens() * (6 * weights + attention))

    def _attention_lengths(self) -> list[int]:
        return [s.geometry["seq_len"] for s in self.scaled_ops if s.kind == "attention"]

    def _example_length(self) -> int:
        if "input_shape" in self.spec.data:
            return max(self._attention_lengths(), default=1)
        return self.train.seq_len


def _owner(spec: ParamSpec) -> str:
    return spec.name.rpartition(".")[0]


def _multiplier(spec: ParamSpec) -> str:
    return f"{_owner(spec)}.multiplier"


@lru_cache(maxsize=64)
def prepare(spec: TrialSpec) -> PreparedSpec:
    """Build and classify what `spec` describes; ConfigError names the key that is refused."""
    parameterization: Parameterization = build_named("parameterization", spec.parameterization)
    optimizer: Optimizer = build_named("optimizer", spec.optimizer)
    read = architecture(spec, parameterization.unit_scaled)
    with key_prefix("parameterization"):
        read = replace(read, specs=named_by_user(read.specs, parameterization))
    prepared = PreparedSpec(spec, parameterization, optimizer, read)
    check_update(spec.parameterization.name, parameterization, optimizer, prepared.trained_specs)
    # A factor on the logits of a tied head, which nothing in the model can take, is told now, too.
    ones = prepared.complete(PlainHps({}))
    for op in prepared.architecture.unseen_ties:
        factor = prepared.parameterization.scale_op(op, ones)["output"]
        if not isclose(factor, 1.0):
            name = prepared.spec.model.name
            product = "head tied to" if op.geometry["lookup"] else "product over the width with"
            tied = op.geometry["parameter"]
            allowed = (
                f"a model whose logits can be multiplied by {factor:.4g}, as is asked of a "
                f"{product} {tied}: compute them by F.linear(x, weight) or an nn.Linear"
            )
            raise ConfigError("model._target_", name, allowed)
    return prepared


def check_update(
    name: str, parameterization: Parameterization, optimizer: Optimizer, specs: Iterable[ParamSpec]
) -> None:
    """ConfigError, before training, where `name` has no rule for the optimizer's updates."""
    ones = PlainHps(dict.fromkeys(parameterization.hyperparameters, 1.0))
    try:
        for spec in specs:
            parameterization.scale(spec, ones, optimizer.kind(spec))
    except ConfigError as error:
        if error.key == TARGET:
            raise ConfigError("parameterization", name, error.allowed) from error
        raise error.below("parameterization") from error


def check_decay(prepared: PreparedSpec, hps: PlainHps) -> None:
    """ConfigError where a step would remove all of a weight: a decay of 1 and more may be small."""
    shares = {name: with_.weight_decay for name, with_ in prepared.trained_with(hps).items()}
    name = max(shares, key=shares.__getitem__, default="")
    if shares and shares[name] >= 1:
        decay = prepared.optimizer.weight_decay
        allowed = (
            f"less: a step at the peak would remove {shares[name]:.3g} of {name}, all of it at 1; "
            "or parameterization.decay=coupled, which is times the learning rate"
        )
        raise ConfigError("optimizer.weight_decay", decay, allowed)
