"""The files of `examples/launch`: torchrun on two hosts, SLURM, Kubernetes and Ray, as far as one machine can check."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_runs import EXAMPLES, load_example, write_cluster
from forked import Done, run_python, torchrun
from torch.distributed.run import get_args_parser

from shardwright.tools.cli_arguments import parse_arguments

LAUNCH = EXAMPLES / "launch"
SUPPORT = Path(__file__).parents[1] / "support"
TRAIN, STEPS = str(LAUNCH / "train.py"), "3"


def losses(done: Done) -> list[float]:
    """Return the losses that rank 0 of `train.py` printed."""
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^step \d+  loss (\S+)$", done.stdout, re.MULTILINE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a cluster of two devices and the plan of `train.py` for it."""
    made = tmp_path_factory.mktemp("launch")
    write_cluster(2, made)
    (made / "train.py").write_text(Path(TRAIN).read_text())
    command = ("plan", "train:make_step", "--cluster", "cluster.toml", "--out", "plan")
    assert (done := run_python("-m", "shardwright.tools.cli", *command, folder=made)).returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[float]:
    """Return the losses of one process."""
    found = losses(run_python(TRAIN, "--cluster", "local-4", "--steps", STEPS, folder=folder))
    assert len(set(found)) == int(STEPS)
    return found


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


RENDEZVOUS = {
    "c10d": ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}", "--rdzv-id=job", "--local-addr=127.0.0.1"),
    "static": ("--node-rank={node}", "--master-addr=127.0.0.1", "--master-port={port}"),
}


@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rendezvous", ["c10d", pytest.param("static", marks=pytest.mark.thorough)])
def test_two_hosts_train_with_one_plan_as_one_process(
    rendezvous: str, folder: Path, alone: list[float], tmp_path: Path
):
    port, shared = free_port(), str(tmp_path / "runs")
    script = ("train.py", "--cluster", "cluster.toml", "--plan", "plan", "--save", shared, "--steps", STEPS)

    def host(node: int) -> Done:
        options = [option.format(port=port, node=node) for option in RENDEZVOUS[rendezvous]]
        torchrun = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *options)
        return run_python(*torchrun, *script, folder=folder, timeout=250.0)

    with ThreadPoolExecutor(2) as hosts:
        done = list(hosts.map(host, range(2)))
    by_host = [losses(each) for each in done]
    # Rank 0 is on one of the hosts.
    assert sorted(map(len, by_host)) == [0, int(STEPS)]
    assert max(by_host, key=len) == pytest.approx(alone, rel=1e-5)
    assert sum(each.stderr.count("started from the plan of 2 ranks in plan: 0 B of") for each in done) == 1
    assert [path.name for path in Path(shared).iterdir()] == [f"step-{int(STEPS):08}"]


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_the_script_trains_in_a_thread_of_a_worker_as_under_ray(folder: Path, alone: list[float]):
    arguments = (TRAIN, "--cluster", "cluster.toml", "--plan", "plan", "--steps", STEPS)
    done = torchrun(2, str(SUPPORT / "in_a_thread.py"), *arguments, folder=folder)
    assert losses(done) == pytest.approx(alone, rel=1e-5)


def assert_trains(arguments: Sequence[str], given: Mapping[str, str]) -> None:
    """Check the arguments of a torchrun that starts `train.py`, or `shardwright profile`."""
    parsed = get_args_parser().parse_args(arguments)
    found = {name: str(getattr(parsed, name)) for name in given}
    assert found == given
    if parsed.module:
        assert parsed.training_script == "shardwright.tools.cli"
        assert parse_arguments(parsed.training_script_args).handler.startswith("cli_profile")
    else:
        assert parsed.training_script == "train.py"
        assert load_example("launch/train").parser().parse_args(parsed.training_script_args).save == "runs/a"


SBATCH = {
    "job-name": r"[\w-]+",
    "nodes": r"\d+",
    "ntasks-per-node": "1",
    "gpus-per-node": r"(\w+:)?\d+",
    "cpus-per-task": r"\d+",
    "time": r"(\d+-)?\d+:\d\d:\d\d",
    "output": r"[\w.%-]+",
    "requeue": None,
}
"""Option of sbatch -> pattern of its value, or None for a flag."""

STUBS = {
    # A reader that ends at the first line would break this pipe.
    "scontrol": 'test "$1 $2" = "show hostnames"; printf "first\\n"; sleep 0.2; printf "second\\n"',
    "srun": 'echo "srun $*" >>calls; case "$*" in *profile*) touch cluster.toml;; esac',
    "shardwright": 'echo "shardwright $*" >>calls; mkdir -p plan; touch plan/replan.json',
}


