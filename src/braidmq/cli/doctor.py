"""`braid doctor`: is this machine fit for a broker, and if not, what to do.

Each check is a function that looks at one thing and says `ok`, `warn` or `fail`, with advice. It looks at what a broker started now
would find: the settings of the same flags, variables and file. Nothing is changed; what is written to measure the disk is removed
again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option
from braidmq.cli.setting_flags import add_setting_flags, given_flags

if TYPE_CHECKING:
    from braidmq.base.config import Config, Listen
    from braidmq.base.config_listen import HttpListen

FREE_BYTES_FEW: Final = 1 << 30
SYNC_MS_SLOW: Final = 20.0
SYNCS: Final = 20
OPEN_FILES_FEW: Final = 4096
CLOCK_MS_OFF: Final = 5000
JAVA_LEAST: Final = 17


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: str
    """`ok`, `warn` or `fail`."""
    text: str
    advice: str = ""


def register(commands: Subparsers) -> None:
    about = "Check whether this machine is fit for a broker, and say what to do."
    more = "Takes the flags of `braid serve`. Status 1 when something would keep a broker from working."
    parser = commands.add_parser("doctor", help=about, description=f"{about} {more}")
    add_output_option(parser)
    add_setting_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, printable
    from braidmq.cli.terminal import paint

    found = list(all_checks(given_flags(args), args.config))
    if args.output == "json":
        print_json([asdict(check) for check in found])
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for check in found:
            print(f"{paint(check.state.ljust(4), colours[check.state], sys.stdout)}  {check.name:<11} {printable(check.text)}")
            if check.advice and check.state != "ok":
                print(f"      {'':<11} {check.advice}")
    return Exit.FAILED if any(check.state == "fail" for check in found) else Exit.OK


def all_checks(flags: dict[str, object], file: str | None) -> Iterator[Check]:
    """Every check; those that need a configuration are left out where there is none."""
    from braidmq.base.config import load_config

    try:
        config = load_config(flags, os.environ, file)
    except BraidError as fault:
        yield Check("config", "fail", str(fault), fault.hint)
        config = None
    yield from check_program()
    if config is not None:
        yield from check_config(config)
        yield from check_data_dir(config.data_dir)
        yield from check_ports(config)
    yield check_open_files()
    yield check_clock()
    yield check_java()


def check_program() -> Iterator[Check]:
    from importlib import metadata

    from braidmq import __version__, hot

    python = sys.version.split()[0]
    yield Check("version", "ok", f"BraidMQ {__version__}, Python {python}")
    if hot.IMPLEMENTATION == "compiled":
        yield Check("hot path", "ok", "compiled")
    else:
        advice = "install a C compiler and the Python headers, then BraidMQ again; BRAID_PURE=1 chooses this one on purpose"
        yield Check("hot path", "warn", "plain Python, several times slower", advice)
    try:
        version = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        yield Check("event loop", "warn", "asyncio's own", "pip install uvloop: about half the time a request")
    else:
        yield Check("event loop", "ok", f"uvloop {version}")


def check_config(config: Config) -> Iterator[Check]:
    warnings = "; ".join(config.warnings)
    yield Check("config", "warn" if warnings else "ok", warnings or "valid", "`braid config show` has it all")
    exposed = [str(listen) for listen in config.listen if listen.host not in ("127.0.0.1", "::1", "localhost")]
    if exposed and not config.auth_enabled:
        advice = "turn auth_enabled on, or listen on 127.0.0.1; whoever reaches the port can read and delete everything"
        yield Check("exposure", "warn", f"{', '.join(exposed)} is open to others, and nobody has to log in", advice)
    if config.admin_enabled and config.admin_listen.host not in ("127.0.0.1", "::1", "localhost") and not config.admin_listen.tls:
        advice = "serve it on 127.0.0.1, or as https:// with a certificate"
        yield Check("exposure", "warn", f"{config.admin_listen} carries administrators' passwords without TLS", advice)
    plain = [str(listen) for listen in config.listen if not listen.tls and str(listen) in exposed]
    if plain and config.auth_enabled:
        advice = "listen on a scheme that ends in s (flymqs://) and set tls_cert_file and tls_key_file"
        yield Check("exposure", "warn", f"{', '.join(plain)} carries passwords without TLS", advice)


def check_data_dir(data_dir: str) -> Iterator[Check]:
    """Can it be written, is there space, and how long does a sync take?"""
    existing = os.path.abspath(data_dir)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        yield Check("data", "fail", f"{data_dir} cannot be written by user {os.geteuid()}", f"chown or chmod {existing}")
        return
    state = "exists" if existing == os.path.abspath(data_dir) else "will be made"
    yield Check("data", "ok", f"{data_dir} {state}")
    stat = os.statvfs(existing)
    free = stat.f_bavail * stat.f_frsize
    enough = free >= FREE_BYTES_FEW
    yield Check("disk space", "ok" if enough else "warn", f"{free / 2**30:.1f} GiB free", "give it more, or set retention_bytes")
    if stat.f_files and stat.f_favail * 20 < stat.f_files:
        yield Check("inodes", "warn", f"{stat.f_favail:,} left", "many small partitions need many files; use another file system")
    yield _check_sync(existing)


def _check_sync(directory: str) -> Check:
    import tempfile

    taken = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(SYNCS):
                file.write(bytes(4096))
                file.flush()
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                taken.append((time.perf_counter() - began) * 1000)
    except OSError as fault:
        return Check("fsync", "fail", f"{directory}: {fault.strerror}", "a broker could not keep anything there")
    median = sorted(taken)[len(taken) // 2]
    text = f"{median:.2f} ms at the middle of {SYNCS}, {max(taken):.2f} ms at worst"
    return Check(
        "fsync", "ok" if median < SYNC_MS_SLOW else "warn", text, "acknowledgements wait for it: use a disk of its own, or an SSD"
    )


def check_ports(config: Config) -> Iterator[Check]:
    import socket

    listeners: list[Listen | HttpListen] = [*config.listen, *config.web_listeners.values()]
    for listen in listeners:
        if listen.port == 0:
            yield Check("port", "ok", f"{listen}: a free one is taken")
            continue
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as fault:
            advice = "a broker runs already (`braid status`), or another program has the port; choose another with --listen"
            yield Check("port", "fail", f"{listen}: {fault.strerror}", advice)
        else:
            yield Check("port", "ok", f"{listen} is free")


def check_open_files() -> Check:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = hard != resource.RLIM_INFINITY and hard < OPEN_FILES_FEW
    advice = "raise the hard limit: LimitNOFILE of the systemd unit, or /etc/security/limits.conf"
    return Check("open files", "warn" if few else "ok", f"{soft:,} now, {hard:,} at most", advice)


def check_clock(wall: Callable[[], float] = time.time, year_least: int = 2024) -> Check:
    """Is the time one that can be? And does it follow the machine's own count for a moment?"""
    began, counted = wall(), time.monotonic()
    time.sleep(0.05)
    apart_ms = abs((wall() - began) - (time.monotonic() - counted)) * 1000
    advice = "set the clock and keep it with NTP (`timedatectl set-ntp true`): records carry it, and retention goes by it"
    if time.gmtime(began).tm_year < year_least:
        return Check("clock", "warn", f"it says {time.strftime('%Y-%m-%d', time.gmtime(began))}", advice)
    if apart_ms > CLOCK_MS_OFF:
        return Check("clock", "warn", f"it moved by {apart_ms:.0f} ms while it was looked at", advice)
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began)), advice)


def check_java() -> Check:
    """Only pipelines need it, so missing it is nothing to fix where there are none."""
    import re
    import shutil
    import subprocess

    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = f"Spark pipelines need Java {JAVA_LEAST} or newer; a broker does not"
    if not program or not os.path.exists(program):
        return Check("java", "ok", f"none; {advice}")
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as fault:
        return Check("java", "warn", f"{program}: {fault}", advice)
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or int(found[1]) < JAVA_LEAST:
        return Check("java", "warn", f"{program} is version {found[1] if found else 'unknown'}", advice)
    return Check("java", "ok", f"version {found[1]}")
