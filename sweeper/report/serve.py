"""`sweeper report --serve`: the pages of all studies of a root, for this machine's own browsers."""

from __future__ import annotations

import errno
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from sweeper.decide.documents import Documents
from sweeper.errors import BadInput, ConfigError, Keyword, SweeperError
from sweeper.files import is_text, parse_json, take_damaged
from sweeper.report.live import is_live
from sweeper.report.page import Running, render, rendered
from sweeper.study.folder import READ_ERRORS, StudyFolder, studies
from sweeper.study.lock import check_contents, live_holder
from sweeper.study.study import is_saved
from sweeper.table import Cell, Column, Table, answer

HOST = "127.0.0.1"
PORT = 8765
"""Where nothing else is asked for."""
KINDS = {".html": "text/html; charset=utf-8", ".png": "image/png", ".svg": "image/svg+xml"}
"""What is served of a study, by the ends of files' names: its pages and pictures, and no record."""
LIST_EVERY = 5.0
"""Seconds until the list is loaded anew."""
LOCAL = {"127.0.0.1", "localhost", "[::1]"}
WORST_FIRST = ("fails", "cannot say yet", "holds")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is answered: a page or a picture, and when it was written."""

    kind: str
    content: bytes
    written: float


@dataclass
class Pages:
    """The pages of the studies in `root`; one at a time is drawn."""

    root: Path
    _drawn: dict[str, tuple[tuple[float, bool], Found]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def names(self) -> list[str]:
        """The studies, without what an address cannot name."""
        return [name for name in studies(self.root) if is_text(name)]

    def find(self, path: str) -> Found | None:
        """What lies at a path of the address; None where nothing does that is served."""
        parts = [unquote(part) for part in path.split("/")[1:]]
        if parts in ([""], ["index.html"]):
            return self._list()
        # Names as they are listed: none of them leads elsewhere.
        name, *below = parts
        folder = self.root / name
        if name not in self.names():
            return _file(folder, below) if name == "comparisons" else None
        check_contents(folder)
        return self._report(folder) if below in ([""], ["report.html"]) else _file(folder, below)

    def _report(self, folder: Path) -> Found:
        """The page of a study: its file, or drawn here where there is none or it is older."""
        page, changed = StudyFolder(folder).report, _changed(folder)
        holder = live_holder(folder)
        # A live page is written by its driver, which may take some seconds; without a driver
        # nobody was left to write that it has ended.
        written = _time(page)
        renewed = written >= 0 and is_live(page)
        if (written >= changed and written >= 0 and not renewed) or (
            renewed and holder is not None
        ):
            return Found(kind=KINDS[".html"], content=page.read_bytes(), written=written)
        # A driver that is killed changes nothing else.
        state = (changed, holder is None)
        with self._lock:
            known = self._drawn.get(folder.name)
            if known is None or known[0] != state:
                documents = Documents.read(folder)
                running = Running.read(folder, LIST_EVERY) if holder else Running.stopped(folder)
                text = render(documents, running=running)
                take_damaged()  # the page says it
                drawn = Found(kind=KINDS[".html"], content=text.encode(), written=changed)
                known = self._drawn[folder.name] = (state, drawn)
            return known[1]

    def _list(self) -> Found:
        rows = [_row(self.root / name) for name in self.names()]
        rows.sort(key=lambda row: -row.changed)
        columns = [
            Column("study", left=True),
            Column("state", left=True),
            Column("best loss", form=".4f"),
            Column("verdict", left=True),
            Column("last change", left=True),
        ]
        table = Table("", columns)
        for row in rows:
            link = Cell(row.name, row.name, link=f"{quote(row.name)}/")
            said = answer(row.verdict) if row.verdict else "-"
            best = row.best if math.isfinite(row.best) else Cell(math.nan, row.best_text)
            table.add(link, row.state, best, said, row.when)
        page = rendered(
            "studies.html.j2",
            live=LIST_EVERY,
            root=str(self.root.absolute()),
            table=table if rows else None,
            count=len(rows),
        )
        return Found(kind=KINDS[".html"], content=page.encode(), written=time.time())


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A study's row."""

    name: str
    state: str
    best: float
    best_text: str
    verdict: str
    changed: float
    when: str


