"""Operator graphs of models that other software describes.

`torch_module` captures a PyTorch module. `graph_files` reads JSON, networkx node-link, GraphML and,
through `onnx_model`, ONNX. Nothing is unpickled, imported by name or executed.
"""

from nest.model.capture.graph_files import load_graph
from nest.model.capture.torch_module import from_torch

__all__ = ["from_torch", "load_graph"]
