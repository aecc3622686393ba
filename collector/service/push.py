"""Sends a file to a URL, once: a process of its own, which the daemon starts for each attempt and waits for.

    http://unix:/run/agent.sock:/v1/profiles        a Unix socket, as nginx writes it
    https://lake/profiles/{host}/{experiment}       braces: labels of the experiment, ``experiment``, ``session``

The body is read from the file as it is sent. The exit status says what came of it (sysexits.h), the last line of
standard error why; where the server says so, a line ``retry-after: SECONDS`` stands before it. Nothing is imported but
the standard library.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import BinaryIO, NamedTuple
from urllib.parse import quote, urlsplit

from collector import __version__
from collector.errors import UsageError

DONE, REFUSED, LATER = 0, 65, 75  # EX_OK, EX_DATAERR, EX_TEMPFAIL
RETRY_AFTER_MAX_S = 3600.0
_SILENCE_S = 30.0
_REASON_MAX, _ANSWER_MAX = 200, 4096
_TRY_AGAIN = frozenset({408, 425, 429})  # beside all from 500 on
_UNIX = re.compile(r"http://unix:(/[^:]+):(/.*)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]{0,63}")


class Address(NamedTuple):
    """Where to: a host and port, or the path of a socket; and what is asked for there."""

    is_https: bool
    host: str
    port: int | None
    socket: str
    target: str


def address(url: str) -> Address:
    """Raises UsageError."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError("url: there are characters in it that a URL cannot have; write them as %XX")
    if (unix := _UNIX.fullmatch(url)) is not None:
        return Address(False, "localhost", None, unix[1], unix[2])
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as err:
        raise UsageError(f"url: {err}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or _BRACES.search(parts.netloc):
        raise UsageError("url: give http://HOST/PATH, https://HOST/PATH or http://unix:/SOCKET:/PATH")
    if parts.username is not None or parts.fragment:
        raise UsageError("url: there can be no user, password or fragment in it: whoever looks at processes reads it")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    is_https = parts.scheme == "https"
    port = port if port is not None else 443 if is_https else 80  # or a part of an IPv6 address is taken for it
    return Address(is_https, parts.hostname, port, "", target)


def filled(url: str, labels: Mapping[str, str]) -> str:
    """With labels for what stands in braces, quoted, each one part of a path; ``none`` for what is not known."""
    return _BRACES.sub(lambda found: _part(labels.get(found[1]) or "none"), url)


def _part(text: str) -> str:
    return quote(text, safe="") if text.strip(".") else "none"  # what is nothing but dots would lead elsewhere


def check(url: str) -> None:
    """Raises UsageError where a URL of the configuration cannot be one."""
    for name in _BRACES.findall(url):
        if not _NAME.fullmatch(name):
            raise UsageError(f"url: {{{name}}}: give the name of a label in the braces, such as {{host}}")
    rest = _BRACES.sub("x", url)
    if "{" in rest or "}" in rest:
        raise UsageError("url: a brace stands alone in it; write it as %7B or %7D")
    before = address(rest)
    if address(_BRACES.sub("y", url))[:4] != before[:4]:
        raise UsageError("url: braces may stand in its path alone")


class _Unix(http.client.HTTPConnection):
    """To a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SILENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def send(to: Address, method: str, body: BinaryIO, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """One request, with a file's bytes as its body; the answer. Raises OSError, HTTPException."""
    connection: http.client.HTTPConnection
    if to.socket:
        connection = _Unix(to.socket)
    elif to.is_https:
        connection = http.client.HTTPSConnection(to.host, to.port, timeout=_SILENCE_S,
                                                 context=ssl.create_default_context())
    else:
        connection = http.client.HTTPConnection(to.host, to.port, timeout=_SILENCE_S)
    size = os.fstat(body.fileno()).st_size
    try:
        connection.request(method, to.target, body, {"Content-Length": str(size), "Connection": "close", **headers})
    except (BrokenPipeError, ConnectionResetError) as err:
        try:  # why it would not read all of it, it may have said before it closed
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            raise err from None
    return connection.getresponse()


def judged(response: http.client.HTTPResponse) -> tuple[int, str]:
    """The exit status for an answer, and why."""
    text = ""
    with suppress(OSError, http.client.HTTPException):
        text = response.read(_ANSWER_MAX).decode("utf-8", "replace").strip().partition("\n")[0]
    why = f"HTTP status {response.status} {response.reason}{f': {text}' if text else ''}"
    why = "".join(each if each.isprintable() else " " for each in why)[:_REASON_MAX]
    if 200 <= response.status < 300:
        return DONE, why
    if 300 <= response.status < 400:
        return REFUSED, f"{why}; redirections are not followed, give the address itself"
    return LATER if response.status in _TRY_AGAIN or response.status >= 500 else REFUSED, why


def retry_after_s(text: str | None, now_s: float) -> float:
    """Seconds that a server asks us to wait, by number or date; 0 where it does not."""
    if not text:
        return 0.0
    if text.strip().isascii() and text.strip().isdigit():
        return min(float(text.strip()[:9]), RETRY_AFTER_MAX_S)
    try:
        return min(max(parsedate_to_datetime(text).timestamp() - now_s, 0.0), RETRY_AFTER_MAX_S)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def command(url: str, method: str, kind: str, experiment: str, path: str) -> list[str]:
    """The arguments of the process; ``kind`` is the content's type."""
    return [sys.executable, "-I", "-c", "import sys; from collector.service.push import main; "
            "sys.exit(main(sys.argv[1:]))", url, method, kind, experiment, path]


def main(argv: list[str]) -> int:
    """One attempt; the exit status."""
    url, method, kind, experiment, path = argv
    with open(path, "rb") as body:
        status, why, wait_s = attempt(address(url), method, body, {
            "Content-Type": kind, "User-Agent": f"collectord/{__version__}", "Collect-Experiment": experiment})
    if wait_s:
        sys.stderr.write(f"retry-after: {wait_s:.0f}\n")
    sys.stderr.write("".join(each if each.isprintable() else " " for each in why) + "\n")
    return status


def attempt(to: Address, method: str, body: BinaryIO, headers: Mapping[str, str]) -> tuple[int, str, float]:
    """The exit status, why, and the seconds that the server asks us to wait."""
    try:
        response = send(to, method, body, headers)
        status, why = judged(response)
        return status, why, retry_after_s(response.getheader("Retry-After"), time.time()) if status == LATER else 0.0
    except ssl.SSLCertVerificationError as err:
        return LATER, f"the certificate cannot be verified: {err.verify_message}", 0.0
    except TimeoutError:
        return LATER, f"nothing came or went for {_SILENCE_S:g} s", 0.0
    except (OSError, http.client.HTTPException) as err:
        return LATER, str(err) or type(err).__name__, 0.0
