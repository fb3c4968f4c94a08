"""The scripted engine as a process of its own, over real HTTP on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.engines.calls import decode, encode
from tests.drift.qwen3 import tokenizer_folder

PATIENCE_S = 30.0
COMMAND = [sys.executable, "-m", "streams.adapters.engines.scripted"]
Lines = list[dict[str, Any]]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Never by a proxy, whatever the environment says."""


@contextmanager
def running(script: dict[str, Any], folder: Path) -> Iterator[str]:
    """The address of an engine that plays the script; it is gone afterwards."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    options = ["--script", path, "--tokenizer", tokenizer_folder(), "--journal", folder / "journal"]
    process = subprocess.Popen(
        [*COMMAND, *map(str, options)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def asked(url: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with DIRECT.open(f"{url}{path}", data, PATIENCE_S) as answer:
        return bytes(answer.read())


def generation(prompt: str = "How big?", **sampling: Any) -> dict[str, Any]:
    return {
        "request_id": "r1",
        "routing_key": "s1",
        "input_ids": encode(prompt),
        "sampling": sampling,
    }


def lines(body: bytes) -> Lines:
    return [json.loads(line) for line in body.splitlines()]


def journal(url: str) -> Lines:
    return lines(asked(url, "/journal"))


def journal_at_last(url: str, outcome: str) -> dict[str, Any]:
    """The only entry, once it has ended so."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        (entry,) = journal(url)
        if entry["outcome"] == outcome:
            return entry
        time.sleep(0.02)
    pytest.fail(f"the journal never said {outcome}: {entry}")


def test_what_comes_over_http_is_what_the_journal_says(tmp_path: Path) -> None:
    script = {"answers": [{"text": "It is big.", "chunks": [2]}], "weight_version": 5}
    with running(script, tmp_path) as url:
        asked(url, "/ready")
        came = lines(asked(url, "/generate", generation(max_new_tokens=100)))
        (entry,) = journal(url)
    ids = [token for line in came for token in line["ids"]]
    assert decode(ids) == "It is big.<|im_end|>"
    assert entry["ids"] == ids
    assert entry["logprobs"] == [value for line in came for value in line["logprobs"]]
    assert entry["weight_versions"] == [[5, len(ids)]]
    assert entry["input_ids"] == list(encode("How big?"))
    assert came[-1]["finish"] == entry["finish"] == "stop"
    assert lines((tmp_path / "journal").read_bytes()) == [entry]


def test_a_failure_is_a_status_before_and_a_line_between_tokens(tmp_path: Path) -> None:
    early = {"ids": [1, 2], "fail": {"message": "out of memory"}}
    late = {"ids": [1, 2], "fail": {"after": 1, "retryable": False}}
    with running({"answers": [early, late]}, tmp_path) as url:
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(url, "/generate", generation())
        came = lines(asked(url, "/generate", generation()))
    assert refused.value.code == 503
    assert json.loads(refused.value.read()) == {
        "error": "scripted engine: out of memory",
        "retryable": True,
    }
    refused.value.close()
    assert came[0]["ids"] == [1]
    assert came[1] == {"error": "scripted engine: the script says so", "retryable": False}


def test_weights_change_over_http_and_stop_what_is_under_way(tmp_path: Path) -> None:
    script = {"answers": [{"ids": [1, 2, 3], "gap_ms": 60_000}]}
    with running(script, tmp_path) as url:
        data = json.dumps(generation()).encode()
        with DIRECT.open(f"{url}/generate", data, PATIENCE_S) as answer:
            first = json.loads(answer.readline())
            asked(url, "/weights", {"version": 2, "label": "two"})
            last = json.loads(answer.readline())
    assert first["ids"] == [1]
    assert (last["ids"], last["finish"], last["stop_reason"]) == ([], "abort", "weights 2")


def test_a_generation_is_stopped_over_http(tmp_path: Path) -> None:
    with running({"answers": [{"ids": [1, 2], "gap_ms": 60_000}]}, tmp_path) as url:
        data = json.dumps(generation()).encode()
        with DIRECT.open(f"{url}/generate", data, PATIENCE_S) as answer:
            answer.readline()
            asked(url, "/abort", {"request_id": "r1"})
            assert json.loads(answer.readline())["finish"] == "abort"


def test_a_client_that_hangs_up_ends_its_generation(tmp_path: Path) -> None:
    with running({"answers": [{"ids": [1, 2], "gap_ms": 60_000}]}, tmp_path) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(generation()).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), PATIENCE_S) as line:
            line.sendall(head.encode() + body)
            received = b""
            while b'"ids"' not in received:
                received += line.recv(4096)
        entry = journal_at_last(url, "closed")
    assert (entry["ids"], entry["taken"]) == ([1], 1)


WRONG: Lines = [
    {},
    {"request_id": "r", "routing_key": "s", "input_ids": [2**31]},
    {"request_id": 5},
]


def test_a_body_that_is_no_request_is_refused(tmp_path: Path) -> None:
    with running({"otherwise": {"ids": [1]}}, tmp_path) as url:
        for body in WRONG:
            with pytest.raises(urllib.error.HTTPError) as refused:
                asked(url, "/generate", body)
            assert refused.value.code == 400
            refused.value.close()
        assert journal(url) == []


def failing(*options: str) -> str:
    done = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_cannot_be_played_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert "bad.json" in failing("--script", str(bad))
    assert "tokenizer" in failing()
    assert "bad.json" in failing("--tokenizer", str(bad))


def test_a_port_in_use_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"otherwise": {"ids": [1]}}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in failing("--script", str(script), "--port", port)


def test_it_runs_without_a_script(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--tokenizer", str(tokenizer_folder())],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        came = lines(asked(url, "/generate", generation()))
        assert "scripted engine" in decode([token for line in came for token in line["ids"]])
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
