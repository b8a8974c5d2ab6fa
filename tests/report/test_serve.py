"""The pages of a root over HTTP: what is served, to whom, and what is not."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeper.cli.status import serve_reports
from sweeper.cli.verb import output_of
from sweeper.errors import BadInput, ConfigError
from sweeper.files import write_json
from sweeper.report.page import write_report
from sweeper.report.serve import Pages, Server, open_server, user_of
from sweeper.study.lock import StudyLock
from sweeper.sweep.progress import Snapshot
from tests.layout import without_drawing
from tests.report import samples


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    with without_drawing():
        holds = samples.study(folder / "runs/holds", samples.search(), w256=samples.validation())
        write_report(holds)
        fails = samples.validation("fails")
        samples.study(folder / "runs/fails", samples.search(), w256=fails)
        samples.study(folder / "runs/new", samples.search(objective=float("inf"), finished=False))
        samples.study(folder / 'runs/<&"')
    (holds / "figures").mkdir(exist_ok=True)
    (holds / "figures/best_loss.svg").write_text("<svg/>")
    (folder / "runs/comparisons").mkdir()
    (folder / "runs/comparisons/out.svg").symlink_to(folder / "secret.svg")
    (folder / "secret.svg").write_text("secret")
    return folder / "runs"


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with without_drawing(), open_server(root, 0) as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(0.01,))
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, content, and where it leads."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, text, answer.getheader("Location") or ""


def test_the_list_has_every_study_with_its_state_and_verdict(server: Server) -> None:
    status, text, _ = ask(server, "/")
    assert status == 200
    rows = {name: text.split(f">{name}</a>")[1].split("</tr>")[0] for name in ("holds", "new")}
    assert "finished" in rows["holds"] and "3.4120" in rows["holds"] and "✓ holds" in rows["holds"]
    assert "not finished" in rows["new"] and "diverged" in rows["new"]
    assert "✗ fails" in text.split(">fails</a>")[1].split("</tr>")[0]
    assert 'href="%3C%26%22/"' in text and "&lt;&amp;&#34;" in text


def test_a_page_is_its_file_or_drawn_where_there_is_none(server: Server, root: Path) -> None:
    status, text, _ = ask(server, "/holds/")
    assert status == 200 and text == (root / "holds/report.html").read_text()
    status, text, _ = ask(server, "/fails/report.html")
    assert status == 200 and "The transfer fails" in text
    assert not (root / "fails/report.html").exists(), "nothing is written"
    status, text, _ = ask(server, "/%3C%26%22/")
    assert status == 200 and "<title>demo" not in text
    assert ask(server, "/holds") == (301, "<!DOCTYPE html><title>301</title><p></p>", "/holds/")
    assert ask(server, "/holds/figures/best_loss.svg")[:2] == (200, "<svg/>")


def test_a_page_s_scripts_read_no_other_study(server: Server) -> None:
    """A study from elsewhere may hold any page; pictures and the like run no script at all."""
    policies = []
    for path in ("/holds/", "/holds/figures/best_loss.svg"):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request("GET", path)
        policies.append(connection.getresponse().getheader("Content-Security-Policy") or "")
        connection.close()
    assert policies[0].startswith("sandbox ") and "allow-same-origin" not in policies[0]
    assert policies[1].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    [
        "/nope/",
        "/../secret.svg",
        "/%2e%2e/secret.svg",
        "/holds/../../secret.svg",
        "/holds/%2e%2e%2f%2e%2e%2fsecret.svg",
        "/holds/figures/..%2f..%2f..%2fsecret.svg",
        "/comparisons/out.svg",
        "/holds/figures/",
        "/holds/config.yaml",
        "/holds/results/000001.jsonl",
        "/holds/a%00.svg",
        "*",
    ],
)
def test_nothing_else_is_served(server: Server, path: str) -> None:
    status, text, _ = ask(server, path)
    assert status == 404 and "secret" not in text.replace("secret.svg", "")


def test_a_study_whose_records_have_no_known_shape_leaves_the_others(tmp_path: Path) -> None:
    with without_drawing():
        odd = samples.study(tmp_path / "odd", samples.search(), w256=samples.validation())
        samples.study(tmp_path / "whole", samples.search())
    (validation,) = odd.glob("transfer/*/validation.json")
    validation.write_text('{"axes": [{"answer": ["holds"]}]}')
    text = Pages(tmp_path)._list().content.decode()
    rows = {name: text.split(f">{name}</a>")[1].split("</tr>")[0] for name in ("odd", "whole")}
    assert "cannot be read: TypeError" in rows["odd"] and "finished" in rows["whole"]


@pytest.mark.parametrize("name", ["report.html", "search.json", "results/000009.jsonl", "lock"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_study_with_what_is_no_file_of_it_is_named_and_not_shown(
    server: Server, root: Path, name: str, kind: str
) -> None:
    """A pipe would be waited for without end, and a link leads to files that are not shown."""
    with without_drawing():
        odd = samples.study(root / "odd", samples.search())
    try:
        (odd / name).unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(odd / name)
        else:
            (odd / name).symlink_to(root.parent / "secret.svg")
        for path in ("/odd/", "/odd/report.html", "/odd/figures/best_loss.svg"):
            status, text, _ = ask(server, path)
            assert (
                status == 404 and f"odd/{name} is " in text and "neither" * (kind == "pipe") in text
            )
        row = ask(server, "/")[1].split(">odd</a>")[1].split("</tr>")[0]
        assert f"cannot be read: {odd / name} is " in row
    finally:
        shutil.rmtree(odd)


def test_a_name_that_no_address_can_say_is_passed_over(server: Server, root: Path) -> None:
    odd = os.fsencode(root) + b"/b\xff"
    os.mkdir(odd)
    Path(os.fsdecode(odd), "config.yaml").touch()
    try:
        assert ask(server, "/")[0] == 200 and ask(server, "/b%ff/")[0] == 404
    finally:
        shutil.rmtree(odd)


def test_a_page_that_a_killed_driver_left_running_says_that_it_stopped(
    server: Server, root: Path
) -> None:
    with without_drawing():
        odd = samples.study(root / "killed", samples.search(finished=False))
        write_json(
            odd / "progress.json",
            Snapshot(job="search", phase="search", done=3, total=9, over=False),
        )
        try:
            with StudyLock(odd):
                write_report(odd, live=5.0)
                assert "Running: search: 3 of 9 trials" in ask(server, "/killed/")[1]
                (odd / "report.html").unlink()
                assert "Running: search: 3 of 9 trials" in ask(server, "/killed/")[1]
            assert "Stopped: search: 3 of 9 trials" in ask(server, "/killed/")[1]
            write_report(odd, live=5.0)
            assert "Stopped: search: 3 of 9 trials" in ask(server, "/killed/")[1]
            assert "stopped: search: 3 of 9 trials" in ask(server, "/")[1]
        finally:
            shutil.rmtree(odd)


def test_another_user_of_this_machine_sees_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Studies are private, and loopback is not."""
    monkeypatch.setattr("sweeper.report.serve.user_of", lambda connection: os.geteuid() + 1)
    status, text, _ = ask(server, "/")
    assert status == 403 and "holds" not in text
    monkeypatch.setattr("sweeper.report.serve.user_of", lambda connection: None)
    assert ask(server, "/")[0] == 200


