"""What a client and the daemon say to each other: JSON messages, one a line, each with the version of the protocol.

    -> {"request":"attach","version":1,"pids":[4711],"options":["-p","hi"]}
    <- {"reply":"started","version":1,"id":"7","message":"..."}

A request is answered by one reply, but for ``fetch``: there, each ``chunk`` is followed by that many bytes of a tar
archive, and ``done`` or ``failed`` ends them; and for ``top``: a ``sessions`` for each look, until the client closes.
``protocol.schema.json`` is made of these types by ``schema()``. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from collector.errors import CollectorError, shown

VERSION = 1
MESSAGE_MAX = 65_536  # bytes of a line
CHUNK_MAX = 1 << 20
PIDS_MAX = 256
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.@:-]{0,63}$(?!\n)"

Version: TypeAlias = Literal[1]
Id: TypeAlias = Annotated[str, Meta(pattern=NAME, max_length=64)]
Text: TypeAlias = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]*$(?!\n)")]
Pid: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 22)]  # PID_MAX_LIMIT of Linux
Labels: TypeAlias = Annotated[dict[Id, Text], Meta(max_length=16)]


class ProtocolError(CollectorError):
    """A message that is none, or of another version."""


class Request(Struct, frozen=True, forbid_unknown_fields=True, tag_field="request", kw_only=True):
    """What a client asks for."""

    version: Version


class Attach(Request, frozen=True, tag="attach"):
    """Record processes: those of ``pids``, or those that are found by one of the other three, now and later.

    ``options`` are those of ``collect`` that say what is recorded, see ``wishes``.
    """

    pids: Annotated[tuple[Pid, ...], Meta(max_length=PIDS_MAX)] = ()
    unit: Text | None = None
    cgroup: Text | None = None
    command: Text | None = None
    options: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    labels: Labels = {}


class List(Request, frozen=True, tag="list"):
    """The sessions that the peer may see, with these labels."""

    labels: Labels = {}


class Status(Request, frozen=True, tag="status"):
    """One session."""

    id: Id


class Control(Request, frozen=True, tag="control"):
    """Do something to a session's run."""

    id: Id
    action: Literal["pause", "resume", "sample", "stop"]


class Fetch(Request, frozen=True, tag="fetch"):
    """The experiments of a session, as a tar archive; ``last``: only so many, the newest."""

    id: Id
    last: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Top(Request, frozen=True, tag="top"):
    """The sessions that the peer may see, again and again."""

    every_s: Annotated[float, Meta(ge=0.2, le=3600)] = 2.0


class Doctor(Request, frozen=True, tag="doctor"):
    """What is wrong."""


class Reload(Request, frozen=True, tag="reload"):
    """Read the configuration again."""


AnyRequest: TypeAlias = Attach | List | Status | Control | Fetch | Top | Doctor | Reload


class Reply(Struct, frozen=True, tag_field="reply", kw_only=True):
    """What the daemon answers."""

    version: int = VERSION


class Done(Reply, frozen=True, tag="done"):
    """It was done."""

    message: str = ""


class Failed(Reply, frozen=True, tag="failed"):
    """It was not, and why."""

    error: str


class Started(Reply, frozen=True, tag="started"):
    """A new session."""

    id: str
    message: str = ""


class Session(Struct, frozen=True, kw_only=True):
    """A session as a client sees it. Times are seconds since 1970; ``share`` is the target's part of a CPU. Of the
    experiments, so many wait to be handed over, and so many were refused."""

    id: str
    uid: int
    state: str
    target: str
    directory: str
    began_s: float
    configured: bool = False
    pids: tuple[int, ...] = ()
    labels: dict[str, str] = {}
    experiments: tuple[str, ...] = ()
    n_bytes: int = 0
    n_samples: int = 0
    n_runs: int = 0
    interval: str = ""
    share: float = 0.0
    own_share: float = 0.0
    message: str = ""
    said: tuple[str, ...] = ()
    n_waiting: int = 0
    n_refused: int = 0


class Sessions(Reply, frozen=True, tag="sessions"):
    """Sessions that the peer may see."""

    sessions: tuple[Session, ...]
    own_share: float = 0.0
    stretched: float = 1.0


class Chunk(Reply, frozen=True, tag="chunk"):
    """This many bytes follow behind the line."""

    length: Annotated[int, Meta(ge=1, le=CHUNK_MAX)]


class Finding(Struct, frozen=True):
    """Something that the daemon knows of itself: ``wrong``, and what to do."""

    wrong: bool
    text: str


class Findings(Reply, frozen=True, tag="findings"):
    """What the daemon found when it looked."""

    findings: tuple[Finding, ...]


AnyReply: TypeAlias = Done | Failed | Started | Sessions | Chunk | Findings

_request = msgspec.json.Decoder(AnyRequest)
_reply = msgspec.json.Decoder(AnyReply)


def request(line: bytes) -> AnyRequest:
    """A request from its line. Raises ProtocolError, which names the field that is wrong."""
    message: AnyRequest = _decoded(_request, line)
    return message


def reply(line: bytes) -> AnyReply:
    """A reply from its line. Raises ProtocolError."""
    message: AnyReply = _decoded(_reply, line)
    return message


def _decoded(decoder: Any, line: bytes) -> Any:
    try:
        return decoder.decode(line.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise ProtocolError(f"not a message of version {VERSION}: {shown(str(err))[:500]}") from None


def encoded(message: Request | Reply) -> bytes:
    """The line of a message. Strings of a reply are made printable first: names of processes are anybody's."""
    return msgspec.json.encode(message) + b"\n"


def schema() -> dict[str, Any]:
    """The JSON schema of all messages."""
    schemas, components = msgspec.json.schema_components((AnyRequest, AnyReply), ref_template="#/$defs/{name}")
    _clean(components)
    request_schema, reply_schema = schemas
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "collectord, protocol version 1",
            "$defs": {"request": request_schema, "reply": reply_schema, **components}, "oneOf": [
                {"$ref": "#/$defs/request"}, {"$ref": "#/$defs/reply"}]}


def _clean(components: dict[str, dict[str, Any]]) -> None:
    """Docstrings without their indent, which some versions of msgspec leave in."""
    import inspect

    for component in components.values():
        if "description" in component:
            component["description"] = inspect.cleandoc(component["description"])


def schema_text() -> str:
    """The schema as the project's file has it."""
    return msgspec.json.format(msgspec.json.encode(schema(), order="sorted"), indent=2).decode() + "\n"
