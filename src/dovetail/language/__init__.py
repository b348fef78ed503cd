"""Language models: a file, its tokenizer, and text that continues a prompt."""

from dovetail.language.model import LanguageModel
from dovetail.language.sampling import Sampling

__all__ = ["LanguageModel", "Sampling"]
