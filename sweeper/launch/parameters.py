"""Parameters of submitit's that a user may set: `launcher.submitit.NAME`, by submitit's own names.

They are those of `submitit.AutoExecutor`: some for any cluster, the others with the cluster's name
before them. As in submitit, what is meant for another cluster is passed over, so that one setting
serves both launchers. What the driver relies on is refused, with the key that says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from sweeper.errors import ConfigError
from sweeper.records import AtLeastOne, Bounds, check_bounds

OURS = {
    "name": "by it the driver knows its jobs",
    "nodes": "runner.nodes says it, for a command",
    "tasks_per_node": "a job is one process, which starts what it needs",
    "stderr_to_stdout": "logs are read as it sets it",
    "slurm_job_name": "by it the driver knows its jobs",
    "slurm_nodes": "runner.nodes says it, for a command",
    "slurm_ntasks_per_node": "a job is one process, which starts what it needs",
    "slurm_num_gpus": "launcher.gpus says it",
    "slurm_signal_delay_s": "launcher.warn says it",
    "slurm_stderr_to_stdout": "logs are read as it sets it",
    "slurm_use_srun": "signals reach a job through srun",
}
"""What sweeper sets itself, and why or where."""
KEYS = {
    "timeout_min": "time",
    "cpus_per_task": "cpus",
    "gpus_per_node": "gpus",
    "mem_gb": "memory",
    "slurm_time": "time",
    "slurm_cpus_per_task": "cpus",
    "slurm_gpus_per_node": "gpus",
    "slurm_mem": "memory",
    "slurm_partition": "partition",
    "slurm_account": "account",
    "slurm_qos": "qos",
    "slurm_constraint": "constraint",
    "slurm_gres": "gres",
    "slurm_setup": "setup",
    "slurm_array_parallelism": "array_parallelism",
    "slurm_additional_parameters": "sbatch",
}
"""Those that are keys of `launcher=slurm`, too: the later name of a pair wins."""
Text = str | None
Count = AtLeastOne | None
Lines = tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of submitit's, None where they are not set; the names are submitit's.

    ConfigError for one that sweeper sets itself, and for a text of several lines.
    """

    timeout_min: Count = None
    cpus_per_task: Count = None
    gpus_per_node: Annotated[int, Bounds(least=0)] | None = None
    mem_gb: Annotated[float, Bounds(above=0)] | None = None
    local_setup: Lines = None
    slurm_account: Text = None
    slurm_additional_parameters: Mapping[str, Any] | None = None
    slurm_array_parallelism: Count = None
    slurm_comment: Text = None
    slurm_constraint: Text = None
    slurm_cpus_per_gpu: Count = None
    slurm_cpus_per_task: Count = None
    slurm_dependency: Text = None
    slurm_exclude: Text = None
    slurm_exclusive: bool | str | None = None
    slurm_gpus_per_node: Annotated[int, Bounds(least=0)] | None = None
    slurm_gpus_per_task: Count = None
    slurm_gres: Text = None
    slurm_mail_type: Text = None
    slurm_mail_user: Text = None
    slurm_mem: Text = None
    slurm_mem_per_cpu: Text = None
    slurm_mem_per_gpu: Text = None
    slurm_nodelist: Text = None
    slurm_partition: Text = None
    slurm_qos: Text = None
    slurm_setup: Lines = None
    slurm_srun_args: Lines = None
    slurm_teardown: Lines = None
    slurm_time: Count = None
    slurm_wckey: Text = None
    name: Any = None
    nodes: Any = None
    tasks_per_node: Any = None
    stderr_to_stdout: Any = None
    slurm_job_name: Any = None
    slurm_nodes: Any = None
    slurm_ntasks_per_node: Any = None
    slurm_num_gpus: Any = None
    slurm_signal_delay_s: Any = None
    slurm_stderr_to_stdout: Any = None
    slurm_use_srun: Any = None
    values: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_bounds(self)
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        values = {name: value for name, value in values.items() if value is not None}
        for name, value in values.items():
            if name in OURS:
                raise ConfigError(name, value, f"sweeper sets it itself ({OURS[name]})")
            for line in value if isinstance(value, tuple) else (value,):
                if isinstance(line, str) and "\n" in line:
                    raise ConfigError(name, line, "a text of one line")
        object.__setattr__(self, "values", values)

    def local(self) -> dict[str, Any]:
        """For a worker of this machine, as `AutoExecutor.update_parameters` takes them."""
        if self.gpus_per_node is not None:
            allowed = "sweeper sets it itself (launcher.workers: each has a GPU of its own)"
            raise ConfigError("submitit.gpus_per_node", self.gpus_per_node, allowed)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.values.items()}

    def slurm_keys(self) -> dict[str, Any]:
        """Parameters that are keys of `launcher=slurm`, by the key."""
        keys = {KEYS[name]: self.values[name] for name in KEYS if name in self.values}
        if isinstance(gigabytes := keys.get("memory"), float | int):
            whole = gigabytes == int(gigabytes)
            keys["memory"] = f"{int(gigabytes)}G" if whole else f"{int(1024 * gigabytes)}M"
        if options := keys.get("sbatch"):  # submitit writes either
            keys["sbatch"] = {name.replace("_", "-"): value for name, value in options.items()}
        return keys

    def slurm(self) -> dict[str, Any]:
        """The rest, as `SlurmExecutor.update_parameters` takes them."""
        return {
            name.removeprefix("slurm_"): list(value) if isinstance(value, tuple) else value
            for name, value in self.values.items()
            if name.startswith("slurm_") and name not in KEYS
        }
