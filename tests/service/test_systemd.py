"""The units under a real systemd, booted in namespaces of its own; and the commands of the documents as they stand."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.experiment.reader import open_experiment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "systemd" / "README.md").read_text()
BUSY = ("[Unit]\nDefaultDependencies=no\n[Service]\nUser=nobody\nExecStart=/usr/bin/python3 -c "
        "\"import time\\nwhile True: sum(range(10000)); time.sleep(0.01)\"\n")
UNLIMITED = "[daemon]\nbudget_percent = 0\n"  # replies tell what a budget changes
WEB = '[[target]]\nname = "web"\nunit = "busy.service"\n'
INSTALL = str(ROOT / "scripts" / "install-service")
TLS = ("server { listen 127.0.0.1:443 ssl; ssl_certificate cert.pem; ssl_certificate_key key.pem; "
       "location / { return 200 hello; } }\n")
LOAD = "while :; do openssl s_time -connect 127.0.0.1:443 -www / -new -time 11; done"
LAKE = """
import os, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/lake.sock")
os.chmod("/run/lake.sock", 0o666)
listener.listen()
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as file:
        head = [line for line in iter(file.readline, b"\\r\\n")]
        body = file.read(next(int(line[15:]) for line in head if line.startswith(b"Content-Length:")))
        for content, name in (head[0], "asked"), (body, "profile"):
            with open("/tmp/new", "wb") as new:
                new.write(content)
            os.rename("/tmp/new", f"/tmp/{name}")
        connection.sendall(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")
"""
PATIENCE_S = 60
EXPOSURE_MAX = 2.5
Machine = Any  # of conftest.py


def until(what: Callable[[], object], machine: Machine) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, machine.run("journalctl", "--no-pager", "-n", "40")
        time.sleep(0.05)


def capabilities(machine: Machine, path: str) -> int:
    """Those of the recording that writes to a path, which cannot get others."""
    pid = machine.run("pgrep", "-f", path).split()[0]
    status = dict(re.findall(r"(\w+):\t(.*)", machine.run("cat", f"/proc/{pid}/status")))
    assert status["NoNewPrivs"] == "1"
    assert len({status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}) == 1
    return int(status["CapEff"], 16)


@pytest.fixture(scope="module", autouse=True)
def busy(machine: Machine) -> None:
    machine.write("/etc/systemd/system/busy.service", BUSY)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "busy.service", "collectord.socket")


def test_a_connection_starts_the_daemon_and_it_is_active_when_it_is_ready(machine: Machine) -> None:
    machine.run("systemctl", "stop", "collectord.service")
    machine.write("/etc/collectord.toml", UNLIMITED)
    assert machine.show("collectord.service", "ActiveState") == "inactive"
    assert machine.ask("list", uid=65534)["sessions"] == []
    assert machine.show("collectord.service", "ActiveState") == "active"
    assert machine.show("collectord.service", "StatusText").startswith("0 sessions")
    machine.run("systemctl", "stop", "collectord.service")
    machine.run("systemctl", "start", "collectord.service")
    assert machine.show("collectord.service", "SubState") == "running"


def test_the_units_exposure_is_small(machine: Machine) -> None:
    for unit in ("collectord.service", "collectord@.service"):
        said = machine.run("systemd-analyze", "security", "--offline=true", f"/etc/systemd/system/{unit}")
        figure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
        assert figure is not None, said
        assert float(figure[1]) <= EXPOSURE_MAX, said


def test_each_line_of_the_units_is_explained() -> None:
    for unit in ("collectord.service", "collectord@.service"):
        for line in (ROOT / "systemd" / unit).read_text().split("[Service]")[1].split("[Install]")[0].splitlines():
            name = line.partition("=")[0]
            assert not name or name.startswith(("#", "[")) or f"`{name}" in README, f"{unit}: {line}"


def test_a_units_next_process_is_taken_up_and_all_of_it_opens(machine: Machine) -> None:
    reply = machine.ask("attach", "--unit", "busy.service", "-p", "hi")
    name = str(reply["id"])
    assert reply["message"] == "recording"
    first = machine.session(name)["pids"]
    machine.run("systemctl", "restart", "busy.service")


    def is_taken_up() -> bool:
        session = machine.session(name)
        return session["state"] == "recording" and session["pids"] not in ([], first)

    until(is_taken_up, machine)
    assert machine.session(name)["labels"]["unit"] == "busy.service"
    machine.run("collectctl", "stop", name)
    until(lambda: machine.session(name)["state"] == "stopped", machine)
    with tarfile.open(fileobj=io.BytesIO(machine.binary("collectctl", "fetch", name))) as archive:
        logs = [member.name for member in archive if member.name.endswith("log.xml")]
    assert logs == [f"{name}.{number}.er/log.xml" for number in (1, 2)]


def test_an_ordinary_user_gets_experiments_of_its_own(machine: Machine) -> None:
    name = str(machine.ask("attach", "--unit", "busy.service", uid=65534)["id"])
    assert capabilities(machine, f"users/65534/{name}/") == 0
    assert set(machine.session(name)["labels"]) == {"boot", "build", "cgroup", "host", "unit"}
    machine.run("collectctl", "stop", name, uid=65534)
    until(lambda: machine.session(name)["state"] == "stopped", machine)
    session = machine.session(name)
    path = f"{session['directory']}/{session['experiments'][0]}"
    assert machine.run("stat", "-c", "%u %a", path) == "65534 700\n"
    assert f"{name}.1.er" in machine.run("er_print", "-header", path, uid=65534)
    refused = machine.run("collectctl", "attach", "--unit", "busy.service", uid=1234, fails=True)
    assert "the process belongs to another user" in refused


def test_a_control_group_is_recorded_with_those_below(machine: Machine) -> None:
    reply = machine.ask("attach", "--cgroup", "/system.slice/busy.service", "-t", "1")
    until(lambda: machine.session(str(reply["id"]))["state"] == "finished", machine)
    assert machine.session(str(reply["id"]))["labels"]["cgroup"] == "/system.slice/busy.service"
    reply = machine.ask("attach", "--cgroup", "/system.slice/none", "-t", "1")
    assert reply["message"] == "waiting: there is no process of cgroup /system.slice/none"
    machine.run("collectctl", "stop", str(reply["id"]))


def test_reload_and_stop_lose_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.write("/etc/collectord.toml", "")
    machine.run("systemctl", "stop", "collectord.service")
    machine.run("rm", "-rf", "/var/lib/collectord/own/web", "/var/lib/collectord/sessions/web.json")
    machine.run("systemctl", "start", "collectord.service")
    target = WEB + 'options = ["-p", "hi"]\n'
    machine.write("/etc/collectord.toml", target)
    machine.run("systemctl", "reload", "collectord.service")
    until(lambda: machine.session("web")["state"] == "recording", machine)
    name = machine.session("web")["experiments"][-1]
    pids = machine.run("pgrep", "-f", name)
    assert capabilities(machine, name) == sum(1 << number for number in (2, 19, 34, 38))
    machine.write("/etc/collectord.toml", target + '\n[[target]]\nname = "bad"\nkeep = "many"\n')
    said = machine.run("systemctl", "reload", "collectord.service", fails=True)
    assert "failed" in said
    refused = "/etc/collectord.toml:8: Expected `int`, got `str`"
    until(lambda: refused in machine.run("journalctl", "-u", "collectord.service"), machine)
    machine.write("/etc/collectord.toml", "[daemon]\nbudget_percent = 50\n" + target)
    machine.run("systemctl", "reload", "collectord.service")
    assert machine.run("pgrep", "-f", name) == pids  # the same process goes on
    machine.run("systemctl", "stop", "collectord.service")
    data = machine.binary("tar", "-C", "/var/lib/collectord/own/web", "-cf", "-", name)
    subprocess.run(["tar", "-C", tmp_path, "-xf", "-"], input=data, check=True)
    experiment = open_experiment(tmp_path / name)
    assert experiment.log.complete
    assert experiment.log.labels["unit"] == "busy.service"
    machine.run("systemctl", "start", "collectord.service")
    until(lambda: len(machine.session("web")["experiments"]) == 2, machine)
    assert machine.session("web")["experiments"][0] == name


def test_recordings_close_when_the_daemon_is_killed(machine: Machine, tmp_path: Path) -> None:
    machine.write("/etc/collectord.toml", UNLIMITED + WEB)
    machine.run("systemctl", "restart", "collectord.service")
    until(lambda: machine.session("web")["state"] == "recording", machine)
    name = str(machine.session("web")["experiments"][-1])
    machine.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "collectord.service")

    folder = "/var/lib/collectord/own/web"
    # It is copied when it is closed: tar objects to files that change.
    until(lambda: 'kind="exit"' in machine.run("cat", f"{folder}/{name}/log.xml"), machine)
    data = machine.binary("tar", "-C", folder, "-cf", "-", name)
    subprocess.run(["tar", "-C", tmp_path, "-xf", "-"], input=data, check=True)
    assert open_experiment(tmp_path / name).log.complete
    until(lambda: machine.show("collectord.service", "ActiveState") == "active", machine)
    assert name in machine.session("web")["experiments"]


def test_the_watchdog_restarts_a_daemon_that_stands_still(machine: Machine) -> None:
    machine.write("/etc/collectord.toml", WEB)
    # So long that it does not stand still by itself, beside others that want the CPUs.
    machine.write("/etc/systemd/system/collectord.service.d/tested.conf", "[Service]\nWatchdogSec=5\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "collectord.service")
    n_restarts, pid = (machine.show("collectord.service", what) for what in ("NRestarts", "MainPID"))
    machine.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", "collectord.service")
    until(lambda: machine.show("collectord.service", "NRestarts") != n_restarts
          and machine.show("collectord.service", "MainPID") not in ("0", pid)
          and machine.show("collectord.service", "ActiveState") == "active", machine)
    machine.run("rm", "-r", "/etc/systemd/system/collectord.service.d")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "collectord.service")  # without a watchdog
    until(lambda: machine.session("web")["state"] == "recording", machine)


def test_the_commands_of_the_readme_work_as_they_stand_there(machine: Machine) -> None:
    """With a target named web."""
    machine.write("/etc/collectord.toml", WEB)
    shell, drop_in = (re.search(rf"```{language}\n(.*?)```", README, re.DOTALL) for language in ("sh", "ini"))
    assert shell is not None
    assert drop_in is not None
    machine.run("sh", "-ec", shell[1])
    machine.write("/etc/systemd/system/collectord.service.d/override.conf", drop_in[1])
    machine.write("/etc/collectord.toml", '[daemon]\nmetrics = "127.0.0.1:9464"\n')
    machine.run("systemctl", "daemon-reload")
    machine.run("ip", "link", "set", "lo", "up")
    machine.run("systemctl", "restart", "collectord.service")
    code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
    assert "collectord_cpu_seconds_total" in machine.run("/usr/bin/python3", "-c", code)
    machine.run("rm", "-r", "/etc/systemd/system/collectord.service.d")
    machine.run("systemctl", "daemon-reload")


def test_experiments_are_handed_over_from_within_the_unit(machine: Machine, tmp_path: Path) -> None:
    """As profiles, by a Unix socket; then to a command, which has no capability."""
    machine.write("/usr/local/bin/lake", LAKE)
    machine.run("systemd-run", "--unit=lake", "--property=DefaultDependencies=no", "/usr/bin/python3",
                "/usr/local/bin/lake")
    target = WEB.replace("web", "pushed") + "record_s = 0.5\nevery_s = 1\n[daemon]\nbudget_percent = 0\n"
    machine.write("/etc/collectord.toml", target + '[handoff]\nurl = "http://unix:/run/lake.sock:/{unit}/{experiment}"\n'
                  "retry_s = 0.5\n")
    machine.run("systemctl", "restart", "collectord.service")
    until(lambda: "profile" in machine.run("ls", "/tmp"), machine)
    (tmp_path / "a.parquet").write_bytes(machine.binary("cat", "/tmp/profile"))
    import duckdb

    found = duckdb.sql(f"SELECT DISTINCT labels['unit'], labels['cgroup'] FROM '{tmp_path}/a.parquet'").fetchall()
    assert found == [("busy.service", "/system.slice/busy.service")]
    assert machine.run("cat", "/tmp/asked").startswith("POST /busy.service/pushed.")
    machine.write("/etc/collectord.toml", target + "[handoff]\ncommand = ['sh', '-c', 'grep ^Cap /proc/self/status "
                  ">/var/lib/collectord/own/said; id -un >>/var/lib/collectord/own/said', 'take', '{}']\n")
    machine.run("systemctl", "reload", "collectord.service")
    until(lambda: "said" in machine.run("ls", "/var/lib/collectord/own"), machine)
    texts = [""]

    def is_whole() -> bool:
        """Each experiment begins it anew."""
        texts.append(machine.run("cat", "/var/lib/collectord/own/said"))
        return "collectord" in texts[-1]

    until(is_whole, machine)
    said = texts[-1].split()
    assert {said[2 * number + 1] for number in (0, 1, 2, 4)} == {"0" * 16}  # all but the bounding set
    machine.write("/etc/collectord.toml", "")
    machine.run("systemctl", "reload", "collectord.service")
    machine.run("systemctl", "stop", "lake.service")


def test_a_target_may_have_a_daemon_of_its_own(machine: Machine) -> None:
    metrics = '[daemon]\nmetrics = "/run/collectord/metrics.sock"\n'
    machine.write("/etc/collectord.toml", f"{metrics}{WEB}own_daemon = true\n")
    machine.run("systemctl", "restart", "collectord.service")
    machine.run("systemctl", "start", "collectord@web.service")
    assert sorted(machine.run("find", "/run", "-name", "metrics.sock").split()) == [
        "/run/collectord-web/metrics.sock", "/run/collectord/metrics.sock"]
    assert machine.show("collectord.service", "StatusText").startswith("0 sessions")
    said = machine.run("collectctl", "--json", "--socket", "/run/collectord-web/socket", "list")
    assert [session["id"] for session in json.loads(said)["sessions"]] == ["web"]
    machine.run("systemctl", "stop", "collectord@web.service")


def test_a_first_time_user_gets_a_page_of_a_server_under_load(machine: Machine, need: Any) -> None:
    """The commands of the README, but for the first: collectord is installed already. Debian's nginx, with TLS."""
    need("/usr/sbin/nginx", "nginx")
    need("openssl", "openssl")
    commands = re.search(r"## As a service\n.*?```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert commands is not None
    install, attach, look = commands[1].splitlines()
    assert install == "sudo scripts/install-service"
    machine.write("/etc/systemd/system/nginx.service.d/tested.conf", "[Unit]\nDefaultDependencies=no\n")
    machine.write("/etc/nginx/conf.d/tls.conf", TLS)
    machine.run("sh", "-ec", "ip link set lo up; systemctl daemon-reload; openssl req -x509 -newkey rsa:2048 -nodes "
                "-subj /CN=localhost -days 1 -keyout /etc/nginx/key.pem -out /etc/nginx/cert.pem")
    machine.run("systemctl", "start", "nginx.service")
    machine.run("systemd-run", "--unit=load", "--property=DefaultDependencies=no", "sh", "-c", LOAD)
    name = re.search(r"session (\d+): recording", machine.run("sh", "-ec", attach.replace("sudo ", "")))
    assert name is not None
    look = look.replace("sudo ", "").replace("fetch 1", f"fetch {name[1]}").replace("1.1.er", f"{name[1]}.1.er")
    printed = machine.run("sh", "-ec", f"cd /tmp; {look}; er_print -calltree -processes {name[1]}.1.er",
                          patience_s=None)
    machine.run("systemctl", "stop", "load.service")
    assert machine.session(name[1])["state"] == "finished"
    assert re.match(r".*\.html: \d+\.\d MB", printed), printed
    for function in ("ngx_process_events_and_timers", "ngx_ssl_handshake", "EVP_Digest"):  # they are stripped
        assert function in printed, printed
    assert len(re.findall(r"^\d.*nginx:, Process +\d, PID \d+$", printed, re.MULTILINE)) > 1  # with its workers
    machine.run("systemctl", "stop", "nginx.service")
    early = machine.ask("attach", "--unit", "busy.service")["id"]
    assert machine.run("sh", "-ec", f"collectctl fetch {early} 2>&1 >/dev/null") == (
        f"collectctl: session {early} is recording: this is what there is by now; --wait waits for it\n")
    machine.run("collectctl", "stop", str(early))


def test_what_was_installed_is_removed(machine: Machine) -> None:
    machine.write("/etc/collectord.toml", f"{WEB}own_daemon = true\n")
    machine.write("/etc/systemd/system/collect@.service", "[Service]\nExecStart=/usr/bin/sleep infinity\n[Unit]\n"
                  "DefaultDependencies=no\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", "collectord@web.service")
    machine.run("systemctl", "start", "collect@nightly.service")
    said = machine.run("sh", "-c", f"{INSTALL} --remove 2>&1")
    assert "install-service: recording goes on, until it is stopped: collect@nightly.service\n" in said
    assert machine.show("collectord@web.service", "ActiveState") == "inactive"
    assert machine.show("collect@nightly.service", "ActiveState") == "active"
    machine.run("rm", "/etc/systemd/system/collect@.service")
    left = machine.run("find", "/etc/systemd/system", "/etc/sysusers.d", "/etc/tmpfiles.d", "/usr/local/bin", "-name",
                       "collect*").split()
    assert left == []
    assert machine.run("ls", "/etc/collectord.toml")
    machine.run(INSTALL, "--bin", str(Path(sys.executable).parent))
    assert machine.show("collectord.service", "ActiveState") == "active"
