"""Compiled modules: called as the module is, with its structures, its state, its weights, and errors that say where."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dovetail
from dovetail.errors import BindError, LoadError, OptionError, UnsupportedError
from dovetail.runtime.module import ModuleProgram
from tests.targets.runtime.test_prepared_call import numbers

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
Tensor = Any


def compiled(module: Any, *args: Any, dynamic: Any = None, **kwargs: Any) -> ModuleProgram:
    return dovetail.compile(module.eval(), args=args, kwargs=kwargs, dynamic=dynamic)


class Scaled(nn.Module):
    def forward(self, x: Tensor, pair: tuple[Tensor, dict[str, Tensor]], factor: int = 2, none: Any = None) -> Any:
        first, named = pair
        return {"a": x * factor, "b": [first + named["c"], none], "rows": x.shape[0]}


def test_arguments_and_results_keep_their_structure() -> None:
    x, pair = torch.randn(3, 2), (torch.randn(2), {"c": torch.ones(2)})
    program = compiled(Scaled(), x, pair, factor=3, dynamic={"x": {0: "n"}})
    found = program(x, pair, factor=3)
    assert torch.equal(found["a"], x * 3) and torch.equal(found["b"][0], pair[0] + 1)
    assert found["b"][1] is None and found["rows"] == 3
    assert program(torch.randn(5, 2), pair, factor=3)["rows"] == 5
    assert torch.equal(program(x=x, pair=pair, factor=3)["a"], x * 3)
    with pytest.raises(BindError, match="factor"):
        program(x, pair, factor=4)
    with pytest.raises(BindError):
        program(x, pair[:1], factor=3)
    with pytest.raises(BindError, match="does not fit forward"):
        program(x, pair, 3, None, "too many")


class Pair(NamedTuple):
    left: Any
    right: Any


def test_named_tuples_come_back_as_such() -> None:
    class Split(nn.Module):
        def forward(self, x: Tensor) -> Pair:
            return Pair(*x.chunk(2))

    found = compiled(Split(), torch.arange(4.0))(torch.arange(4.0))
    assert isinstance(found, Pair) and found.right.tolist() == [2.0, 3.0]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        self.cache[position] = x
        self.count += 1
        return self.cache.sum(dim=0), self.count


def test_buffers_that_a_module_changes_are_changed_in_place() -> None:
    module, eager = Counter(), Counter()
    program = compiled(module, torch.ones(1, 3), torch.tensor([0]))
    place = module.cache.data_ptr()
    for step in range(3):
        x, at = torch.full((1, 3), float(step)), torch.tensor([step])
        for found, wanted in zip(program(x, at), eager(x, at), strict=True):
            assert torch.equal(found, wanted)
    assert torch.equal(module.cache, eager.cache) and module.cache.data_ptr() == place
    assert set(program.graph.donated.values()) == {"b_cache", "b_count"}


def test_an_output_may_be_a_view_of_what_was_donated() -> None:
    x = dovetail.input("x", dovetail.dtypes.f32[4, 3])
    made = dovetail.ops.exp(x)
    graph = dovetail.Graph.of({"new": made, "seen": made, "row": made[0:1]}, inputs=[x]).donate({"new": "x"})
    array = numbers(4, 3)
    given = array.copy()
    found = dovetail.compile(graph).run({"x": given})
    assert found["new"] is given
    assert (found["seen"] == given).all() and (found["row"] == given[:1]).all()


@pytest.mark.parametrize("turned", [False, True])
def test_arguments_that_a_module_changes_are_changed(turned: bool) -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.add_(y) * 2

    x = torch.zeros(3, 2).t() if turned else torch.zeros(2, 3)
    found = compiled(Adds(), torch.zeros(2, 3), torch.ones(2, 3))(x, torch.ones(2, 3))
    assert torch.equal(x, torch.ones(2, 3)) and torch.equal(found, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_weights_are_shared_and_refreshed(dtype: str) -> None:
    kind = getattr(torch, dtype)
    module = nn.Linear(6, 5).to(kind)
    x = torch.randn(4, 6, dtype=kind)
    program = compiled(module, x)
    assert torch.allclose(program(x), module(x), rtol=2e-2, atol=1e-2)
    params = program._imported.graph.params  # pyright: ignore[reportPrivateUsage]
    assert params["weight"].ctypes.data == module.weight.data_ptr()
    with torch.no_grad():
        module.weight.mul_(2)
    assert torch.allclose(program.refresh()(x), module(x), rtol=2e-2, atol=2e-2)


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.words(ids))

    program = compiled(Tied(), torch.arange(5))
    assert len(program.graph.parameters) == 1


def test_values_know_their_module_and_line() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x)  # the line that a report names

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Inner(), Inner()])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    graph = compiled(Outer(), torch.ones(2))._imported.graph  # pyright: ignore[reportPrivateUsage]
    written = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(written, 1) if "the line that a report names" in text)
    assert graph.where(graph.outputs["output_0"]) == f"blocks.1, test_compile.py:{line} in Inner.forward"


def test_every_missing_operator_is_named_once_with_its_place() -> None:
    class Lacks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            bits = torch.hash_tensor(x) + torch.hash_tensor(x + 1)
            return bits + torch.histogram(x, 3).hist.sum()

    with pytest.raises(UnsupportedError) as caught:
        compiled(Lacks(), torch.eye(3))
    told = str(caught.value)
    assert "2 operators" in told and "hash_tensor.default: 2 times" in told and "in Lacks.forward" in told


def test_bad_input_is_refused_in_words() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(OptionError, match="training mode"):
        dovetail.compile(nn.Sequential(nn.Dropout(0.1)), args=(torch.ones(2),))
    with pytest.raises(LoadError, match=r"torch\.export refuses the module"):
        compiled(Branches(), torch.ones(2))
    with pytest.raises(OptionError, match="without a torch module"):
        dovetail.compile(dovetail.Graph.of(dovetail.input("x", dovetail.dtypes.f32[2]) * 2.0), args=(1,))  # pyright: ignore
    program = compiled(nn.Linear(3, 2), torch.ones(1, 3))
    with pytest.raises(BindError):
        program(torch.ones(1, 3, dtype=torch.float64))
    with pytest.raises(BindError):
        program("no tensor")


def test_programs_as_modules_are_not_copied(tmp_path: Path) -> None:
    module = nn.Linear(3, 2).eval()
    program = compiled(module, torch.ones(1, 3))
    inside = nn.Sequential(program.as_module())
    with torch.inference_mode():
        assert torch.allclose(inside(torch.ones(1, 3)), module(torch.ones(1, 3)))
    for refused in (lambda: copy.deepcopy(inside), lambda: copy.deepcopy(program)):
        with pytest.raises(BindError):
            refused()
    with pytest.raises(BindError):
        torch.save(inside, tmp_path / "module.pt")


def test_exported_programs_and_their_files(tmp_path: Path) -> None:
    module, x = nn.Linear(3, 2).eval(), torch.randn(4, 3)
    exported = torch.export.export(module, (x,))
    assert torch.allclose(dovetail.compile(exported)(x), module(x))
    path = tmp_path / "linear.pt2"
    torch.export.save(exported, path)
    graph = dovetail.load(path)
    assert [str(v.type) for v in graph.inputs] == ["f32[4, 3]"]
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"no program")
    with pytest.raises(LoadError, match="no exported program"):
        dovetail.load(broken)


def test_masks_of_data_give_sizes_of_data() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.masked_select(x, x > 0), torch.nonzero(x > 0)

    x = torch.tensor([[1.0, -1.0], [2.0, 3.0]])
    program = compiled(Picks(), x)
    for given in (x, -x):
        wanted = (given[given > 0], torch.nonzero(given > 0))
        assert all(torch.equal(a, b) for a, b in zip(program(given), wanted, strict=True))


class OneHead(nn.Module):
    """Keys and values of one head, repeated for all heads of the queries as transformers repeats them."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        shape = (k.shape[0], 1, q.shape[1], *k.shape[2:])
        k, v = (x[:, :, None].expand(shape).reshape(shape[0], *shape[2:]) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_one_head_of_keys_and_values_is_not_copied_for_every_head_of_queries() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 8)
    module = OneHead()
    program = dovetail.compile(module, args=(q, k, v), require=["attention"])
    assert [step.value.op.name for step in program.plan.steps] == ["attention"]
    assert program.plan.steps[0].value.operands[1].shape[1] == 1
    assert torch.allclose(program(q, k, v), module(q, k, v), atol=1e-6)


