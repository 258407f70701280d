"""Credentials for buckets: found in the environment or by the machine's role, and missed at once."""

from __future__ import annotations

import os
import socket

import pytest

import ephemera
from ephemera import EngineUnavailable, InvalidArgument
from ephemera.engines.slatedb import credentials, engine
from ephemera.engines.slatedb.credentials import naming_credentials
from ephemera.engines.slatedb.location import read_location
from tests.engines.slatedb.buckets import s3_url
from tests.engines.slatedb.metadata import ROLE, ROLES_PATH, serving
from tests.wire.servers import free_port

BUCKETS = ["s3://bucket/app", "s3://bucket/app?endpoint=http://127.0.0.1:9"]
VARIABLES = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without them, in which no test asks the metadata service of this machine."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """SlateDB's library, which asks for half a minute, is not asked at all."""

    def refuse(*_: object) -> None:
        raise AssertionError("the object store was asked")

    monkeypatch.setattr(engine, "open_writer", refuse)


@pytest.mark.usefixtures("no_credentials", "no_library")
@pytest.mark.parametrize("url", BUCKETS)
def test_a_bucket_without_credentials_says_at_once_which_variables_to_set(url: str) -> None:
    with pytest.raises(EngineUnavailable, match=VARIABLES) as refusal:
        ephemera.open(url)
    assert os.environ["AWS_METADATA_ENDPOINT"] in str(refusal.value)
    assert "Connection refused" in str(refusal.value)


@pytest.mark.usefixtures("no_credentials", "no_library")
def test_variables_that_hold_no_credentials_are_not_taken_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_REGION", "AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_PAGER", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    with pytest.raises(EngineUnavailable, match=VARIABLES):
        ephemera.open("s3://bucket/app")


@pytest.mark.usefixtures("no_credentials", "no_library")
def test_a_metadata_service_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert credentials.METADATA_S <= 1
    monkeypatch.setattr(credentials, "METADATA_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(EngineUnavailable, match="timed out"):
            ephemera.open("s3://bucket/app")


@pytest.mark.usefixtures("no_credentials", "no_library")
def test_a_machine_without_a_role_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(has_role=False) as service:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.url)
        with pytest.raises(EngineUnavailable, match=rf"{VARIABLES}.*has no role"):
            ephemera.open("s3://bucket/app")


@pytest.mark.usefixtures("no_credentials", "no_library")
def test_a_metadata_service_that_is_switched_off_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as service:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.url)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with pytest.raises(EngineUnavailable, match="AWS_EC2_METADATA_DISABLED"):
            ephemera.open("s3://bucket/app")
        assert service.asked == []


def test_the_role_of_a_machine_opens_a_bucket(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3_url()
    request.getfixturevalue("no_credentials")  # not before: the bucket's server sets some
    with serving() as service:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.url)
        with ephemera.open(url) as store:
            store.put("a", "1", durable=True)
            assert store.get("a") == b"1"
        assert ROLES_PATH + ROLE in service.asked


@pytest.mark.usefixtures("no_credentials")
def test_a_container_of_azure_without_an_account_says_which_variables_to_set() -> None:
    with pytest.raises(InvalidArgument, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        ephemera.open("az://container/app")


@pytest.mark.usefixtures("no_credentials")
def test_an_object_store_that_does_not_answer_names_the_variables_that_are_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = read_location("gs://bucket/app")
    with (
        pytest.raises(EngineUnavailable, match="set GOOGLE_SERVICE_ACCOUNT"),
        naming_credentials(location),
    ):
        raise EngineUnavailable("the object store did not answer")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "file")
    with pytest.raises(EngineUnavailable, match=r"answer$"), naming_credentials(location):
        raise EngineUnavailable("the object store did not answer")
