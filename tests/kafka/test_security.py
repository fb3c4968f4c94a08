"""TLS and a password, against a broker that wants both."""

import asyncio
import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.errors import BadSetting, LogError
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.kafka.broker import Broker, free_port
from tests.kafka.entries import event, everything

PASSWORD = "the store's password"


def keytool(*arguments: str) -> None:
    program = shutil.which("keytool")
    assert program is not None, "keytool comes with Java"
    common = ["-storepass", PASSWORD, "-storetype", "PKCS12", "-alias", "broker"]
    subprocess.run([program, *arguments, *common], check=True, capture_output=True, timeout=60)


def certified(folder: Path) -> tuple[Path, Path]:
    """A key for 127.0.0.1 that vouches for itself: the broker's store, the clients' PEM file."""
    store, pem = folder / "broker.p12", folder / "broker.pem"
    extensions = ["san=ip:127.0.0.1", "bc:critical=ca:true", "ku=keyCertSign,digitalSignature"]
    wanted = [word for extension in extensions for word in ("-ext", extension)]
    named = ["-keyalg", "EC", "-dname", "CN=broker", "-validity", "2", "-keystore", str(store)]
    keytool("-genkeypair", *named, *wanted)
    keytool("-exportcert", "-rfc", "-file", str(pem), "-keystore", str(store))
    return store, pem


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("secured")
    store, pem = certified(folder)
    broker, port = Broker(folder / "broker"), free_port()
    listener, own = f"SECURE://127.0.0.1:{port}", f"PLAINTEXT://127.0.0.1:{broker.port}"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    broker.properties += [
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        f"listeners={own},{listener},CONTROLLER://127.0.0.1:{broker.controller_port}",
        f"advertised.listeners={own},{listener}",
        "sasl.enabled.mechanisms=PLAIN",
        f'listener.name.secure.plain.sasl.jaas.config={module} required user_ada="love lace";',
        f"ssl.keystore.location={store}",
        "ssl.keystore.type=PKCS12",
        f"ssl.keystore.password={PASSWORD}",
    ]
    with broker:
        yield Settings(
            bootstrap_servers=f"127.0.0.1:{port}",
            security_protocol="SASL_SSL",
            sasl_username="ada",
            sasl_password="love lace",
            ssl_cafile=str(pem),
            partitions=1,
            request_timeout_s=5.0,
        )


def refusal(settings: Settings) -> str:
    async def publish() -> None:
        async with KafkaLog(settings) as log:
            await log.publish(event(settings, "s", "1"))

    with pytest.raises(LogError) as refused:
        asyncio.run(publish())
    return str(refused.value)


def test_every_client_of_the_log_passes_tls_and_password(secured: Settings) -> None:
    async def scenario() -> None:
        assert (await create_topics(secured)).problems == []
        async with KafkaLog(secured) as log:
            await log.publish(event(secured, "s", "1"))
            await log.commit("g", secured.turns_topic, {0: 1})
            assert await log.lag("g", secured.turns_topic) == {0: 0}
            assert [e.value for e in await everything(log, secured.turns_topic)] == [b"1"]

    asyncio.run(scenario())


def test_a_wrong_password_is_said_at_once_and_not_shown(secured: Settings) -> None:
    text = refusal(dataclasses.replace(secured, sasl_password="hunter2"))
    assert f"{secured.bootstrap_servers} refuses user ada by PLAIN" in text
    assert "hunter2" not in text


def test_a_broker_that_nobody_vouches_for_is_refused(secured: Settings) -> None:
    text = refusal(dataclasses.replace(secured, ssl_cafile=None))
    assert f"{secured.bootstrap_servers}: TLS failed" in text
    assert "CERTIFICATE_VERIFY_FAILED" in text


def test_a_file_that_is_no_certificate_is_refused_by_its_variable(secured: Settings) -> None:
    with pytest.raises(BadSetting, match=r"TURNSTREAM_SSL_\*: cannot use .*test_security.py"):
        refusal(dataclasses.replace(secured, ssl_cafile=__file__))