class Windows(nn.Module):
    """Every pool whose size is rounded up, with windows up to some pixels wider than the padded image."""

    def forward(self, row: Any, image: Any) -> list[Any]:
        made: list[Any] = []
        for kernel, stride, padding in product((2, 5, 8), (2, 3), (0, 1)):
            window = {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": True}
            for count, x, extent in ((1, row, 4), (2, image, 5)):
                if -(-(extent + 2 * padding - kernel) // stride) + 1 < 1:
                    continue  # torch refuses a result without pixels
                made.append(getattr(F, f"max_pool{count}d")(x, **window))
                for counted in (False, True):
                    made.append(getattr(F, f"avg_pool{count}d")(x, **window, count_include_pad=counted))
        return made


def test_windows_wider_than_their_image_are_as_wide_as_it() -> None:
    row, image = torch.randn(1, 2, 4), torch.randn(1, 2, 5, 6)
    module = Windows()
    wanted = module(row, image)
    found = dovetail.compile(module, args=(row, image))(row, image)
    assert len(found) == len(wanted) > 30
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and torch.allclose(one, other, atol=1e-6)


def test_weights_of_a_module_are_quantised() -> None:
    """Products read blocks, the report has each matrix, and weights that change are not read again."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).eval()
    x = torch.randn(3, 96)
    compiled = dovetail.compile(module, args=(x,), quantize="int8", cache="off")
    wanted = module(x).detach()
    assert 0 < float((compiled(x) - wanted).abs().max()) < 0.02 * float(wanted.abs().max())
    told = compiled.program.quantized
    assert told is not None and {layer.name: layer.kept for layer in told.layers} == {"0.weight": "", "2.weight": ""}
    with pytest.raises(dovetail.errors.BindError, match="weights were quantized"):
        compiled.refresh()
