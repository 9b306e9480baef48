"""What `config/` offers to those who run the proxy, looked at by the tools that will read it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from proxy.settings import Settings, load
from tests.clean_root import instructions

CONFIG = Path(__file__).parents[1] / "config"
DOCKERFILE = CONFIG.parent / "Dockerfile"
#: From the release on in which sidecars are a feature of Kubernetes, to the newest that the validator knows.
RELEASES = ["1.29", "1.34"]


def manifests(name: str) -> list[Any]:
    return list(yaml.safe_load_all((CONFIG / "kubernetes" / name).read_text()))


def containers(name: str) -> list[dict[str, Any]]:
    """The proxy's containers in a manifest."""
    specs = [found["spec"]["template"]["spec"] for found in manifests(name) if found["kind"] == "Deployment"]
    every = [one for spec in specs for one in (*spec.get("initContainers", []), *spec["containers"])]
    return [one for one in every if one["image"] == "evidence-proxy"]


@pytest.mark.parametrize("name", sorted(path.name for path in (CONFIG / "kubernetes").glob("*.yaml")))
@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_takes_the_manifests(name: str, release: str) -> None:
    for manifest in manifests(name):
        kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("name", ["sidecar.yaml", "replicas.yaml"])
def test_the_proxy_runs_locked_down_and_is_given_time_to_end(name: str) -> None:
    (proxy,) = containers(name)
    context = proxy["securityContext"]
    assert context["readOnlyRootFilesystem"] and context["runAsNonRoot"] and not context["allowPrivilegeEscalation"]
    assert {mount["mountPath"] for mount in proxy["volumeMounts"]} >= {"/data", "/tmp"}
    assert proxy["livenessProbe"] and proxy["startupProbe"] and proxy["resources"]["limits"]["memory"]
    defaults = Settings()
    needed = defaults.server.drain_seconds + defaults.store.close_grace_ms / 1000
    for manifest in manifests(name):
        if manifest["kind"] == "Deployment":
            assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= needed


@pytest.mark.parametrize("name", ["sidecar.yaml", "replicas.yaml"])
def test_the_settings_in_a_manifest_are_settings(name: str, tmp_path: Path) -> None:
    (settings,) = [found["data"]["evidence-proxy.toml"] for found in manifests(name) if found["kind"] == "ConfigMap"]
    for secret in ("client-keys", "provider-key"):
        (tmp_path / secret).write_text("a-key-of-the-tests\n")
    file = tmp_path / "evidence-proxy.toml"
    file.write_text(settings.replace("/secrets/", f"{tmp_path}/"))
    (proxy,) = containers(name)
    named = {one["name"]: "a token of at least 16 characters" for one in proxy.get("env", []) if "valueFrom" in one}
    loaded = load(file, environ=named)
    assert loaded.evidence[0].tools == ("search",)
    if name == "replicas.yaml":
        assert loaded.store.uri is not None and loaded.store.uri.startswith("s3://")
        assert {loaded.tags.key_env, loaded.server.admin_token_env} <= set(named)


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    unit = (CONFIG / "systemd" / "evidence-proxy.service").read_text()
    command = tmp_path / "evidence-proxy"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    file = tmp_path / "evidence-proxy.service"
    file.write_text(unit.replace("/opt/evidence-proxy/bin/evidence-proxy", str(command)))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        check=False,
    )
    said = [line for line in (told.stdout + told.stderr).splitlines() if "evidence-proxy" in line]
    assert (told.returncode, said) == (0, [])


def test_compose_takes_the_file() -> None:
    commands = [["docker-compose"], ["docker", "compose"]]
    compose = next((one for one in commands if shutil.which(one[0]) and _answers([*one, "version"])), None)
    if compose is None:
        pytest.skip("neither docker-compose nor docker compose is on this machine")
    told = subprocess.run(
        [*compose, "-f", str(CONFIG / "compose.yaml"), "config", "--quiet"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr


def _answers(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_what_compose_mounts_and_builds_is_there() -> None:
    (service,) = yaml.safe_load((CONFIG / "compose.yaml").read_text())["services"].values()
    assert (CONFIG / service["build"]["context"] / "Dockerfile").resolve() == DOCKERFILE.resolve()
    sources = [volume.split(":")[0] for volume in service["volumes"] if volume.startswith(".")]
    assert sources and all((CONFIG / source).is_file() for source in sources)


def test_the_image_is_built_from_the_lock_file_and_runs_without_privileges() -> None:
    found = list(instructions(DOCKERFILE.read_text()))
    assert [word for word, _ in found].count("FROM") == 2
    last = found[max(n for n, (word, _) in enumerate(found) if word == "FROM") :]
    said = dict(last)
    assert said["USER"] not in ("root", "0") and said["VOLUME"] == "/data" and said["STOPSIGNAL"] == "SIGTERM"
    assert "/healthz" in said["HEALTHCHECK"]
    installing = [rest for word, rest in found if word == "RUN" and "-r requirements.lock" in rest]
    assert len(installing) == 1 and "--require-hashes" in installing[0]
    copied = [source for word, rest in found if word == "COPY" for source in rest.split()[:-1] if source[0] != "-"]
    ignored = (CONFIG.parent / ".dockerignore").read_text().split()
    for source in copied:
        assert source.startswith("/") or (CONFIG.parent / source).exists(), source
        assert not any(re.fullmatch(re.escape(name), source.strip("./")) for name in ignored), source
