"""torchtitan: `write`, a plan as Python or TOML; `read`, these as a job."""
