"""A PostgreSQL server of a test's own."""

import os
import pwd
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "s3cr3t-of-the-test"


def programs() -> Path:
    pytest.importorskip("psycopg2", reason="the driver psycopg2 is not installed")
    places = [Path(shutil.which("initdb") or "/none").resolve().parent]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "pg_ctl").exists():
            return place
    pytest.skip("there is no PostgreSQL: apt-get install postgresql")


@dataclass(frozen=True, kw_only=True)
class Server:
    """Its data are in `folder`; it listens on `port` of this machine alone."""

    folder: Path
    port: int
    bin: Path

    def url(self, password: str = PASSWORD, port: int | None = None) -> str:
        return f"postgresql+psycopg2://me:{password}@127.0.0.1:{port or self.port}/postgres"

    def create(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:  # which the server refuses to run as
            shutil.chown(self.folder, self._user(), None)
            shutil.chown(secret, self._user(), None)
        options = ["-D", str(self.folder / "data"), "-U", "me", "--auth=scram-sha-256", "--no-sync"]
        self._do("initdb", *options, f"--pwfile={secret}")
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=off"
        options += " -c unix_socket_directories=''"
        self._do("pg_ctl", "start", "-w", "-D", str(self.folder / "data"), "-l",
                 str(self.folder / "log"), "-o", options)  # fmt: skip

    def stop(self) -> None:
        self._do("pg_ctl", "stop", "-m", "immediate", "-D", str(self.folder / "data"))

    def _do(self, name: str, *options: str) -> None:
        user = self._user() if os.geteuid() == 0 else None
        done = subprocess.run(
            [str(self.bin / name), *options],
            user=user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if name == "initdb" else subprocess.DEVNULL,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    @staticmethod
    def _user() -> str:
        names = {entry.pw_name for entry in pwd.getpwall()}
        return "postgres" if "postgres" in names else "nobody"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
