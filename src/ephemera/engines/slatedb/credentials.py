"""Where the credentials of an object store come from, and what to do where there are none.

SlateDB's library takes them from the environment. Where that holds none it asks the metadata service
of the cloud's own machines, again and again. Elsewhere nobody answers there, and a first opening would
take half a minute to fail: so before it opens a bucket of S3, `require_credentials` asks once itself,
as the library would, up to the name of the machine's role and not for its credentials.

Google's is not asked: it needs some seconds in a pod that has just started, and the library waits.
"""

from __future__ import annotations

import http.client
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError

from ephemera.core.errors import EngineUnavailable, InvalidArgument
from ephemera.engines.slatedb.location import StoreLocation

METADATA_URL = "http://169.254.169.254"
METADATA_S = 1.0
"""How long the metadata service may take to accept a connection, and to reply: as in AWS's own tools."""
REPLY_BYTES_MAX = 4096

_REMEDIES = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_REGION; AWS_SESSION_TOKEN if there is one)",
    "gs": "set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS to a file of credentials",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_CREDENTIALS = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_",
        "AWS_SKIP_SIGNATURE",
        "AWS_IMDSV1_FALLBACK",  # what is asked here is version 2
    ),
    "gs": ("GOOGLE_",),
    "az": ("AZURE_",),
}
"""How the names of variables begin that hold credentials, or say how to get or do without them."""


def require_credentials(location: StoreLocation) -> None:
    """Raise at once where there are no credentials for a location, with the variables to set.

    It is EngineUnavailable where a metadata service might have them and does not answer.
    """
    if location.scheme == "file" or _has_credentials(location):
        return
    needed = f"{location} needs credentials: {_REMEDIES[location.scheme]}"
    if location.scheme == "az":
        raise InvalidArgument(needed)  # the name of the account is in the environment alone
    if location.scheme == "s3":
        reason = _why_no_role()
        if reason:
            raise EngineUnavailable(
                f"{needed}. No variable holds any (~/.aws is not read), and {reason}"
            )


@contextmanager
def naming_credentials(location: StoreLocation) -> Iterator[None]:
    """Let the error of an object store that does not answer say that there are no credentials."""
    try:
        yield
    except EngineUnavailable as error:
        if location.scheme == "file" or _has_credentials(location):
            raise
        raise EngineUnavailable(
            f"{error}. The environment holds no credentials: {_REMEDIES[location.scheme]}"
        ) from None


def _has_credentials(location: StoreLocation) -> bool:
    """Whether the environment may hold credentials for this location."""
    beginnings = _CREDENTIALS[location.scheme]
    return any(name.startswith(beginnings) and text for name, text in os.environ.items())


def _why_no_role() -> str:
    """Why this machine has no role whose credentials the library could get; empty if it has one."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return "AWS_EC2_METADATA_DISABLED keeps the metadata service from being asked"
    url = os.environ.get("AWS_METADATA_ENDPOINT") or METADATA_URL
    try:
        token = _ask(f"{url}/latest/api/token", "PUT", "-ttl-seconds", "60")
        _ask(f"{url}/latest/meta-data/iam/security-credentials/", "GET", "", token)
    except HTTPError as error:
        return f"this machine has no role: the metadata service at {url} replied {error}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        return f"no metadata service answers at {url} ({reason})"
    return ""


def _ask(url: str, method: str, header: str, value: str) -> str:
    request = urllib.request.Request(
        url, method=method, headers={f"X-aws-ec2-metadata-token{header}": value}
    )
    # Without proxies, which are no part of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=METADATA_S) as reply:
        body: bytes = reply.read(REPLY_BYTES_MAX)
    return body.decode("ascii")
