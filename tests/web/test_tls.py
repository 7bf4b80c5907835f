from __future__ import annotations

import logging
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme

from tests.web.conftest import Files, Serve, client_context
from wattline.publish.security import WebSecurity
from wattline.yamlfile import ConfigError


def der(leaf: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())


async def test_without_a_file_plain_http_is_served_to_all(serve: Serve) -> None:
    server = await serve(None)
    assert not server.tls
    assert (await server.get()).text == "wattline_up 1\n"


async def test_an_empty_file_changes_nothing(serve: Serve, files: Files) -> None:
    server = await serve(files.write("web.yml", ""))
    assert (await server.get()).status == 200


async def test_a_client_that_trusts_the_authority_gets_the_metrics(
    serve: Serve, files: Files, authority: trustme.CA
) -> None:
    leaf = files.certificate(authority)
    server = await serve(files.tls())
    reply = await server.get(client=client_context(authority))
    assert (reply.status, reply.text) == (200, "wattline_up 1\n")
    assert await server.certificate(client_context(authority)) == der(leaf)


async def test_a_client_that_trusts_another_authority_refuses(
    serve: Serve, files: Files, authority: trustme.CA, other_authority: trustme.CA
) -> None:
    files.certificate(authority)
    server = await serve(files.tls())
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await server.get(client=client_context(other_authority))


async def test_plain_http_gets_nothing_from_a_tls_port(serve: Serve, files: Files, authority: trustme.CA) -> None:
    files.certificate(authority)
    server = await serve(files.tls())
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{server.port}/metrics")


async def test_a_new_certificate_is_shown_to_the_next_connection(
    serve: Serve, files: Files, authority: trustme.CA
) -> None:
    first = files.certificate(authority)
    server = await serve(files.tls())
    assert await server.certificate(client_context(authority)) == der(first)
    second = files.certificate(authority)
    assert await server.certificate(client_context(authority)) == der(second)


