"""What is in `deploy/` can be used as it lies there: it parses, fits the program's own settings, and opens no door."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from braidmq import __version__
from braidmq.base.config import Config, load_config
from braidmq.base.config_listen import PORTS
from braidmq.cli.parser import parse

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/braidmq.service"
CONTAINERFILE = (DEPLOY / "container/Containerfile").read_text()
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def web_ports() -> dict[str, int]:
    config = Config()
    return {"metrics": config.metrics_listen.port, "health": config.health_listen.port, "admin": config.admin_listen.port}


def assert_closed(config: Config) -> None:
    """Nobody from elsewhere gets in without TLS and a login."""
    assert not config.warnings
    for listen in config.listen:
        assert listen.host in LOOPBACK or (listen.tls and config.auth_enabled), listen
    assert config.admin_listen.host in LOOPBACK


# --- systemd


def unit() -> dict[str, list[str]]:
    """Settings of the unit's service; some are given twice."""
    found: dict[str, list[str]] = {}
    section = UNIT.read_text().split("[Service]")[1].split("[Install]")[0]
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_is_one_and_is_hardened() -> None:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    parser.read_string(UNIT.read_text())
    assert {"Unit", "Service", "Install"} == set(parser.sections())
    service = unit()
    assert service["User"] == ["braidmq"] and service["CapabilityBoundingSet"] == [""]
    for name in (
        "NoNewPrivileges", "ProtectHome", "ProtectKernelModules", "ProtectKernelTunables", "ProtectControlGroups", "PrivateDevices",
        "PrivateTmp", "RestrictNamespaces", "RestrictSUIDSGID", "LockPersonality",
    ):  # fmt: skip
        assert service[name] == ["yes"], name
    assert service["ProtectSystem"] == ["strict"] and service["StateDirectory"] == ["braidmq"]
    assert not re.search(r"(?i)password\s*=\s*\S", UNIT.read_text().replace("PASSWORD=...", ""))


def test_the_unit_runs_a_command_that_there_is() -> None:
    words = shlex.split(unit()["ExecStart"][0])
    assert words[0].endswith("/braid")
    assert parse(words[1:]).run


def test_the_settings_of_the_service_listen_to_nobody_else() -> None:
    config = load_config({}, {}, str(DEPLOY / "systemd/braid.toml"))
    assert_closed(config)
    assert {(listen.scheme, listen.port) for listen in config.listen} == set(PORTS.items())


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd here")
    # The program has to exist where the unit is looked at; everything else is as it is.
    copy = tmp_path / "braidmq.service"
    copy.write_text(UNIT.read_text().replace("/usr/local/bin/braid ", "/bin/true "))
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "braidmq.service" in line]
    assert not said, done.stderr


# --- container


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", CONTAINERFILE)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], re.sub(r"\s+", " ", line.split(None, 1)[1])) for line in lines]


def test_images_are_pinned_and_official() -> None:
    bases = [words.split()[0] for name, words in instructions() if name == "FROM"]
    assert len(bases) == 2
    for base in bases:
        assert re.fullmatch(r"docker\.io/library/python:\d+\.\d+\.\d+-slim-\w+", base), base


def test_the_container_runs_as_nobody_special_and_knows_whether_it_is_ready() -> None:
    steps = instructions()
    names = [name for name, _ in steps]
    said = {name: words for name, words in steps}
    user = said["USER"].split(":")[0]
    assert user.isdigit() and int(user) >= 10_000
    assert names.index("USER") < names.index("ENTRYPOINT") and "ADD" not in names
    assert f":{web_ports()['health']}/ready" in said["HEALTHCHECK"]
    assert [int(port) for port in said["EXPOSE"].split()] == [*PORTS.values(), *web_ports().values()]
    assert said["STOPSIGNAL"] == "SIGTERM" and "BRAID_DATA_DIR" in said["ENV"]
    assert not re.search(r"(?i)password|secret|_key", said["ENV"])
    assert parse([*yaml.safe_load(said["ENTRYPOINT"])[1:], *yaml.safe_load(said["CMD"])]).run
    ignored = (DEPLOY / "container/Containerfile.dockerignore").read_text().split()
    copying = [words.split() for name, words in steps if name == "COPY" and "--from" not in words]
    copied = {word.removeprefix("./") for words in copying for word in words}
    assert {word for word in copied if word and word != "."} == {line[1:] for line in ignored if line.startswith("!")}


def test_the_settings_of_the_container_listen_to_nobody_else() -> None:
    said = {name: words for name, words in instructions()}
    variables = dict(word.split("=", 1) for word in said["ENV"].split() if word.startswith("BRAID_"))
    assert_closed(load_config({}, variables))


