"""A server with secrets in every option that may carry one shows none of them anywhere."""

from __future__ import annotations

from tools.attack_server import secrets

from .conftest import StartServer


def test_no_reply_and_no_line_of_the_log_shows_a_secret(start_server: StartServer) -> None:
    server = start_server(
        engine=secrets.ENGINE_OPTIONS, env=secrets.ENVIRONMENT, **secrets.SERVER_OPTIONS
    )
    found = dict(secrets.replies(server.url))
    assert "redis://" in found["/server_info"]
    assert len(found) > 20
    with server.client(headers={"Authorization": f"Bearer {secrets.PLANTED}"}) as client:
        for number in range(20):  # after some failures the log tells of Redis
            body = {"prompt": f"{number} " + "a" * 300, "max_tokens": 1}
            assert client.post("/v1/completions", json=body).status_code == 200
            if "KV store, redis" in server.log():
                break
    server.until(lambda: "KV store, redis" in server.log())
    server.stop()
    found["the log"] = server.log()
    shown = [name for name, text in found.items() for one in secrets.SECRETS if one in text]
    assert not shown