def submit(folder: Path) -> list[list[str]]:
    """Run `train.sbatch` with stand-ins for SLURM's commands, and return the commands that it ran."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, body in STUBS.items():
        stub = folder / "bin" / name
        stub.write_text(f"#!/bin/bash\nset -e\n{body}\n")
        stub.chmod(0o755)
    (folder / "calls").unlink(missing_ok=True)
    slurm = {"JOB_ID": "4321", "JOB_NODELIST": "host[1-2]", "NNODES": "2", "GPUS_ON_NODE": "8", "CPUS_PER_TASK": "64"}
    environment = {f"SLURM_{name}": value for name, value in {**slurm, "SUBMIT_DIR": str(folder)}.items()}
    environment["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(["bash", str(LAUNCH / "train.sbatch")], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in (folder / "calls").read_text().splitlines()]


def test_the_options_of_sbatch_are_its_own():
    lines = re.findall(r"^#SBATCH (.*)$", (LAUNCH / "train.sbatch").read_text(), re.MULTILINE)
    assert len(lines) == len(SBATCH)
    for line in lines:
        name, _, value = line.removeprefix("--").partition("=")
        pattern = SBATCH[name]
        assert value == "" if pattern is None else re.fullmatch(pattern, value), line


def test_the_first_job_of_slurm_measures_and_plans_and_every_job_trains(tmp_path: Path):
    first, second = submit(tmp_path), submit(tmp_path)
    assert [command[0] for command in first] == ["srun", "shardwright", "srun"]
    assert second == first[2:]
    expected = {"nnodes": "2", "nproc_per_node": "8", "rdzv_backend": "c10d", "rdzv_endpoint": "first:24321"}
    for command in (first[0], first[2]):
        assert command[:3] == ["srun", "--kill-on-bad-exit=1", "torchrun"]
        assert_trains(command[3:], expected)
    plan = parse_arguments(first[1][1:])
    assert (plan.handler.split(":")[0].split(".")[0], plan.step) == ("cli_plan", "train:make_step")


Schema = Any
"""The allowed values of a field: a type, a set of values, a dict of fields, or a list with the schema of its items."""

CONTAINER = {
    "name": {"pytorch"},
    "image": str,
    "workingDir": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str, "value": str}],
    "resources": {"limits": {"nvidia.com/gpu": int}},
    "volumeMounts": [{"name": str, "mountPath": str}],
}
VOLUME = {
    "name": str,
    "persistentVolumeClaim": {"claimName": str},
    "emptyDir": {"medium": {"Memory"}, "sizeLimit": str},
}
PYTORCH_JOB = {
    "apiVersion": {"kubeflow.org/v1"},
    "kind": {"PyTorchJob"},
    "metadata": {"name": str},
    "spec": {
        "nprocPerNode": str,
        "elasticPolicy": {"rdzvBackend": {"c10d"}, "minReplicas": int, "maxReplicas": int, "maxRestarts": int},
        "runPolicy": {"cleanPodPolicy": {"None", "Running", "All"}, "backoffLimit": int},
        "pytorchReplicaSpecs": {
            "Worker": {
                "replicas": int,
                "restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
                "template": {"spec": {"containers": [CONTAINER], "volumes": [VOLUME]}},
            }
        },
    },
}
"""The fields that the file may use, from `pytorch_types.go` and `common_types.go` of the operator, and of pods."""


def faults(value: object, schema: Schema, path: str = "") -> list[str]:
    """Return the fields of a value that do not match a schema."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{path} is no mapping"]
        unknown = [f"{path}.{name} is unknown" for name in value.keys() - schema.keys()]
        known = value.keys() & schema.keys()
        return unknown + [fault for name in known for fault in faults(value[name], schema[name], f"{path}.{name}")]
    if isinstance(schema, list):
        items = value if isinstance(value, list) else []
        found = [fault for at, each in enumerate(items) for fault in faults(each, schema[0], f"{path}[{at}]")]
        return found if items else [f"{path} is no list, or empty"]
    matches = value in schema if isinstance(schema, set) else type(value) is schema
    return [] if matches else [f"{path} is {value!r}"]


def test_the_job_of_kubernetes_has_the_fields_of_the_operator():
    job = yaml.safe_load((LAUNCH / "pytorchjob.yaml").read_text())
    assert not faults(job, PYTORCH_JOB)
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    policy, pod = job["spec"]["elasticPolicy"], worker["template"]["spec"]
    assert policy["minReplicas"] <= worker["replicas"] <= policy["maxReplicas"]
    (container,) = pod["containers"]
    assert job["spec"]["nprocPerNode"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert container["command"] == ["torchrun"]
    assert_trains(container["args"], {})


def test_the_check_of_a_job_notices_wrong_fields():
    job = yaml.safe_load((LAUNCH / "pytorchjob.yaml").read_text())
    job["spec"]["nprocPerNode"] = 8
    job["spec"]["elasticPolicy"]["maxReplica"] = 2
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "torch"
    found = faults(job, PYTORCH_JOB)
    assert len(found) == 3
    assert ".spec.nprocPerNode is 8" in found
    assert ".spec.elasticPolicy.maxReplica is unknown" in found


def test_the_script_for_ray_is_python_and_passes_options_of_the_training_script():
    text = (LAUNCH / "ray_train.py").read_text()
    compile(text, "ray_train.py", "exec")
    options = re.findall(r'"(--[a-z-]+)"', text.partition("train_loop_config")[2])
    assert options
    assert load_example("launch/train").parser().parse_args([*options, "runs/a"]).save == "runs/a"
