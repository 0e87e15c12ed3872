"""How commands reach a broker: the options they share, and the client made from them.

`--server` wins over `BRAID_SERVERS`, `--user` over `BRAID_USERNAME`, and both over a context (`cli/contexts.py`); everything
else about the connection that has no option here is a setting of the client (`BRAID_CLIENT_*`), which applies to commands as it
does to programs.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.cli.contexts import chosen_context
from braidmq.cli.passwords import ask_password, read_password

if TYPE_CHECKING:
    from ssl import SSLContext

    from braidmq.client.settings import SettingArguments
    from braidmq.client.sync import Client


def add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument("--ctx", metavar="NAME", help="context to use, see `braid ctx` (BRAID_CTX)")
    group.add_argument(
        "--server",
        action="append",
        metavar="ADDR",
        help="broker as host:port, flymq://... or flymqs://...; several are tried in turn (BRAID_SERVERS) [127.0.0.1:9092]",
    )
    group.add_argument("--timeout", metavar="DURATION", help="how long a request may take, as 500ms or 10s [30s]")
    group.add_argument("--tls-ca-file", metavar="FILE", help="PEM authorities that may vouch for the broker")
    group.add_argument("--tls-cert-file", metavar="FILE", help="PEM certificate to show to the broker")
    group.add_argument("--tls-key-file", metavar="FILE", help="PEM key of --tls-cert-file")
    group.add_argument("--user", metavar="NAME", help="user to log in as (BRAID_USERNAME)")
    group.add_argument(
        "--password-file", metavar="FILE", help="file with the user's password, - is standard input (BRAID_PASSWORD holds it too)"
    )


def open_client(args: argparse.Namespace) -> Client:
    """A client to be used in a `with` block, which makes sure that a broker answers."""
    from braidmq.client.sync import connect

    context, asked_for = chosen_context(args)

    def unless_set(variable: str) -> bool:
        """Whether the context has a say: one that was asked for always has, the one in use gives way to variables."""
        return asked_for or not os.environ.get(variable)

    settings: SettingArguments = {
        "tls_ca_file": args.tls_ca_file or context.tls_ca_file,
        "tls_cert_file": args.tls_cert_file or context.tls_cert_file,
        "tls_key_file": args.tls_key_file or context.tls_key_file,
    }
    servers = args.server
    if servers is None and context.servers and unless_set("BRAID_SERVERS"):
        servers = context.servers
    if args.user is not None:
        settings["username"] = args.user
    elif context.user is not None and unless_set("BRAID_USERNAME"):
        settings["username"] = context.user
        password = context.read_password() if args.password_file is None else None
        if password is not None:
            settings["password"] = password
    if args.password_file is not None:
        settings["password"] = read_password(args.password_file)
    elif args.user is not None and not os.environ.get("BRAID_PASSWORD"):
        settings["password"] = ask_password(f"password of {args.user}: ")
    if getattr(args, "tls_insecure", False):
        settings["ssl_context"] = _trusting_context()
    if args.timeout is not None:
        settings["timeout_s"] = duration_option(args.timeout, "--timeout")
    return connect(servers, **settings)


def _trusting_context() -> SSLContext:
    """TLS with whoever answers. Only `flymq-cli --insecure` asks for it, because the published tool has it."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def duration_option(text: str, option: str) -> float:
    """The seconds of a duration on the command line."""
    from braidmq.base.config_kinds import read_duration

    try:
        return read_duration(text)
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"{option}: {fault}") from None
