"""Operators of ai.onnx.ml: what scikit-learn's models are exported as, where tensors suffice."""

from dovetail.frontends.onnx.rules.classical import features, linear, trees, vectors

RULES = (*features.RULES, *linear.RULES, *trees.RULES, *vectors.RULES)
