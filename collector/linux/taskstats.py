"""What the kernel tells of each thread of the machine as it ends (taskstats, Documentation/accounting): messages of
generic netlink. For who may administer networks, outside of namespaces of users and processes. Standard library only.
"""

from __future__ import annotations

import os

from collector.linux import abi
from collector.linux.libc import Messages, netlink_socket

SIZE = 2048  # of one message at most: a thread's, and in the end that of its process
MOST = 128  # messages at a time
_MOST_ERRORS = 3  # in one go
_WAITING_BYTES = 1 << 23  # the kernel takes the double
_HEADERS = abi.NETLINK_HEADER.size + abi.NETLINK_COMMAND.size


class ExitMessages:
    """Listens from now on. Raises OSError where the kernel does not tell us."""

    def __init__(self) -> None:
        self._fd = netlink_socket(abi.NETLINK_GENERIC, _WAITING_BYTES)
        try:
            family = _family(self._ask(abi.NETLINK_CONTROLLER, abi.CTRL_CMD_GETFAMILY, abi.CTRL_ATTR_FAMILY_NAME,
                                       b"TASKSTATS"))
            with open("/sys/devices/system/cpu/possible", "rb", buffering=0) as file:
                cpus = file.read().strip()
            self._ask(family, abi.TASKSTATS_CMD_GET, abi.TASKSTATS_CMD_ATTR_REGISTER_CPUMASK, cpus)
        except BaseException:
            self.close()
            raise

    def receive(self, messages: Messages) -> int:
        """How many messages of up to SIZE bytes have come since the last call, at most as many as there is room for.

        The socket may tell that a message did not come to it (ENOBUFS): the others are there all the same.
        """
        for _ in range(_MOST_ERRORS):
            try:
                return messages.receive(self._fd)
            except BlockingIOError:
                break
            except OSError:
                continue
        return 0

    def close(self) -> None:
        """No more messages. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _ask(self, kind: int, command: int, attribute: int, text: bytes) -> bytes:
        """The kernel's answer to a command, if it has one besides that it was done."""
        text += b"\0"
        body = (abi.NETLINK_COMMAND.pack(command, 1)
                + abi.NETLINK_ATTRIBUTE.pack(abi.NETLINK_ATTRIBUTE.size + len(text), attribute)
                + text.ljust(_padded(len(text)), b"\0"))
        header = abi.NETLINK_HEADER.pack(abi.NETLINK_HEADER.size + len(body), kind,
                                         abi.NLM_F_REQUEST | abi.NLM_F_ACK, 0, 0)
        os.write(self._fd, header + body)
        answer = b""
        while True:
            message = os.read(self._fd, 1 << 14)
            if abi.NETLINK_HEADER.unpack_from(message)[1] == abi.NLMSG_ERROR:
                (code,) = abi.NETLINK_ERRNO.unpack_from(message, abi.NETLINK_HEADER.size)
                if code:
                    raise OSError(-code, f"taskstats: {os.strerror(-code)}")
                return answer
            answer = message


def _family(answer: bytes) -> int:
    """The number of a family of messages, as the controller tells it."""
    at = _HEADERS
    while at + abi.NETLINK_ATTRIBUTE.size <= len(answer):
        length, attribute = abi.NETLINK_ATTRIBUTE.unpack_from(answer, at)
        if attribute == abi.CTRL_ATTR_FAMILY_ID:
            return int(abi.NETLINK_FAMILY.unpack_from(answer, at + abi.NETLINK_ATTRIBUTE.size)[0])
        at += max(_padded(length), abi.NETLINK_ATTRIBUTE.size)
    raise OSError("taskstats: the kernel does not say which messages are its")


def _padded(length: int) -> int:
    return length + 3 & ~3
