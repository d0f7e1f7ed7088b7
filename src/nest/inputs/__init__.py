"""Descriptions that a user writes, and how they are read from files.

Frozen classes, validated once: `model` (with `layers`, and `trainable`: what is trained), `cluster`
(with `device`, `links`, `link_kinds` and `filling`: which devices of a group are used), `job` (with
the stack, `capabilities`: what it can run, and `lengths`: those of its samples), `formats` (number
formats of products), `space` (bounds of a search), `offload` (what is kept in the memory of the
hosts), `choices` (values of a stack that a person chooses), `failures` (how often parts fail),
`configuration` (one way to run), `profile` (measured layers), `operator_graph` (operators with
their FLOP and bytes). Start with `base`, the base class of all, then `model`, `cluster`, `job`.
`loading` turns a name, a file or a mapping into one of them, with `sources` (the catalog
alone, or files too), `files` (YAML, JSON, limits),
`catalog` and `huggingface`. `arguments` checks the arguments of the functions of
`nest`.
"""

from nest.inputs.base import Description
from nest.inputs.cluster import Cluster, Level
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.device import Device, GemmEfficiency, GroupedEfficiency
from nest.inputs.failures import Failures
from nest.inputs.files import read_description, write_text_atomic
from nest.inputs.job import Job, Stack
from nest.inputs.layers import MLA, MoE
from nest.inputs.links import Links
from nest.inputs.loading import (
    load_cluster,
    load_configuration,
    load_device,
    load_failures,
    load_job,
    load_model,
    load_profile,
    load_space,
    load_stack,
)
from nest.inputs.model import Model
from nest.inputs.profile import MeasuredLayer, Measurement, Profile
from nest.inputs.space import IntSet, SearchSpace

__all__ = [
    "MLA",
    "Cluster",
    "Configuration",
    "Description",
    "Device",
    "Failures",
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
    "load_failures",
    "load_job",
    "load_model",
    "load_profile",
    "load_space",
    "load_stack",
    "read_description",
    "write_text_atomic",
]
