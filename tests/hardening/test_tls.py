"""The same exporter behind TLS: noise, half-open handshakes and its end."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import trustme

from tests.hardening.process import PATIENCE, serving
from tests.nvml.standin import StandIn


async def test_behind_tls_noise_and_handshakes_that_never_end_cost_nothing_and_say_nothing(
    tmp_path: Path, standin: StandIn
) -> None:
    leaf = trustme.CA().issue_cert("127.0.0.1")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    web = tmp_path / "web.yml"
    web.write_text("tls_server_config: {cert_file: server.pem, key_file: server.pem}\n")
    async with serving("--web.config.file", web, standin=standin, scheme="https") as exporter:
        await exporter.until(lambda answer: answer.values("wattline_gpu_power_watts"))
        before = len(exporter.lines)
        silent = [await asyncio.open_connection("127.0.0.1", exporter.port) for _ in range(50)]
        for noise in (b"GET /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\x00" * 64):
            reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
            writer.write(noise)
            # Refused by an alert, or by the end of the connection.
            await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
        half, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
        hello = ssl.MemoryBIO()
        client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="x")
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(hello.read())
        assert await half.read(1) == b"\x16"
        writer.transport.abort()
        assert (await exporter.ask()).status == 200
        assert exporter.lines[before:] == []
        assert await exporter.stop() == 0
        for _, each in silent:
            each.transport.abort()