async def test_a_half_written_pair_leaves_the_old_one_in_force_and_is_logged_once(
    serve: Serve, files: Files, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    first = files.certificate(authority)
    server = await serve(files.tls())
    second = authority.issue_cert("127.0.0.1")
    with caplog.at_level(logging.INFO, "wattline.publish.security"):
        files.write("server.key", second.private_key_pem.bytes())
        for _ in range(3):
            assert await server.certificate(client_context(authority)) == der(first)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "cert_file" in caplog.text
        files.write("server.pem", second.cert_chain_pems[0].bytes())
        assert await server.certificate(client_context(authority)) == der(second)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_certificate_that_vanished_leaves_the_old_one_in_force(
    serve: Serve, files: Files, authority: trustme.CA
) -> None:
    first = files.certificate(authority)
    server = await serve(files.tls())
    (files.folder / "server.pem").unlink()
    assert await server.certificate(client_context(authority)) == der(first)


async def test_tls_is_not_switched_off_while_serving(
    serve: Serve, files: Files, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    files.certificate(authority)
    server = await serve(files.tls())
    files.write("web.yml", "basic_auth_users: {}\n")
    assert (await server.get(client=client_context(authority))).status == 200
    assert "TLS is switched on or off only by a restart" in caplog.text


@pytest.mark.parametrize(
    ("auth_type", "required"),
    [("NoClientCert", False), ("VerifyClientCertIfGiven", False), ("RequireAndVerifyClientCert", True)],
)
async def test_client_certificates_are_asked_for_as_configured(
    serve: Serve, files: Files, authority: trustme.CA, auth_type: str, required: bool
) -> None:
    files.certificate(authority)
    files.write("ca.pem", authority.cert_pem.bytes())
    lines = [f"client_auth_type: {auth_type}"] + ["client_ca_file: ca.pem"] * (auth_type != "NoClientCert")
    server = await serve(files.tls(*lines))
    known = client_context(authority, authority.issue_cert("scraper"))
    assert (await server.get(client=known)).status == 200
    if required:
        with pytest.raises(aiohttp.ClientError):
            await server.get(client=client_context(authority))
    else:
        assert (await server.get(client=client_context(authority))).status == 200


@pytest.mark.parametrize("auth_type", ["VerifyClientCertIfGiven", "RequireAndVerifyClientCert"])
async def test_a_client_certificate_of_another_authority_is_refused(
    serve: Serve, files: Files, authority: trustme.CA, other_authority: trustme.CA, auth_type: str
) -> None:
    files.certificate(authority)
    files.write("ca.pem", authority.cert_pem.bytes())
    server = await serve(files.tls(f"client_auth_type: {auth_type}", "client_ca_file: ca.pem"))
    with pytest.raises(aiohttp.ClientError):
        await server.get(client=client_context(authority, other_authority.issue_cert("scraper")))


async def test_a_client_authority_that_was_taken_away_lets_nobody_in(
    serve: Serve, files: Files, authority: trustme.CA, other_authority: trustme.CA
) -> None:
    files.certificate(authority)
    files.write("ca.pem", authority.cert_pem.bytes())
    server = await serve(files.tls("client_auth_type: RequireAndVerifyClientCert", "client_ca_file: ca.pem"))
    client = client_context(authority, authority.issue_cert("scraper"))
    assert (await server.get(client=client)).status == 200
    files.write("ca.pem", other_authority.cert_pem.bytes())
    with pytest.raises(aiohttp.ClientError):
        await server.get(client=client)


async def test_an_old_tls_version_is_refused(serve: Serve, files: Files, authority: trustme.CA) -> None:
    files.certificate(authority)
    server = await serve(files.tls("min_version: TLS13"))
    old = client_context(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(aiohttp.ClientConnectorError):
        await server.get(client=old)
    assert (await server.get(client=client_context(authority))).status == 200


@pytest.mark.parametrize(
    ("offered", "welcome"), [("ECDHE-ECDSA-AES256-GCM-SHA384", True), ("ECDHE-ECDSA-AES128-GCM-SHA256", False)]
)
async def test_only_the_named_cipher_suites_are_spoken(
    serve: Serve, files: Files, authority: trustme.CA, offered: str, welcome: bool
) -> None:
    files.certificate(authority)
    server = await serve(files.tls("cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256]"))
    client = client_context(authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(offered)
    if welcome:
        assert (await server.get(client=client)).status == 200
    else:
        with pytest.raises(aiohttp.ClientConnectorError):
            await server.get(client=client)


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        WebSecurity(path)
    return str(caught.value).removeprefix(f"{path}:")


def test_a_missing_certificate_is_an_error_at_the_start(files: Files) -> None:
    expected = f"2: tls_server_config.cert_file: {files.folder}/server.pem cannot be used: No such file or directory"
    assert refused(files.tls()) == expected


def test_a_missing_key_is_an_error_at_the_start(files: Files, authority: trustme.CA) -> None:
    files.certificate(authority)
    (files.folder / "server.key").unlink()
    expected = f"3: tls_server_config.key_file: {files.folder}/server.key cannot be used: No such file or directory"
    assert refused(files.tls()) == expected


def test_a_file_that_is_no_certificate_is_an_error_at_the_start(files: Files, authority: trustme.CA) -> None:
    files.certificate(authority)
    files.write("server.pem", "not a certificate\n")
    assert refused(files.tls()).startswith(f"2: tls_server_config.cert_file: {files.folder}/server.pem cannot be used")


def test_an_authority_that_is_no_certificate_is_an_error_at_the_start(files: Files, authority: trustme.CA) -> None:
    files.certificate(authority)
    files.write("ca.pem", "not a certificate\n")
    message = refused(files.tls("client_auth_type: RequireAndVerifyClientCert", "client_ca_file: ca.pem"))
    assert message.startswith(f"5: tls_server_config.client_ca_file: {files.folder}/ca.pem cannot be used: ")


def test_a_key_with_a_passphrase_is_an_error_and_asks_nobody(files: Files, authority: trustme.CA) -> None:
    from cryptography.hazmat.primitives import serialization

    leaf = files.certificate(authority)
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"hunter2")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    files.write("server.key", key.private_bytes(*form))
    assert "cannot be used" in refused(files.tls())
