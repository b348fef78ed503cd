"""Where tensors keep addresses, and functions of Python around machine code."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail.torch import tensor_words as searched
from dovetail.torch.python_function import with_arguments_as_tuple
from dovetail.torch.tensor_words import TensorWords, tensor_words

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def words() -> TensorWords:
    found = tensor_words()
    assert found is not None, "calls through this torch are slower: it keeps addresses elsewhere"
    return found


def inference() -> Any:
    with torch.inference_mode():
        return torch.randn(7)[3:]


MADE: dict[str, Callable[[], Any]] = {
    "float32": lambda: torch.randn(4, 5),
    "bf16": lambda: torch.randn(4, 5).bfloat16()[1:, 2:],
    "complex": lambda: torch.randn(6, dtype=torch.complex64)[3:],
    "bool": lambda: torch.ones(9, dtype=torch.bool)[5:],
    "six axes": lambda: torch.randn(2, 1, 3, 1, 2, 2)[1:].transpose(0, 2),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(7)[2:]),
    "numpy": lambda: torch.from_numpy(np.arange(12.0))[4:],
    "shared": lambda: torch.randn(8).share_memory_()[3:],
    "inference": inference,
    "no axes": lambda: torch.tensor(3.0),
    "a gradient": lambda: torch.randn(4, requires_grad=True) * 2,
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_addresses_are_those_that_torch_tells(words: TensorWords, made: Callable[[], Any]) -> None:
    tensor = made()
    assert words.address(tensor) == tensor.data_ptr()


@pytest.mark.parametrize("field", ["first", "data"])
def test_words_elsewhere_are_refused(words: TensorWords, field: str) -> None:
    samples = searched._samples()
    assert searched._follows(words, samples)
    assert not searched._follows(replace(words, **{field: getattr(words, field) + 8}), samples)


def test_words_that_are_not_there_or_twice_are_not_found() -> None:
    rows = np.array([[7, 1, 5, 5], [7, 2, 6, 6]])
    starts = [rows.ctypes.data, rows.ctypes.data + rows.strides[0]]
    assert searched._only(32, starts, [1, 2]) == 8
    assert searched._only(32, starts, [2, 1]) is None
    assert searched._only(32, starts, [5, 6]) is None


def test_arguments_come_as_the_tuple_of_the_caller() -> None:
    seen: list[tuple[Any, ...]] = []
    run = with_arguments_as_tuple(seen.append)
    given = (1, "two", [3])
    run(*given)
    assert seen[0] is given
    run()
    assert seen[1] == ()
    with pytest.raises(TypeError, match="keyword"):
        run(a=1)


def test_errors_and_lives_are_as_of_any_function() -> None:
    class Raises:
        def run(self, given: tuple[Any, ...]) -> None:
            raise ValueError(given)

    own = Raises()
    alive, run, argument = weakref.ref(own), with_arguments_as_tuple(own.run), object()
    del own
    before = sys.getrefcount(argument)
    for _ in range(3):
        with pytest.raises(ValueError):
            run(argument)
    gc.collect()
    assert sys.getrefcount(argument) == before and alive() is not None
    del run
    gc.collect()
    assert alive() is None
