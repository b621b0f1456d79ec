"""The review page under Ray Serve, on a local Ray."""

import re
import socket
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from raylab.archive.store import Archive
from raylab.cluster.review_page import hosted
from raylab.config.compose import load_config
from raylab.config.jobs import ReviewConfig
from raylab.errors import ConfigError, RunError
from tests.llm.scripted_server import server_process
from tests.review.evaluators import wait_until
from tests.review.runs import ONE, annotation, make_run

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def listening(port: int) -> set[str]:
    """The addresses at which somebody listens to a port."""
    found: list[Any] = psutil.net_connections("tcp")
    listeners = [one.laddr for one in found if one.status == psutil.CONN_LISTEN]
    return {address.ip for address in listeners if address.port == port}


def review(storage: Path, port: int, *overrides: str) -> ReviewConfig:
    place = [f"storage={storage}", "name=systems", f"port={port}"]
    return load_config(ReviewConfig, [*place, *overrides])


def test_serve_hosts_the_page_on_loopback(tmp_path: Path) -> None:
    port = free_port()
    config = review(tmp_path, port)
    with server_process() as url:
        make_run(annotation(tmp_path, url), {"pool": f"Schedules are bred. {ONE}"})
        with hosted(config):
            assert listening(port) == {"127.0.0.1"}
            decide(f"http://127.0.0.1:{port}")
            with Archive.open(tmp_path / "archive.db") as archive:
                wait_until(lambda: not archive.run("systems").pending().all())
            with pytest.raises(ConfigError, match=r"runs on this cluster already \(raylab-review"):
                with hosted(config):
                    pass
    with Archive.open(tmp_path / "archive.db") as archive:
        (made,) = archive.run("systems").decisions()
        assert (made.reviewer, made.status) == ("Ada", "accepted")


def decide(base: str) -> None:
    with httpx2.Client(base_url=base, headers={"Origin": base}, timeout=60) as client:
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 400

        def post(path: str, page: str, **fields: str) -> httpx2.Response:
            found = re.search(r'name="csrf" value="([\w-]+)"', client.get(page).text)
            assert found is not None
            return client.post(path, data={"csrf": found[1], **fields})

        assert client.get("/cases/1").status_code == 401
        assert post("/sign-in", "/", name="Ada").status_code == 303
        filled = {"choice": "A", "justification": "It breeds."}
        assert post("/cases/1/decide", "/cases/1", **filled).headers["location"] == "/decided"
        assert "default-src 'none'" in client.get("/decided").headers["content-security-policy"]


def test_what_cannot_be_served_is_told_before_serve_starts(tmp_path: Path) -> None:
    for config, error, says in (
        (review(tmp_path, free_port()), RunError, "is no annotation run"),
        (review(tmp_path, 0), ConfigError, "port=0 is any free port"),
        (review(tmp_path, 8700, "host=10.0.0.7"), ConfigError, "demands a token"),
    ):
        with pytest.raises(error, match=says), hosted(config):
            pass
