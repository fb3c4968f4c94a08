"""How a client proves who it is: the settings as aiokafka's arguments.

Invariant: the same settings reach every client of a process, Faust's included.
"""

import ssl
from typing import Any

from aiokafka.helpers import create_ssl_context

from streams.errors import BadSetting
from streams.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What a TLS connection needs; none where the protocol has no TLS."""
    if not settings.security_protocol.endswith("SSL"):
        return None
    try:
        context = create_ssl_context(
            cafile=settings.ssl_cafile,
            certfile=settings.ssl_certfile,
            keyfile=settings.ssl_keyfile,
        )
    except (OSError, ssl.SSLError) as error:
        files = (settings.ssl_cafile, settings.ssl_certfile, settings.ssl_keyfile)
        named = ", ".join(str(path) for path in files if path)
        raise BadSetting(f"TURNSTREAM_SSL_*: cannot use {named}: {error}") from None
    assert isinstance(context, ssl.SSLContext)
    return context


def client_options(settings: Settings) -> dict[str, Any]:
    """What producer, consumer and admin client share: addresses, identity, timeouts."""
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "request_timeout_ms": int(settings.request_timeout_s * 1000),
        "metadata_max_age_ms": int(settings.metadata_max_age_s * 1000),
        "security_protocol": settings.security_protocol,
        "ssl_context": tls_context(settings),
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password,
    }
