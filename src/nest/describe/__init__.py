"""Descriptions that a user writes, and how they are read from files.

Frozen classes, validated once: `model` (with `layers`), `cluster` (with `device`, `links`,
`link_kinds` and `filling`: which devices of a group are used), `job` (with the stack, and
`capabilities`: what it can run), `formats` (number formats of products), `space` (bounds of a
search), `offload` (what is kept in the memory of the hosts), `configuration` (one way to run),
`profile` (measured layers), `operator_graph` (operators with their FLOP and bytes). Start with
`base`, the base class of all, then `model`, `cluster`, `job`.
`loading` turns a name, a file or a mapping into one of them, with `sources` (the catalog
alone, or files too), `files` (YAML, JSON, limits),
`catalog`, `huggingface` and `profile_csv`. `arguments` checks the arguments of the functions of
`nest`.
"""

from nest.describe.base import Description
from nest.describe.cluster import Cluster, Level
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.device import Device, GemmEfficiency, GroupedEfficiency
from nest.describe.files import read_description, write_text_atomic
from nest.describe.job import Job, Stack
from nest.describe.layers import MLA, MoE
from nest.describe.links import Links
from nest.describe.loading import (
    load_cluster,
    load_configuration,
    load_device,
    load_job,
    load_model,
    load_profile,
    load_space,
    load_stack,
)
from nest.describe.model import Model
from nest.describe.profile import MeasuredLayer, Measurement, Profile
from nest.describe.space import IntSet, SearchSpace

__all__ = [
    "MLA",
    "Cluster",
    "Configuration",
    "Description",
    "Device",
    "GemmEfficiency",
    "GroupedEfficiency",
    "IntSet",
    "Job",
    "Level",
    "Links",
    "MeasuredLayer",
    "Measurement",
    "MoE",
    "Model",
    "Profile",
    "SearchSpace",
    "Stack",
    "StageConfiguration",
    "load_cluster",
    "load_configuration",
    "load_device",
    "load_job",
    "load_model",
    "load_profile",
    "load_space",
    "load_stack",
    "read_description",
    "write_text_atomic",
]