def _row(folder: Path) -> Summary:
    """A study's row, also of one whose records are of no shape that is known."""
    try:
        return _summary(folder)
    except Exception as error:  # the other studies are listed all the same
        return Summary(
            name=folder.name,
            state=f"cannot be read: {_said(error)}",
            best=math.nan,
            best_text="-",
            verdict="",
            changed=-1.0,
            when="-",
        )


def _said(error: Exception) -> str:
    """An error as people read it; what nobody expected, by its kind too."""
    return str(error) if isinstance(error, SweeperError) else f"{type(error).__name__}: {error}"


def _summary(folder: Path) -> Summary:
    """From the small records alone: a root may hold many studies, with many results."""
    check_contents(folder)
    searched = _record(StudyFolder(folder).search)
    best = _number(searched.get("objective"))
    answers = set()
    for path in StudyFolder(folder).validations():
        for verdict in _record(path).get("axes") or ():
            if isinstance(verdict, dict):
                target = verdict.get("target")
                answers |= {verdict.get("answer")}
                answers |= {target.get("answer")} if isinstance(target, dict) else set()
    state = "finished" if searched.get("finished") else "not finished"
    if is_saved(folder):
        state = "of a table"
    if live_holder(folder) is not None:
        state = f"running: {Running.read(folder, LIST_EVERY).sentence}"
    elif (left := Running.stopped(folder)) is not None:
        state = f"stopped: {left.sentence}"
    changed = max(_changed(folder), _time(StudyFolder(folder).config))
    return Summary(
        name=folder.name,
        state=state,
        best=best,
        best_text="diverged" if best == math.inf else "-",
        verdict=next((each for each in WORST_FIRST if each in answers), ""),
        changed=changed,
        when=time.strftime("%Y-%m-%d %H:%M", time.localtime(changed)),
    )


def _record(path: Path) -> Mapping[str, Any]:
    """The record at `path`; an empty one where there is none that can be read."""
    # Its sum is not checked, as its study's page does: hundreds of them are read at a time.
    try:
        record = parse_json(path.read_bytes())
    except (OSError, *READ_ERRORS):
        return {}
    return record if isinstance(record, dict) else {}


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _changed(folder: Path) -> float:
    """When anything was last written that a study's page is made from."""
    return max(map(_time, StudyFolder(folder).sources()), default=0.0)


def _time(path: Path) -> float:
    """When a file was written; -1 where there is none, or what would block who reads it."""
    try:
        return path.stat().st_mtime if path.is_file() else -1.0
    except OSError:
        return -1.0


