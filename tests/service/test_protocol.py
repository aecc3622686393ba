"""What clients send: the schema, messages that are none, and a daemon that goes on serving whatever comes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.service import protocol
from collector.service.client import DaemonRefused
from collector.service.protocol import ProtocolError

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Path(protocol.__file__).with_name("protocol.schema.json")
N_EXAMPLES = int(os.environ.get("COLLECTORD_EXAMPLES", "300"))  # 100000 take a minute or two
VALID = (
    protocol.Attach(version=1, pids=(1, 2), unit=None, options=("-p", "hi"), labels={"tier": "front"}),
    protocol.Attach(version=1, command="nginx: worker"),
    protocol.List(version=1, labels={"unit": "nginx.service"}),
    protocol.Status(version=1, id="web"),
    protocol.Control(version=1, id="7", action="pause"),
    protocol.Fetch(version=1, id="7", last=3),
    protocol.Top(version=1, every_s=0.5),
    protocol.Doctor(version=1),
    protocol.Reload(version=1),
)
BAD = (
    (b"", "truncated"),
    (b"[]", "Expected `object`"),
    (b"{}", "missing required field `request`"),
    (b'{"request":"list"}', "missing required field `version`"),
    (b'{"request":"list","version":2}', r"Invalid enum value 2 - at `\$\.version`"),
    (b'{"request":"launch","version":1}', "Invalid value 'launch'"),
    (b'{"request":"list","version":1,"path":"/"}', "unknown field `path`"),
    (b'{"request":"status","version":1,"id":"../../etc"}', "matching regex"),
    (b'{"request":"status","version":1,"id":"a\\n"}', "matching regex"),
    (b'{"request":"attach","version":1,"pids":[0]}', "`int` >= 1"),
    (b'{"request":"attach","version":1,"pids":[1e3]}', "got `float`"),
    (b'{"request":"attach","version":1,"pids":' + b"[1" + b",1" * 256 + b"]}", "length <= 256"),
    (b'{"request":"attach","version":1,"unit":"a\\u0000b"}', "matching regex"),
    (b'{"request":"attach","version":1,"unit":"\xff"}', "utf-8"),
    (b'{"request":"control","version":1,"id":"1","action":"kill"}', "Invalid enum value"),
    (b'{"request":"top","version":1,"every_s":0}', "`float` >= 0.2"),
    (b"[" * 60_000, "not a message"),
)


def test_the_schema_in_the_project_is_that_of_the_types_and_judges_alike() -> None:
    assert SCHEMA.read_text() == protocol.schema_text(), "write protocol.schema_text() into the file"
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    for message in VALID:
        assert protocol.request(protocol.encoded(message)) == message
        judge.validate(json.loads(protocol.encoded(message)))
    for line, why in BAD[1:13]:
        if "got `float`" not in why:  # 1e3 is an integer to JSON schema
            assert not judge.is_valid(json.loads(line)), line


@pytest.mark.parametrize(("line", "why"), BAD, ids=range(len(BAD)))
def test_what_is_no_message_is_refused_with_the_reason(line: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        protocol.request(line)


@given(st.one_of(st.binary(max_size=200), st.sampled_from(VALID).flatmap(lambda m: st.binary(max_size=3).flatmap(
    lambda junk: st.integers(0, len(protocol.encoded(m))).map(lambda at: protocol.encoded(m)[:at] + junk)))))
@settings(max_examples=N_EXAMPLES)
def test_any_bytes_are_a_message_or_an_error(line: bytes) -> None:
    try:
        message = protocol.request(line)
    except ProtocolError as err:
        assert "\n" not in str(err)
    else:
        assert protocol.request(protocol.encoded(message)) == message


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), lambda inner:
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)))
@settings(max_examples=max(N_EXAMPLES // 6, 50))
def test_a_field_of_any_kind_is_taken_or_refused_and_never_anything_else(value: Any) -> None:
    for message in VALID:
        fields = json.loads(protocol.encoded(message))
        for name in fields:
            with suppress(ProtocolError):
                protocol.request(json.dumps({**fields, name: value}).encode())


def test_a_daemon_answers_or_closes_and_goes_on_serving() -> None:
    """100,000 messages and a minute of hypothesis are this script without these numbers."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "fuzz-daemon", "--messages", "1500", "--examples", "60",
                           "--seed", "5"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for count in (r"\d{4} malformed", r"\d\d conversations", r"\d\d messages", r"\d+ answered by failed"):
        assert re.search(count, done.stdout), done.stdout


def test_names_of_processes_may_hold_anything(daemon: Callable[[str], Any], process: Callable[..., Any]) -> None:
    running = daemon("")
    hostile = process(os.geteuid(), "/usr/bin/python3", "-c", "import time; time.sleep(1000)", "a\n<b>\x1b[2J",
                      os.fsdecode(b"\xff\xfe"))
    started = running.ask(protocol.Attach(version=1, command=r"<b>", options=("-A", "off")))
    session = running.session(started.id)
    assert session.pids == (hostile.pid,)
    assert running.ctl("status", started.id).stdout.isprintable() is False  # newlines between the lines
    assert "\x1b" not in running.ctl("status", started.id).stdout
    assert running.ctl("stop", started.id).returncode == 0


def replies(running: Any, n: int) -> list[str]:
    """What root is told who asks n times at once."""
    told = []
    with running.client() as client:
        for _ in range(n):
            try:
                told.append(type(client.ask(protocol.List(version=1))).__name__)
            except DaemonRefused as err:
                told.append(str(err))
    return told


def test_requests_are_limited_by_what_was_read_last(daemon: Callable[[str], Any]) -> None:
    running = daemon("[limits]\nrequests_per_second = 3\n")
    assert "more than 3 requests a second; wait" in replies(running, 10)
    running.config.write_text("[limits]\nrequests_per_second = 1000\n")
    running.process.send_signal(signal.SIGHUP)
    running.until(lambda: running.log.read_text().count("configuration read"))
    assert replies(running, 101) == ["Sessions"] * 101


def test_a_reply_is_no_request_and_the_other_way_round() -> None:
    with pytest.raises(ProtocolError):
        protocol.request(protocol.encoded(protocol.Done()))
    with pytest.raises(ProtocolError):
        protocol.reply(protocol.encoded(protocol.List(version=1)))
    assert msgspec.json.decode(protocol.encoded(protocol.Done()))["version"] == protocol.VERSION