# --- Kubernetes


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    found = [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = documents()["StatefulSet", "braidmq"]["spec"]["template"]["spec"]
    return spec


def test_every_kind_is_there_and_in_one_place() -> None:
    found = documents()
    assert {kind for kind, _ in found} == {"Namespace", "ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    for (kind, _), document in found.items():
        assert kind == "Namespace" or document["metadata"]["namespace"] == "braidmq"
        assert kind == "Namespace" or document["metadata"]["labels"] == {"app.kubernetes.io/name": "braidmq"}


def test_the_pod_is_confined() -> None:
    spec = pod()
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert spec["automountServiceAccountToken"] is False
    rights = container["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False and rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"} and "memory" in container["resources"]["limits"]
    assert str(spec["securityContext"]["runAsUser"]) in CONTAINERFILE


def test_the_image_is_pinned_to_this_version() -> None:
    (container,) = pod()["containers"]
    assert container["image"] == f"braidmq:{__version__}"
    assert not re.search(r":latest|image: [\w./-]+$", "\n".join(path.read_text() for path in MANIFESTS), re.MULTILINE)


def test_ports_and_probes_are_those_of_the_program() -> None:
    (container,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == PORTS | web_ports()
    paths = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in paths.items()} == {
        "startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"
    }  # fmt: skip
    assert {probe["port"] for probe in paths.values()} == {"health"}
    assert parse(container["args"]).run
    for name in ("braidmq", "braidmq-pods"):
        for port in documents()["Service", name]["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    assert "admin" not in {port["name"] for port in documents()["Service", "braidmq"]["spec"]["ports"]}


def test_selectors_find_the_pod_and_volumes_are_there() -> None:
    found = documents()
    labels = found["StatefulSet", "braidmq"]["spec"]["template"]["metadata"]["labels"]
    for document in (found["Service", "braidmq"], found["Service", "braidmq-pods"]):
        assert document["spec"]["selector"].items() <= labels.items()
    assert found["PodDisruptionBudget", "braidmq"]["spec"]["selector"]["matchLabels"] == labels
    assert found["StatefulSet", "braidmq"]["spec"]["serviceName"] == "braidmq-pods"
    (container,) = pod()["containers"]
    claimed = {claim["metadata"]["name"] for claim in found["StatefulSet", "braidmq"]["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod()["volumes"]} | claimed


def test_the_settings_of_the_pod_are_closed_and_known(tmp_path: Path) -> None:
    file = tmp_path / "braid.toml"
    file.write_text(documents()["ConfigMap", "braidmq"]["data"]["braid.toml"])
    config = load_config({}, {}, str(file))
    assert_closed(config)
    assert config.auth_enabled and config.auth_admin_password_file and all(listen.tls for listen in config.listen)
    mounts = {mount["mountPath"] for mount in pod()["containers"][0]["volumeMounts"]}
    for path in (config.tls_cert_file, config.auth_admin_password_file, config.data_dir):
        assert path is not None and any(path.startswith(mount) for mount in mounts), path
    assert not any(kind == "Secret" for kind, _ in documents()), "no password is in the tree"


def test_the_examples_of_the_page_name_files_that_are_there() -> None:
    text = (DEPLOY / "README.md").read_text()
    for path in re.findall(r"deploy/[\w./-]*", text):
        assert (ROOT / path).exists(), path
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["braid"]


# --- three nodes


def test_the_settings_of_three_nodes_are_understood(tmp_path: Path) -> None:
    documents = [found for found in yaml.safe_load_all((DEPLOY / "cluster" / "kubernetes.yaml").read_text()) if found]
    kinds = {document["kind"]: document for document in documents}
    assert set(kinds) == {"ConfigMap", "Service", "PodDisruptionBudget", "StatefulSet"}
    pods = kinds["StatefulSet"]["spec"]
    assert pods["replicas"] == 3 and pods["serviceName"] == kinds["Service"]["metadata"]["name"]
    file = tmp_path / "braid.toml"
    file.write_text(kinds["ConfigMap"]["data"]["braid.toml"])
    names = {variable["name"]: variable.get("value", "braidmq-0") for variable in pods["template"]["spec"]["containers"][0]["env"]}
    environ = {name: value.replace("$(BRAID_NODE_ID)", "braidmq-0") for name, value in names.items()}
    config = load_config({}, environ, str(file))
    assert config.node_id == "braidmq-0" and config.cluster_advertise == "braidmq-0.braidmq-nodes.braidmq.svc:9093"
    assert config.durability == "quorum" and config.quorum_endpoints
    node = load_config({}, {}, str(DEPLOY / "cluster" / "node.toml"))
    assert node.cluster_advertise == node.peers[0] and node.cluster_tls is not None
