"""What a user says of a model beside the arguments that it is built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from sweeper.errors import ConfigError, suggest
from sweeper.scaling.spec import Role


@dataclass(frozen=True, kw_only=True)
class ModelRules:
    """Patterns of names, and what is to be done with the parameters or modules that match.

    `roles` give roles where the trace cannot tell, or tells otherwise: a mapping, or texts such as
    "*.bias=vector", which fit on a command line. `keep_init` names parameters
    that start as the model's own code sets them, `frozen` those that are not trained. `branches`
    names modules whose output is added to the residual stream.
    """

    roles: Mapping[str, str] | tuple[str, ...] = ()
    keep_init: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()

    def role_patterns(self) -> dict[str, Role]:
        """The role of every pattern; ConfigError for what is no role."""
        if isinstance(self.roles, str):
            raise ConfigError("roles", self.roles, f"a list of {_FORM}")
        pairs = self.roles.items() if isinstance(self.roles, Mapping) else map(_split, self.roles)
        return {pattern: _role(pattern, role) for pattern, role in pairs}


_FORM = """texts of the form pattern=role: 'model.roles=["*.bias=vector"]'"""


def _split(text: str) -> tuple[str, str]:
    pattern, equals, role = text.partition("=")
    if not equals:
        raise ConfigError("roles", text, _FORM)
    return pattern.strip(), role.strip()


def _role(pattern: str, role: str) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise ConfigError(f"roles[{pattern}]", role, suggest(role, list(Role))) from None


RULE_KEYS = tuple(field.name for field in fields(ModelRules))
"""Keys of the group `model` that are no arguments of the model."""
