"""The URL of a storage, and texts that hold one, without its password."""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

_QUERY_RE = re.compile(r"(?<=[?&])([^=&]*)=([^&]*)")
_SECRET_RE = re.compile("pass|pwd|secret|token|odbc_connect", re.IGNORECASE)
_ACCOUNT_RE = re.compile(r"([^:]*:)(.*)@", re.DOTALL)


def redact(url: str) -> str:
    """`url` with its passwords replaced by `***`; where they cannot be told apart, with more."""
    head, mark, body = url.partition("://") if "://" in url else ("", "", url)
    clean = _QUERY_RE.sub(
        lambda m: f"{m[1]}=***" if _SECRET_RE.search(unquote(m[1])) else m[0], body
    )
    if head.startswith("sqlite"):
        return head + mark + clean
    # The query's pattern took a part of the account: which part is the password is in doubt.
    if _ACCOUNT_RE.match(body) and not _ACCOUNT_RE.match(clean):
        return f"{head}{mark}***"
    return head + mark + _ACCOUNT_RE.sub(r"\1***@", clean)


def redact_word(word: str) -> str:
    r"""A word of a command line without the password of a URL in it; others are as they were.

    A pattern such as `(\d+): loss (\S+) @` looks like an account to `redact`.
    """
    return redact(word) if "://" in word or "storage" in word.partition("=")[0] else word


def scrub(text: str, url: str) -> str:
    """`text` without the passwords of `url`, in whatever spelling."""
    secrets = [value for name, value in _QUERY_RE.findall(url) if _SECRET_RE.search(unquote(name))]
    account = _ACCOUNT_RE.match(url.partition("://")[2] or url)
    if account and not url.startswith("sqlite"):
        secrets += [account[2], *account[2].split("@")]
    spellings = {form for each in secrets for form in (each, unquote(each), unquote_plus(each))}
    for secret in sorted(spellings - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
