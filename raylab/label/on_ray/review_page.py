"""The review page on a cluster, where Ray Serve hosts it on the head."""

import contextlib
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve as ray_serve
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.schema import LoggingConfig

from raylab.core.errors import ConfigError
from raylab.core.log import log_line
from raylab.core.on_ray.session import result_of, session
from raylab.label.config.jobs import ReviewConfig
from raylab.label.review.access import access_of
from raylab.label.review.app import create_app
from raylab.label.review.server import address_and_next, open_reviews

APPLICATION = "raylab-review"
ON_HEAD: dict[str, Any] = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
REQUESTS = 64
"""Requests in flight at a time."""
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)


def serve(config: ReviewConfig) -> None:
    """Serves the page until Ctrl-C, or until the job is stopped.

    Raises:
        ConfigError: the cluster cannot be joined, or `host` raises it.
        RunError: there is no annotation run of this name.
        ArchiveError: its archive cannot be opened on the head.
    """
    with session(config.cluster), host(config), contextlib.suppress(KeyboardInterrupt):
        log_line(address_and_next(config, config.port))
        threading.Event().wait()


@contextmanager
def host(config: ReviewConfig) -> Generator[None]:
    """Hosts the page by Ray Serve while in use.

    The token is taken from the environment that the head was started with; it does not travel with
    the job.

    Raises:
        ConfigError: Serve runs on the cluster already, the port cannot be listened to, or the
            token is missing.
        RunError: there is no annotation run of this name.
        ArchiveError: its archive cannot be opened on the head.
    """
    access_of(config)
    if not config.port:
        raise ConfigError("port=0 is any free port of one machine: name one on a cluster")
    status = ray_serve.status()
    if status.proxies or status.applications:
        raise ConfigError(
            f"Ray Serve runs on this cluster already ({', '.join(status.applications) or 'idle'}) "
            "and keeps the address it listens to: serve the page from a machine of its own by "
            "leaving cluster.address and RAY_ADDRESS unset, or shut Serve down first"
        )
    result_of(ray.remote(**ON_HEAD)(_check).remote(config))
    try:
        _start(config)
        ray_serve.run(_application(config), name=APPLICATION, logging_config=QUIET)
        yield
    finally:
        ray_serve.shutdown()


def _start(config: ReviewConfig) -> None:
    options = HTTPOptions(host=config.host, port=config.port)
    try:
        ray_serve.start(ProxyLocation.HeadOnly, options, logging_config=QUIET)
    except (RuntimeError, TimeoutError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"Ray Serve cannot listen to port {config.port} of {config.host} on the head "
            f"({reason}): give another port="
        ) from error


def _check(config: ReviewConfig) -> None:
    """Runs all possible checks on the head before Serve is started there."""
    access_of(config)
    with open_reviews(config):
        pass


def _application(config: ReviewConfig) -> ray_serve.Application:
    def build() -> FastAPI:
        stack = ExitStack()
        reviews, *_ = stack.enter_context(open_reviews(config))
        app = create_app(reviews, access_of(config))
        # Resources stay open as long as the page is served.
        app.state.open = stack
        return app

    page: Any = ray_serve.deployment(
        ray_serve.ingress(build)(),
        name="page",
        ray_actor_options=ON_HEAD,
        max_ongoing_requests=REQUESTS,
    )
    return page.bind()
