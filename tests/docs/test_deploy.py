"""The files of docs/deploy, as far as they can be tried without the machines that they are for."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from tests.docs.pages import ROOT

DEPLOY: Final = ROOT / "docs" / "deploy"
STANDFAST: Final = Path(sys.executable).with_name("standfast")


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """What the files call standfast with, and which file does."""
    for name in re.findall(r"^Exec\w+=\S*/standfast (.*)$", (DEPLOY / "standfast-worker.service").read_text(), re.M):
        yield "systemd", shlex.split(name)
    for line in re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M):
        yield "docker", json.loads(line)
    for service in compose()["services"].values():
        if "build" in service:
            yield "compose", service["command"]
    for one in kubernetes():
        for container in one["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            yield "kubernetes", container["args"]


@pytest.mark.parametrize("words", {" ".join(words): words for _, words in command_lines()}.values(), ids=" ".join)
def test_every_command_in_the_files_takes_its_options(words: list[str]) -> None:
    shown = subprocess.run([STANDFAST, words[0], "--help"], capture_output=True, text=True)
    assert 0 == shown.returncode, shown.stderr
    for option in (word for word in words[1:] if word.startswith("--")):
        assert f" {option} " in shown.stdout, option


def test_each_kind_of_file_runs_workers_and_migrates() -> None:
    called = {(kind, words[0]) for kind, words in command_lines()}
    assert {(kind, "worker") for kind in ("systemd", "docker", "compose", "kubernetes")} <= called
    assert {(kind, "migrate") for kind in ("systemd", "compose", "kubernetes")} <= called


@pytest.mark.parametrize("manifest", kubernetes(), ids=lambda one: one["kind"])
def test_the_manifests_are_what_kubernetes_takes(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_whatever_stops_a_worker_waits_longer_than_its_grace() -> None:
    unit = (DEPLOY / "standfast-worker.service").read_text()
    grace = int(re.findall(r"--grace (\d+)", unit)[0])
    assert grace + 10 <= int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)[0])
    assert grace + 10 <= int(compose()["services"]["worker"]["stop_grace_period"].removesuffix("s"))
    (deployment,) = [one for one in kubernetes() if one["kind"] == "Deployment"]
    assert grace + 10 <= deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_the_image_holds_every_package(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = dict(re.findall(r"^COPY (\w+) (\w+)$", text, re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {place.split("/")[0] for place in project["tool"]["setuptools"]["package-dir"].values()}
    assert folders == set(copied) == set(copied.values())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "standfast-worker.service"
    text = (DEPLOY / "standfast-worker.service").read_text()
    unit.write_text(text.replace("/opt/standfast/venv/bin/standfast", str(STANDFAST)))
    run = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (0, "") == (run.returncode, run.stdout + run.stderr)