@pytest.mark.skipif(sys.platform != "linux", reason="the table of connections is Linux'")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_user_at_the_other_end_is_known(family: socket.AddressFamily) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
    with listening, socket.socket(family, socket.SOCK_STREAM) as theirs:
        theirs.connect((host, listening.getsockname()[1]))
        ours, _ = listening.accept()
        with ours:
            assert user_of(ours) == os.geteuid()


def test_head_has_no_content_and_other_methods_are_refused(server: Server) -> None:
    assert ask(server, "/", "HEAD")[:2] == (200, "")
    assert ask(server, "/nope", "HEAD")[:2] == (404, "")
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/holds/report.html", method)[0] == 501


def test_no_other_name_leads_here(server: Server) -> None:
    assert ask(server, "/", Host="evil.example:8765")[0] == 403
    assert ask(server, "/", Host="localhost:1")[0] == 200


def test_a_port_that_is_taken_or_none_is_refused(server: Server, root: Path) -> None:
    port = server.server_address[1]
    with pytest.raises(BadInput, match=str(port)):
        open_server(root, port)
    with pytest.raises(ConfigError) as caught:
        open_server(root, 70_000)
    assert caught.value.key == "--port"


def test_the_address_is_told_while_it_serves(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def serving(_root: Path, _port: int, _study: str | None, tell: Callable[[str], None]) -> None:
        tell("http://127.0.0.1:1/")
        told.append(capsys.readouterr().out)

    monkeypatch.setattr("sweeper.report.serve.serve", serving)
    serve_reports(None, root, None, output_of(json=False))
    assert "http://127.0.0.1:1/" in told[0]
