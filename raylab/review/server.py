"""The review page on this machine: one process that serves it until it is interrupted."""

import asyncio
import contextlib
import socket

import uvicorn

from raylab.config.jobs import ReviewConfig
from raylab.errors import ConfigError
from raylab.log import log_line
from raylab.review.access import access_of
from raylab.review.app import create_app
from raylab.review.open_run import open_reviews

BACKLOG = 128
SECONDS_TO_END = 10
"""For requests in flight."""


def serve(config: ReviewConfig) -> None:
    """Serves the page until Ctrl-C.

    Raises:
        ConfigError: The address is taken or demands a token, or the evaluator's key is missing.
        RunError: There is no annotation run of this name.
        ArchiveError: Its archive cannot be opened.
    """
    access = access_of(config)
    with _bound(config) as listener, open_reviews(config) as reviews:
        asyncio.run(reviews.judge.check())
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(reviews, access),
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=SECONDS_TO_END,
            )
        )
        log_line(told(config, listener.getsockname()[1]))
        with reviews.judge.at_work(), contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


def told(config: ReviewConfig, port: int) -> str:
    """Returns the address of the page and the next step after it, for the log."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return (
        f"open cases of run {config.name}: http://{host}:{port}/\nCtrl-C ends the page; "
        "jobs/annotate.py with resume=true counts what was decided in report.json"
    )


def _bound(config: ReviewConfig) -> socket.socket:
    """Returns a listening socket; an address that is taken is reported before all else."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server(
            (config.host, config.port), family=family, backlog=BACKLOG, reuse_port=False
        )
    except OSError as error:
        raise ConfigError(
            f"port {config.port} of {config.host} cannot be listened to ({error}): give another "
            "port=, or port=0 for any that is free"
        ) from error
