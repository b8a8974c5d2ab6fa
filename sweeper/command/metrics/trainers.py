"""The lines that trainers print, a class for each."""

from __future__ import annotations

from typing import ClassVar

from sweeper.command.metrics.pattern import Printed


class MegatronLines(Printed):
    """` iteration 10/ 400 | ... | lm loss: 3.73E+00 |`; a loss that is NaN it leaves out."""

    form: ClassVar[str] = "megatron[:validation]"
    trainer = "Megatron-LM"
    patterns: ClassVar = {
        "": r"(?<!\w)iteration +(?P<step>\d+)/.*?\blm loss: (?P<loss>\S+)",
        "validation": r"validation\S* loss at iteration (?P<step>\d+)(?!\d)(?! on test set)"
        r".*?lm loss value: (?P<loss>\S+)",
    }


class NanochatLines(Printed):
    """`step 00010/21400 (0.05%) | loss: 8.123456 | ...`; its validation is in bits a byte."""

    form: ClassVar[str] = "nanochat[:validation]"
    trainer = "nanochat"
    patterns: ClassVar = {
        "": r"(?<!\w)step (?P<step>\d+)/\d+ .*?\bloss: (?P<loss>[^\s|]+)",
        "validation": r"Step (?P<step>\d+) \| Validation bpb: (?P<loss>[^\s|]+)",
    }


class NemoLines(Printed):
    """`... | global_step: 9 | reduced_train_loss: 10.9 | ...`, of a bar with `=` and commas."""

    form: ClassVar[str] = "nemo[:validation]"
    trainer = "NeMo"
    patterns: ClassVar = {
        # A bar has the loss before the step.
        "": r"^(?=.*?\bglobal_step[:=] ?(?P<step>\d+)).*?"
        r"\breduced_train_loss[:=] ?(?P<loss>[^\s,|\]]+)",
        "validation": r"^(?=.*?\bglobal_step[:=] ?(?P<step>\d+)).*?"
        r"\bval_loss[:=] ?(?P<loss>[^\s,|\]]+)",
    }


class TorchtitanLines(Printed):
    """`[titan] ... INFO - step: 10  loss:  7.1234  grad_norm: ...`."""

    form: ClassVar[str] = "torchtitan[:validation]"
    trainer = "torchtitan"
    patterns: ClassVar = {
        "": r"(?<!validate )(?<!\w)step: *(?P<step>\d+).*?\bloss: *(?P<loss>\S+)",
        "validation": r"validate step: *(?P<step>\d+).*?\bloss: *(?P<loss>\S+)",
    }
