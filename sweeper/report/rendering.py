"""Templates as pages: one script, one style, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from sweeper.report.documents import Document, number


def rendered(template: str, **values: object) -> str:
    """A page from a template of this package."""
    environment = _environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        script=Markup(script), script_digest=digest, **values
    )


def facts(record: Document | None) -> dict[str, str]:
    """A record as rows of text; nulls and the commands are left out."""
    hidden = {key for key, value in (record or {}).items() if value is None} | {
        "command",
        "target_command",
    }
    facts = {key: value for key, value in (record or {}).items() if key not in hidden}
    return {key.replace("_", " "): _text(value) for key, value in facts.items()}


def _text(value: object) -> str:
    """A value of a record as people write it; what is nested further lies in brackets."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        pairs = [(key, _nested(one)) for key, one in value.items() if one not in (None, "")]
        return ", ".join(f"{str(key).replace('_', ' ')} {text}" for key, text in pairs)
    return ", ".join(map(_nested, value)) if isinstance(value, list) else str(value)


def _nested(value: object) -> str:
    text = _text(value)
    return f"({text or 'none'})" if isinstance(value, Mapping | list) else text


def _plain(value: object) -> str:
    """A loss in words."""
    loss = number(value)
    return f"{loss:.4f} nats" if math.isfinite(loss) else "none: every run diverged or failed"


def _environment() -> Environment:
    """Jinja with escaping on: names and notes come from files, and are no HTML."""
    environment = Environment(
        loader=PackageLoader("sweeper.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "loss": _plain,
        "facts": facts,
        "short": lambda t: str(t).rpartition(".")[2],
    }
    return environment
