"""The write of an object on a condition, which pyarrow's filesystems do not offer."""

from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from pyarrow import fs

EXISTS = "PreconditionFailed"
ATTEMPTS = 5
"""Attempts at a write that others disturb."""


def put_new(uri: str, filesystem: fs.FileSystem, path: str, content: bytes) -> bool:
    """Writes an object of S3 unless it exists, which the server decides; returns False if it does.

    Args:
        uri: URI of the object, whose query may name the server.
        filesystem: Filesystem of the URI.
        path: Bucket and key.
        content: The whole content.

    Raises:
        OSError: The server cannot be reached, or refuses.
    """
    # Importing boto3 takes a quarter of a second.
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = path.partition("/")
    write = {"Bucket": bucket, "Key": key, "Body": content, "IfNoneMatch": "*"}
    try:
        client = _client(uri, cast(fs.S3FileSystem, filesystem).region)
        for _ in range(ATTEMPTS):
            try:
                client.put_object(**write)
            except ClientError as error:
                code = cast(dict[str, Any], error.response).get("Error", {}).get("Code")
                if code == EXISTS:
                    return False
                if code != "ConditionalRequestConflict":
                    raise
            else:
                return True
    except (BotoCoreError, ClientError) as error:
        raise OSError(str(error)) from error
    raise OSError(f"other writes of the object disturbed {ATTEMPTS} attempts")


def _client(uri: str, region: str) -> Any:
    """Returns a client with the credentials that AWS's SDKs find, and the URI's server."""
    from boto3 import Session

    query = {name: values[-1] for name, values in parse_qs(urlsplit(uri).query).items()}
    server = query.get("endpoint_override")
    if server and "://" not in server:
        server = f"{query.get('scheme', 'https')}://{server}"
    # The default session would keep credentials that have changed since.
    return cast(Any, Session()).client("s3", region_name=region, endpoint_url=server or None)
