"""Loads the broker's configuration: flags over environment over a file over defaults.

Each value remembers where it came from, so `braid config show` can say it and an error can name it. A key nobody knows
is an error with the nearest known name, in files, in flags and among `BRAID_*` variables: a setting that is silently not
applied is worse than a broker that does not start. Files are TOML, or JSON when the name ends in `.json`; the published
FlyMQ server's names are understood as well (`config_flymq`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from braidmq.base.config_flymq import (
    ALIASES,
    TLS_ENABLED_ENV,
    TLS_ENABLED_JSON,
    Absent,
    absent_key,
    absent_variable,
    asks_for_nothing,
    flymq_boolean,
)
from braidmq.base.config_kinds import nearest
from braidmq.base.config_listen import HttpListen, Listen, parse_listen
from braidmq.base.config_settings import BY_KEY, CLIENT_PREFIX, ENV_PREFIX, OTHER_VARIABLES, SETTINGS, Config, Origin, Setting
from braidmq.base.errors import BraidError

__all__ = ["BY_KEY", "OTHER_VARIABLES", "SETTINGS", "Config", "Listen", "Origin", "Setting", "load_config", "parse_listen"]


def load_config(flags: Mapping[str, object], environ: Mapping[str, str], file: str | None = None) -> Config:
    """The configuration from all sources.

    `flags` holds values by key; None means that a flag was not given. Without `file`, `BRAID_CONFIG`
    names one. Raises `BraidError` with CONFIG_UNKNOWN_KEY, CONFIG_INVALID_VALUE or CONFIG_UNREADABLE.
    """
    loader = _Loader()
    path = file or environ.get(ENV_PREFIX + "CONFIG")
    if path:
        loader.take_file(path)
    loader.take_environment(environ)
    loader.take_flags(flags)
    return loader.finish()


class _Loader:
    """Collects values from the weakest source to the strongest; a later one replaces an earlier one."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._origins: dict[str, Origin] = {}
        self._warnings: list[str] = []
        self._tls: Origin | None = None
        self._from_bind_addr = True

    # --- sources

    def take_file(self, path: str) -> None:
        origin = Origin("file", path)
        found = dict(_flattened(_read_file(path)))
        aliases = {alias.json: alias for alias in ALIASES}
        for key, value in found.items():
            if (alias := aliases.get(key)) is not None and alias.json != alias.key:
                self._set(BY_KEY[alias.key], value, origin, alias.json, alias.translate)
            elif key == TLS_ENABLED_JSON:
                self._tls = origin if flymq_boolean(value) else None
            elif key not in BY_KEY:
                absent = absent_key(key)
                if absent is None:
                    suggestion = nearest(key, [*BY_KEY, *aliases])
                    raise BraidError("CONFIG_UNKNOWN_KEY", key=key, origin=str(origin), suggestion=suggestion)
                self._note_absent(absent, key, value, origin)
        for key, value in found.items():
            if key in BY_KEY:
                self._set(BY_KEY[key], value, origin, key)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        for alias in ALIASES:
            value = environ.get(alias.env) if alias.env else None
            if value or (value is not None and alias.empty):
                given: object = [*self._values.get(alias.key, ()), value] if alias.appends else value
                self._set(BY_KEY[alias.key], given, Origin("environment", alias.env), alias.key, alias.translate)
        if value := environ.get(TLS_ENABLED_ENV):
            self._tls = Origin("environment", TLS_ENABLED_ENV) if flymq_boolean(value) else None
        by_name = {setting.env: setting for setting in SETTINGS}
        for name in sorted(environ):
            value = environ[name]
            if (setting := by_name.get(name)) is not None:
                if value:
                    self._set(setting, value, Origin("environment", name), setting.key)
            elif name.startswith(ENV_PREFIX):
                if name not in OTHER_VARIABLES and not name.startswith(CLIENT_PREFIX):
                    suggestion = nearest(name, [*by_name, *OTHER_VARIABLES])
                    raise BraidError("CONFIG_UNKNOWN_KEY", key=name, origin="the environment", suggestion=suggestion)
            elif (absent := absent_variable(name)) is not None:
                self._note_absent(absent, name, value, Origin("environment", name))

    def _note_absent(self, absent: Absent, name: str, value: object, origin: Origin) -> None:
        if not asks_for_nothing(name, value):
            where = f" in {origin.name}" if origin.source == "file" else ""
            self._warnings.append(f"{name}{where} is ignored: this version does not have {absent.feature}")

    def take_flags(self, flags: Mapping[str, object]) -> None:
        for key, value in flags.items():
            setting = BY_KEY.get(key)
            if setting is None:
                raise BraidError("CONFIG_UNKNOWN_KEY", key=key, origin="the flags", suggestion=nearest(key, BY_KEY))
            if value is not None:
                self._set(setting, value, Origin("flag", setting.flag), setting.key)

    def _set(
        self, setting: Setting, value: object, origin: Origin, key: str, translate: Callable[[object], object] | None = None
    ) -> None:
        try:
            self._values[setting.key] = setting.kind.read(value if translate is None else translate(value))
        except ValueError as fault:
            raise BraidError("CONFIG_INVALID_VALUE", key=key, origin=str(origin), reason=str(fault)) from None
        self._origins[setting.key] = origin
        if setting.key == "listen":
            self._from_bind_addr = translate is not None

    # --- what only the whole shows

    def finish(self) -> Config:
        origins = {setting.key: self._origins.get(setting.key, Origin("default")) for setting in SETTINGS}
        config = Config(
            **self._values,
            origins=MappingProxyType(origins),
        )
        config = self._with_flymq_tls(config)
        listeners: list[Listen | HttpListen] = [*config.listen, *config.web_listeners.values()]
        tls = [listen for listen in listeners if listen.tls]
        if tls and not (config.tls_cert_file and config.tls_key_file):
            reason = f"{tls[0]} needs both tls_cert_file and tls_key_file"
            raise BraidError("CONFIG_INVALID_VALUE", key="listen", origin=str(config.origins["listen"]), reason=reason)
        if config.tls_cert_file and not tls:
            self._warnings.append("tls_cert_file is set, but no listener is TLS, as flymqs:// is: connections are not encrypted")
        self._check_cluster(config)
        return replace(config, warnings=tuple(self._warnings))

    def _check_cluster(self, config: Config) -> None:
        files = ("cluster_tls_cert_file", "cluster_tls_key_file", "cluster_tls_ca_file")
        given = [key for key in files if getattr(config, key) is not None]
        if given and config.cluster_tls is None and config.cluster_listen is not None:
            reason = f"TLS between nodes needs all of {', '.join(files)}"
            raise BraidError("CONFIG_INVALID_VALUE", key=given[0], origin=str(config.origins[given[0]]), reason=reason)
        if config.cluster_listen is None:
            for key in ("peers", "quorum_endpoints"):
                if getattr(config, key):
                    origin = config.origins[key]
                    name = origin.name if origin.source in ("environment", "flag") else key
                    self._warnings.append(f"{name} is ignored: without cluster_listen this broker stays alone")
        elif config.quorum_driver == "etcd" and not config.quorum_endpoints:
            reason = "an etcd that is there already needs quorum_endpoints"
            raise BraidError("CONFIG_INVALID_VALUE", key="quorum", origin=str(config.origins["quorum"]), reason=reason)

    def _with_flymq_tls(self, config: Config) -> Config:
        """FlyMQ has a switch where we have a scheme: it applies to a listener that did not choose a scheme."""
        if self._tls is None:
            return config
        if self._from_bind_addr:
            changed = (replace(listen, scheme="flymqs") if listen.scheme == "flymq" else listen for listen in config.listen)
            return replace(config, listen=tuple(changed))
        if any(listen.scheme == "flymq" for listen in config.listen):
            self._warnings.append(f"{self._tls} does not change the listeners of {config.origins['listen']}: use flymqs:// there")
        return config


def _read_file(path: str) -> Mapping[str, object]:
    """The document in `path`. Both parsers report line and column, which the error passes on."""
    import json
    import tomllib

    try:
        with open(path, "rb") as stream:
            data = stream.read().decode("utf-8")
        document = json.loads(data) if path.endswith(".json") else tomllib.loads(data)
    except OSError as fault:
        raise BraidError("CONFIG_UNREADABLE", path=path, reason=fault.strerror or str(fault)) from None
    except ValueError as fault:
        raise BraidError("CONFIG_UNREADABLE", path=path, reason=str(fault)) from None
    if not isinstance(document, dict):
        raise BraidError("CONFIG_UNREADABLE", path=path, reason="the top level must be an object")
    return document


def _flattened(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Tables become dotted keys, which is how FlyMQ's groups are named here."""
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
