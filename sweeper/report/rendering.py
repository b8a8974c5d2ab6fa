"""Templates as pages: one script, one style, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import math

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
    """A record as rows of text; nulls and the command are left out, what is nested is JSON."""
    hidden = {key for key, value in (record or {}).items() if value is None} | {
        "command",
        "target_command",
    }
    facts = {key: value for key, value in (record or {}).items() if key not in hidden}
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}


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
