"""Which bytes are a call: every instruction of real code, as objdump disassembles it, is the judge."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from collector.elf import open_object
from collector.unwind.table import ARCHITECTURES

_LINE = re.compile(r"\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t(.*)")


@pytest.mark.parametrize("path", ["/usr/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib32/libm.so.6", "/usr/bin/xz"])
def test_every_call_is_known_and_few_others_are(path: str, need: Callable[[str, str], str]) -> None:
    need("/usr/lib32/libm.so.6", "gcc-multilib")
    need("/usr/bin/xz", "xz-utils")
    text = subprocess.run([need("objdump", "binutils"), "-dw", path], capture_output=True, text=True, check=True,
                          timeout=60).stdout
    calls = missed = others = wrong = 0
    with open_object(path) as load_object:
        arch = ARCHITECTURES[load_object.machine]
        for line in text.splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            end = int(match[1], 16) + len(match[2].split())
            found = arch.is_call_before(load_object.read_at(end - arch.longest_call, arch.longest_call))
            if re.match(r"(?:bnd |notrack )*call\b", match[3]):
                calls += 1
                missed += not found
            else:
                others += 1
                wrong += found
    assert calls > 100
    assert missed == 0
    assert wrong < others / 50
