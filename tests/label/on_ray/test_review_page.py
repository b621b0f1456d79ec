"""The review page under Ray Serve, and the decisions that the next run has judged, on Ray."""

import socket
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from raylab.core.config.compose import load_config
from raylab.core.errors import ConfigError, RunError
from raylab.label.archive.store import Archive
from raylab.label.config.jobs import ReviewConfig
from raylab.label.on_ray.annotate import run_annotate
from raylab.label.on_ray.review_page import host
from raylab.label.protocol.reviews import Typed
from raylab.label.review.server import open_reviews
from tests.label.review.office import AGREED, NEITHER, ONE, annotation, make_run

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


def statuses(storage: Path) -> list[tuple[str, str]]:
    with Archive.open(storage / "archive.db", create=False) as archive:
        return [(row.case, row.status) for row in archive.run("systems").decisions()]


def test_serve_hosts_the_page_on_loopback(tmp_path: Path, chat: str) -> None:
    port = free_port()
    config = review(tmp_path, port)
    make_run(annotation(tmp_path, chat), {"pool": f"Schedules are bred. {ONE}"})
    with host(config):
        assert listening(port) == {"127.0.0.1"}
        decide(f"http://127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=r"runs on this cluster already \(raylab-review"):
            with host(config):
                pass
    assert statuses(tmp_path) == [("pool", "unconfirmed")]


def decide(base: str) -> None:
    with httpx2.Client(base_url=base, headers={"Origin": base}, timeout=60) as client:
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
        assert client.get("/cases/1").status_code == 401
        assert client.post("/sign-in", data={"name": "Ada"}).status_code == 303
        client.get("/cases/1")
        filled = {"choice": "A", "justification": "It breeds."}
        answer = client.post("/cases/1/decide", data=filled)
        assert answer.headers["location"] == "/decided?done=1"
        assert "default-src 'none'" in client.get("/decided").headers["content-security-policy"]


def test_what_cannot_be_served_is_told_before_serve_starts(tmp_path: Path) -> None:
    for config, error, says in (
        (review(tmp_path, free_port()), RunError, "is no annotation run"),
        (review(tmp_path, 0), ConfigError, "port=0 is any free port"),
        (review(tmp_path, 8700, "host=10.0.0.7"), ConfigError, "demands a token"),
    ):
        with pytest.raises(error, match=says), host(config):
            pass


def test_the_next_run_has_decisions_judged_by_the_models_of_its_own_command(
    tmp_path: Path, chat: str
) -> None:
    source = tmp_path / "cases.jsonl"
    texts = {"one": f"It is bred. {ONE}", "two": f"It feeds back. {NEITHER}", "set": AGREED}
    source.write_text("".join(f'{{"id": "{k}", "description": "{v}"}}\n' for k, v in texts.items()))
    overrides = (f"cases.path={source}", "resume=true")
    run_annotate(annotation(tmp_path, chat, *overrides))
    assert statuses(tmp_path) == []
    with open_reviews(review(tmp_path, 0)) as (reviews, *_):
        places = {case.case: case.sequence for case in reviews.queue()}
        reviews.submit(places["one"], "Ada", Typed(choice="A", justification="It breeds."))
        reviews.submit(places["two"], "Ada", Typed(choice="B", justification="It learns."))
    # Where record and command name different endpoints, nothing is sent to either.
    with pytest.raises(RunError, match="another configuration"):
        run_annotate(annotation(tmp_path, "http://127.0.0.1:9/v1", *overrides))
    assert statuses(tmp_path) == [("one", "unconfirmed"), ("two", "unconfirmed")]
    run_annotate(annotation(tmp_path, chat, *overrides))
    assert statuses(tmp_path) == [("one", "accepted"), ("two", "human")]
