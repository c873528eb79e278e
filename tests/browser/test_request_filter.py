# SPDX-License-Identifier: Apache-2.0
"""What a hostile visitor tries, request by request, against a running server."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

import pytest

SECRET = "inlay-secret-7f3a"


def ask(
    address: str, path: str, data: bytes | None = None, kind: str = "application/json", host: str | None = None
) -> tuple[int, str]:
    """(status, body), with the path sent exactly as written."""
    headers = {"Content-Type": kind} | ({} if host is None else {"Host": host})
    request = urllib.request.Request(address.rstrip("/") + path, data=data, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace")


def upload(address: str, name: str, content: bytes) -> tuple[int, str]:
    edge = uuid.uuid4().hex
    head = f'--{edge}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
    body = f"{head}Content-Type: video/mp4\r\n\r\n".encode() + content + f"\r\n--{edge}--\r\n".encode()
    return ask(address, "/gradio_api/upload", body, f"multipart/form-data; boundary={edge}")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize("door", ["/gradio_api/file=", "/file=", "/gradio_api/file/", "/file/", "/gradio_api/stream/"])
@pytest.mark.parametrize("form", ["{path}", "{quoted}", "{twice}", "file://{path}", "/tmp/../{path}", "..{path}"])
def test_no_other_file_is_handed_out(address: str, secret: Path, door: str, form: str) -> None:
    quoted = urllib.parse.quote(str(secret), safe="")
    wanted = form.format(path=secret, quoted=quoted, twice=urllib.parse.quote(quoted, safe=""))
    status, body = ask(address, door + wanted)
    assert status >= 400 and SECRET not in body


def test_the_way_up_from_an_upload_is_barred(address: str, secret: Path) -> None:
    status, body = upload(address, "a.mp4", b"mine")
    assert status == 200
    mine = json.loads(body)[0]
    assert ask(address, f"/gradio_api/file={mine}") == (200, "mine")
    up = "/..".join([""] * 30)
    for climb in (f"{mine}/..{up}{secret}", f"{Path(mine).parent}{up}{secret}".replace("..", "%2e%2e")):
        status, body = ask(address, f"/gradio_api/file={climb}")
        assert status >= 400 and SECRET not in body


def test_the_server_fetches_nothing_for_others(address: str) -> None:
    for path in (f"/gradio_api/file={address}config", f"/gradio_api/proxy={address}config", f"/file={address}config"):
        status, body = ask(address, path)
        assert status >= 400 and "components" not in body


@pytest.mark.parametrize(
    "name", ["../../../evil.mp4", "/tmp/evil.mp4", "..\\..\\evil.mp4", "a%2f..%2fevil.mp4", "." * 300]
)
def test_hostile_names_stay_in_the_folder(address: str, name: str) -> None:
    status, body = upload(address, name, b"x")
    if status == 200:
        root = Path(json.loads(upload(address, "plain.mp4", b"y")[1])[0]).parent.parent
        place = json.loads(body)[0]
        assert Path(os.path.normpath(place)).is_relative_to(root)
        assert ask(address, f"/gradio_api/file={urllib.parse.quote(place)}") == (200, "x")


def test_an_upload_over_the_limit_is_cut_off(address: str) -> None:
    status, body = upload(address, "large.mp4", bytes(3_000_000))
    assert status == 413 and "maximum allowed size" in body


def test_an_event_cannot_name_a_file_that_was_not_uploaded(address: str, secret: Path) -> None:
    config = json.loads(ask(address, "/config")[1])
    uploads = [d["id"] for d in config["dependencies"] if any(event == "upload" for _, event in d["targets"])]
    assert len(uploads) == 2
    for number in uploads:
        file = {"path": str(secret), "meta": {"_type": "gradio.FileData"}, "orig_name": "secret.txt"}
        session = uuid.uuid4().hex
        event = {"data": [file, "hold"], "fn_index": number, "session_hash": session, "trigger_id": None}
        status, body = ask(address, "/gradio_api/queue/join", json.dumps(event).encode())
        if status == 200:
            body += listen(address, session)
        assert SECRET not in body and '"success": true' not in body.replace('"success":true', '"success": true')


def listen(address: str, session: str, seconds: float = 20) -> str:
    """What the queue says until it is done."""
    text, end = "", time.monotonic() + seconds
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}gradio_api/queue/data?session_hash={session}", timeout=seconds) as answer:
        while "process_completed" not in text and time.monotonic() < end:
            line = answer.readline().decode("utf-8", "replace")
            if not line:
                break
            text += line
    return text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "localhost.evil.example", "", "127.0.0.2", "[::2]"]
)
def test_a_foreign_name_that_leads_here_is_not_served(address: str, host: str) -> None:
    for path in ("/", "/config", "/gradio_api/upload", "/gradio_api/queue/data?session_hash=x"):
        status, body = ask(address, path, host=host)
        assert status == 421 and "components" not in body and "--names" in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:7860"])
def test_its_own_names_are_served(address: str, host: str) -> None:
    assert ask(address, "/config", host=host)[0] == 200


def test_answers_tell_nothing_of_the_server(address: str) -> None:
    """Neither where files lie, nor what went wrong inside."""
    config = json.loads(ask(address, "/config")[1])
    calls = {d["id"]: d for d in config["dependencies"]}
    status, sent = upload(address, "words.mp4", b"no video at all" * 99)
    assert status == 200
    file = {"path": json.loads(sent)[0], "meta": {"_type": "gradio.FileData"}, "orig_name": "words.mp4"}
    answers = [sent, json.dumps(config), ask(address, "/")[1]]
    for number, call in calls.items():
        for data in (
            [],
            [None] * len(call["inputs"]),
            [file, "hold"],
            ["x" * 9000] * 9,
            [{"a": 1}, [], 1e400],
            "x",
            None,
        ):
            session = uuid.uuid4().hex
            event = {"data": data, "fn_index": number, "session_hash": session, "trigger_id": None}
            status, body = ask(address, "/gradio_api/queue/join", json.dumps(event).encode())
            answers.append(body)
            if status == 200 and isinstance(data, list):
                answers.append(listen(address, session))
    for body in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"data": ' + b"9" * 5000 + b"}"):
        for path in ("/gradio_api/queue/join", "/gradio_api/run/predict", "/gradio_api/upload", "/gradio_api/api/x"):
            answers.append(ask(address, path, body)[1])
    answers += [
        ask(address, path)[1] for path in ("/gradio_api/file=/", "/gradio_api/x", "/%00", "/..", "/static/%2e%2e")
    ]
    assert any("not a video this page can read" in answer for answer in answers), "the event did reach our code"
    for answer in answers:
        for word in ("inlay-serve-", "site-packages", "Traceback", "pytest-of-", str(Path.home()) + "/"):
            assert word not in answer, answer[:2000]


def test_nothing_is_offered_to_programs_and_no_one_is_told(address: str) -> None:
    info = json.loads(ask(address, "/gradio_api/info")[1])
    assert info["named_endpoints"] == {} and info["unnamed_endpoints"] == {}
    config = json.loads(ask(address, "/config")[1])
    assert config["analytics_enabled"] is False
    assert ask(address, "/docs")[0] == ask(address, "/redoc")[0] == 404


def test_the_page_names_no_other_host(address: str) -> None:
    _, page = ask(address, "/")
    for tag in ("<script", "<link", "<img"):
        for part in page.split(tag)[1:]:
            assert "//" not in part.split(">")[0].replace(address, "/"), part[:200]


def test_only_this_machine_is_listened_to(address: str) -> None:
    assert urllib.parse.urlsplit(address).hostname == "127.0.0.1"
