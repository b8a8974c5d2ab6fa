"""Jobs on a cluster with Slurm."""
