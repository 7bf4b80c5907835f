"""The metrics text is what the client library writes, whichever way to it is the cheaper one."""

from __future__ import annotations

import pytest
from prometheus_client.exposition import choose_encoder

from exporter.publish.server import Publication
from tests.analysis.build import Bench


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=0.0.4",
        "text/plain;version=1.0.0;escaping=underscores",
        "text/plain;version=1.0.0;escaping=values",
        "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
        "application/openmetrics-text;version=1.0.0;escaping=dots",
    ],
)
def test_the_text_is_the_client_librarys(accept: str) -> None:
    publication = Publication()
    publication.publish(Bench().run(10, watts=250, work=64, tokens_per_second=100))
    encoder, content_type = choose_encoder(accept)
    text, told = publication.render(accept, compressed=False)
    assert told == content_type

    def lasting(body: bytes) -> list[bytes]:
        return [line for line in body.splitlines() if b"process_" not in line]

    assert lasting(text) == lasting(encoder(publication.registry.registry))
    assert b"wattline_gpu_power_watts{" in text or b"dots" in content_type.encode()
