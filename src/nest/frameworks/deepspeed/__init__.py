"""DeepSpeed with its launch arguments: `write`, a plan as files; `read`, files as a job."""
