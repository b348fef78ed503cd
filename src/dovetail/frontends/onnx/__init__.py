"""ONNX models as graphs: `load_model` reads a file, `import_model` a model in memory."""

from dovetail.frontends.onnx.load import import_model, load_model

__all__ = ["import_model", "load_model"]
