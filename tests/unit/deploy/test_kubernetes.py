"""The manifests are what Kubernetes takes, and fit each other and the broker.

The schemas are those that kubernetes-validate ships; no cluster is asked.
"""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from strandline.config import BrokerConfig
from strandline.process.settings import load_settings

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
"""The oldest and the newest that are tried; the API versions used are older than both."""
FILES = sorted(set(FOLDER.glob("*.yaml")) - {FOLDER / "kustomization.yaml"})
MANIFESTS = [found for file in FILES for found in yaml.safe_load_all(file.read_text())]


def manifest(kind, name="strandline"):
    [found] = [m for m in MANIFESTS if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


STATEFUL_SET = manifest("StatefulSet")
POD = STATEFUL_SET["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]


@pytest.fixture
def settings(tmp_path):
    """What the ConfigMap tells broker 1."""
    file = tmp_path / "strandline.yaml"
    file.write_text(manifest("ConfigMap")["data"]["strandline.yaml"])
    return load_settings(file, {}, {"cluster": {"broker_id": 1}})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", MANIFESTS, ids=lambda m: f"{m['kind']}/{m['metadata']['name']}")
def test_manifests_fit_their_schemas(found, version):
    """No field that Kubernetes does not know, none of a wrong type, none missing."""
    import kubernetes_validate  # it brings jsonschema: see tests/kit/json_schemas.py

    kubernetes_validate.validate(found, version, strict=True)


def test_a_wrong_field_would_be_seen():
    """The check itself can fail."""
    import kubernetes_validate

    wrong = {**STATEFUL_SET, "spec": {**STATEFUL_SET["spec"], "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_file_is_applied():
    """The kustomization names all of them."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [file.name for file in FILES]


def test_every_selector_finds_the_pods():
    """Labels of pods, services, budget and policy agree."""
    labels = STATEFUL_SET["spec"]["template"]["metadata"]["labels"]
    spread = POD["topologySpreadConstraints"][0]["labelSelector"]
    policy = manifest("NetworkPolicy")["spec"]
    for selector in (
        STATEFUL_SET["spec"]["selector"]["matchLabels"],
        manifest("Service")["spec"]["selector"],
        manifest("Service", "strandline-client")["spec"]["selector"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
        policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"],
        spread["matchLabels"],
    ):
        assert selector == labels


def test_brokers_are_the_pods_of_the_set(settings):
    """Each pod's name in the headless service is in the list of brokers, with its number."""
    spec = STATEFUL_SET["spec"]
    assert spec["serviceName"] == manifest("Service")["metadata"]["name"]
    hosts = {
        number + 1: f"{STATEFUL_SET['metadata']['name']}-{number}.{spec['serviceName']}"
        for number in range(spec["replicas"])
    }
    cluster = settings.cluster
    assert {n: host for n, (host, _) in cluster.peer_addresses.items()} == hosts
    assert {n: host for n, (host, _) in cluster.nats_addresses.items()} == hosts
    assert {port for _, port in cluster.peer_addresses.values()} == {cluster.peer_port}
    assert manifest("Service")["spec"]["publishNotReadyAddresses"], "or none would get ready"
    assert spec["podManagementPolicy"] == "Parallel", "or the first would wait for the second"


def test_ports_are_those_of_the_broker(settings):
    """What the settings listen on is what containers, services and the policy open."""
    [nats_peer_port] = {port for _, port in settings.cluster.nats_addresses.values()}
    wanted = {
        "nats": settings.nats.port,
        "ingest": settings.nats.ingest_port,
        "nats-peers": nats_peer_port,
        "flight": settings.flight_port,
        "http": settings.http_port,
        "peers": settings.cluster.peer_port,
    }
    assert {p["name"]: p["containerPort"] for p in CONTAINER["ports"]} == wanted
    assert {p["name"]: p["port"] for p in manifest("Service")["spec"]["ports"]} == wanted
    of_clients = manifest("Service", "strandline-client")["spec"]["ports"]
    assert {p["name"]: p["port"] for p in of_clients}.items() <= wanted.items()
    brokers, everybody = manifest("NetworkPolicy")["spec"]["ingress"]
    assert {p["port"] for p in brokers["ports"]} == {wanted["nats-peers"], wanted["peers"]}
    assert {p["port"] for p in everybody["ports"]} == set(wanted.values()) - {
        wanted["nats-peers"],
        wanted["peers"],
    }


@pytest.mark.parametrize(("pod", "broker"), [("strandline-0", 1), ("strandline-10", 11)])
def test_a_pod_starts_its_broker(pod, broker, tmp_path, settings):
    """The command makes the number of the broker from the pod's name, and uses what is mounted."""
    told = tmp_path / "strandline"
    told.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    told.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOSTNAME": pod}
    done = subprocess.run(
        CONTAINER["command"], env=environment, capture_output=True, text=True, check=True
    )
    config = f"{CONTAINER['volumeMounts'][1]['mountPath']}/strandline.yaml"
    assert done.stdout.split() == ["serve", "--config", config, "--broker-id", str(broker)]
    assert CONTAINER["volumeMounts"][0]["mountPath"] == settings.data_dir
    claims = [claim["metadata"]["name"] for claim in STATEFUL_SET["spec"]["volumeClaimTemplates"]]
    volumes = {*claims, *(volume["name"] for volume in POD["volumes"])}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == volumes


def test_probes_ask_what_the_broker_answers():
    """Live while the loop answers, ready when copies are in sync, and time to hand over."""
    paths = {
        kind: CONTAINER[kind]["httpGet"]["path"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/health/live",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }
    assert POD["terminationGracePeriodSeconds"] >= 30
    assert not POD["enableServiceLinks"], "or variables of services would be refused as settings"
    assert BrokerConfig().http_port == 9294