def _file(folder: Path, below: list[str]) -> Found | None:
    """A page or picture below `folder`, whatever links and dots a path is made of; else None."""
    if not below or any(not part or part.startswith(".") for part in below):
        return None
    try:
        path = folder.joinpath(*below).resolve(strict=True)
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            return None
        if (kind := KINDS.get(path.suffix)) is None:
            return None
        return Found(kind=kind, content=path.read_bytes(), written=_time(path))
    except (OSError, ValueError):
        return None


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; all else is refused, and nothing is written."""

    pages: Pages
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "sweeper", ""
    timeout = 60.0
    """Seconds after which a connection that says nothing is closed."""

    def do_GET(self) -> None:
        """A page, a picture, or 404."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """As GET, without the content."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        # A name that leads here for somebody else's page would let it read ours.
        host = (self.headers.get("Host") or "").lower()
        if host.rpartition(":")[0] not in LOCAL and host not in LOCAL:
            self._say(HTTPStatus.FORBIDDEN, "Only http://127.0.0.1 and http://localhost.", body)
            return
        # Studies are private, and loopback is not: every user of a login node reaches it.
        if user_of(self.connection) not in (None, 0, os.geteuid()):
            self._say(HTTPStatus.FORBIDDEN, "Only the user who serves these pages.", body)
            return
        try:
            path = urlsplit(self.path).path
            found = self.pages.find(path)
            parts = path.split("/")
            # Links on a page lead on from its folder.
            if found is None and len(parts) == 2 and unquote(parts[1]) in self.pages.names():
                self._say(HTTPStatus.MOVED_PERMANENTLY, "", body, {"Location": f"{path}/"})
                return
        except (ValueError, OSError):
            found = None
        except SweeperError as error:
            self._say(HTTPStatus.NOT_FOUND, f"This study is not shown: {error}", body)
            return
        except Exception as error:  # a page that cannot be drawn leaves the others
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, _said(error), body)
            return
        if found is None:
            self._say(HTTPStatus.NOT_FOUND, "There is no such page. All studies: /", body)
            return
        self._send(
            HTTPStatus.OK,
            found.kind,
            found.content,
            body,
            {"Last-Modified": formatdate(found.written, usegmt=True)},
        )

    def _say(
        self, status: HTTPStatus, text: str, body: bool, headers: Mapping[str, str] | None = None
    ) -> None:
        page = f"<!DOCTYPE html><title>{status}</title><p>{escape(text)}</p>"
        self._send(status, KINDS[".html"], page.encode(), body, headers or {})

    def _send(
        self,
        status: HTTPStatus,
        kind: str,
        content: bytes,
        body: bool,
        headers: Mapping[str, str],
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        # A page of ours has a policy of its own. A study from elsewhere may have any page: in a
        # sandbox its scripts read no other study.
        of_page = "sandbox allow-scripts allow-popups allow-downloads"
        policy = (
            of_page if kind == KINDS[".html"] else "default-src 'none'; style-src 'unsafe-inline'"
        )
        self.send_header("Content-Security-Policy", policy)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page that renews itself would fill the terminal."""


def user_of(connection: socket.socket) -> int | None:
    """The user at the other end of a connection within this machine, by Linux' own table.

    None where that is not known, as elsewhere than on Linux.
    """
    theirs, ours = (_entry(name) for name in (connection.getpeername(), connection.getsockname()))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                # An IPv6 socket that reaches here ends in the same address.
                if fields[1].endswith(theirs) and fields[2].endswith(ours):
                    return int(fields[7])
    return None


def _entry(address: tuple[str, int]) -> str:
    """An IPv4 address as the table writes it."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


class Server(ThreadingHTTPServer):
    """Threads that end with the process; a browser that goes away is no error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks off is no affair of the server's user."""


def open_server(root: Path, port: int) -> Server:
    """A server of the studies in `root`, on this machine's loopback alone; 0: any free port.

    BadInput for a port that is taken or not allowed.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(
            Keyword("port"), port, "a port from 1 to 65535, or 0 for any that is free"
        )
    handler = type("Handler", (Handler,), {"pages": Pages(root)})
    try:
        return Server((HOST, port), handler)
    except OSError as error:
        why = {
            errno.EADDRINUSE: "is in use",
            errno.EACCES: "is not allowed to this user",
        }.get(error.errno or 0, f"cannot be opened ({error.strerror})")
        raise BadInput(
            f"port {port} {why}: choose another, or --port 0 for any free one"
        ) from error


def serve(root: Path, port: int, study: str | None, tell: Callable[[str], None]) -> None:
    """Serve until interrupted; `tell` gets the address first, that of a `study` if one is named."""
    with open_server(root, port) as server:
        address = f"http://{HOST}:{server.server_address[1]}/"
        tell(address + (f"{quote(study)}/" if study else ""))
        server.serve_forever(poll_interval=0.2)
