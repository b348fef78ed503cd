"""Calls of compiled modules: tensors of every kind, limits of sizes, bad arguments, modules in the place of modules."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import pickle
import threading
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.errors import BindError, LoadError, OptionError
from dovetail.frontends.torch import load
from dovetail.frontends.torch.reading.limits import limits_of
from dovetail.runtime.module import ModuleProgram

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
Tensor = Any


def compiled(module: Any, *args: Any, dynamic: Any = None, **kwargs: Any) -> ModuleProgram:
    return dovetail.compile(module.eval(), args=args, kwargs=kwargs, dynamic=dynamic)


class Mixed(nn.Module):
    """Two tensors by any name, one of them twice in the result, and a number."""

    def forward(self, x: Tensor, y: Tensor, scale: float = 2.0) -> dict[str, Any]:
        return {"sum": x + y * scale, "pair": (x * y, [y - x])}


@pytest.fixture(scope="module")
def mixed() -> ModuleProgram:
    return compiled(Mixed(), torch.ones(3, 4), torch.ones(3, 4), dynamic={"x": {0: "n"}, "y": {0: "n"}})


def spelled(x: Any, y: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x})]


def tensors(n: int) -> dict[str, tuple[Any, Any]]:
    """Pairs that have the same meaning and another place or layout in memory."""
    x, y = torch.randn(n, 4), torch.randn(n, 4)
    wide = torch.randn(n, 8)
    return {
        "dense": (x, y),
        "transposed": (x.t().contiguous().t(), y),
        "strided": (wide[:, ::2], wide[:, 1::2]),
        "expanded": (x[:1].expand(n, 4), y),
        "offset": (torch.randn(n + 1, 4)[1:], y),
        "a parameter": (nn.Parameter(x, requires_grad=False), y),
        "negated": (torch.complex(x, y).conj().imag, y),
    }


@pytest.mark.parametrize("n", [3, 1, 7, 0])
def test_tensors_of_every_kind_in_every_spelling_of_the_call(mixed: ModuleProgram, n: int) -> None:
    eager = Mixed()
    for kind, (x, y) in tensors(n).items():
        wanted = eager(x, y)
        for args, kwargs in spelled(x, y):
            found = mixed(*args, **kwargs)
            assert list(found) == ["sum", "pair"] and type(found["pair"][1]) is list, kind
            for one, other in ((found["sum"], wanted["sum"]), (found["pair"][0], wanted["pair"][0])):
                assert torch.allclose(one, other) and one.shape == other.shape and one.is_contiguous(), kind
            assert torch.equal(found["pair"][1][0], y - x), kind


def test_a_call_that_repeats_is_tested_at_once_and_takes_no_other_tensors_for_its_own(mixed: ModuleProgram) -> None:
    eager, (x, y) = Mixed(), tensors(5)["dense"]
    for _ in range(3):
        mixed(x, y)
    runner: Any = mixed.program._binding.runner  # pyright: ignore[reportPrivateUsage]
    (calls,) = runner.foreign_calls.values()
    fits = calls.workspaces[-1].last.fits
    assert fits(x, y) and not fits(x.t().contiguous().t(), y) and not fits(x, y.double()) and not fits(x[:4], y[:4])
    for kind, (a, b) in [*tensors(5).items(), *tensors(6).items(), ("one twice", (x, x))]:
        for one, other in ((a, b), (x, y), (b, a)):  # the tensors of the last call come back at other places
            assert torch.allclose(mixed(one, other)["sum"], eager(one, other)["sum"]), kind
    with torch.inference_mode():
        for _ in range(3):
            assert torch.allclose(mixed(x + 1, y)["sum"], eager(x + 1, y)["sum"])


def test_results_are_the_callers() -> None:
    program = compiled(nn.Tanh(), torch.ones(3, 4))
    x = torch.randn(3, 4)
    first = program(x)
    first.fill_(7)
    assert torch.allclose(program(x), torch.tanh(x)) and bool((first == 7).all())


def test_tensors_from_several_threads() -> None:
    program = compiled(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), torch.ones(2, 4), dynamic=({0: "n"},))
    module, wrong = program, []

    def calls(seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        for n in (1, 2, 3, 2, 1):
            x = torch.randn(n, 4, generator=made)
            if not torch.equal(module(x), module(x.clone())):
                wrong.append(seed)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int64", "bool", "uint8"])
def test_every_dtype_goes_in_and_out(dtype: str) -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.flip(0), x[1:]

    x = (torch.randn(5, 3) * 4).to(getattr(torch, dtype))
    program = compiled(Same(), x)
    for _ in range(2):
        flipped, rest = program(x)
        assert torch.equal(flipped, x.flip(0)) and torch.equal(rest, x[1:]) and flipped.dtype is x.dtype


def test_arrays_of_other_libraries_are_taken_by_dlpack(mixed: ModuleProgram) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = mixed(x, y)["sum"]
    np.testing.assert_allclose(np.from_dlpack(found), x + 2 * y, rtol=1e-6)
    with pytest.raises(BindError, match=r"argument x is of torch\.float64"):
        mixed(x.astype(np.float64), y)


class Ranged(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x[: y.shape[0]] + y if x.shape[0] % 4 == 0 else x


def test_sizes_outside_of_an_export_are_refused_by_name() -> None:
    size = torch.export.Dim("size", min=3, max=9)
    program = compiled(nn.Tanh(), torch.ones(4, 2), dynamic=({0: size},))
    for n in (3, 9, 4):
        assert program(torch.ones(n, 2)).shape == (n, 2)
    for n in (2, 10):
        with pytest.raises(BindError, match=rf"has size {n} on axis 0, and .* sizes from 3 to 9"):
            program(torch.ones(n, 2))
    for dynamic in (True, {"x": {0: "n"}, "y": {0: "n"}}):
        branch = compiled(Ranged(), torch.ones(8, 2), torch.ones(8, 2), dynamic=dynamic)
        assert branch(torch.ones(12, 2), torch.ones(12, 2)).sum() == 48
        with pytest.raises(BindError, match=r"sizes with x.shape\[0\] % 4 == 0, and found x \[6, 2\]"):
            branch(torch.ones(6, 2), torch.ones(6, 2))


def test_relations_from_a_file_are_data() -> None:
    said = [
        "__import__('os').system('false')",
        "L['x'].size().real",
        "L['x'].size()[0] == 'a'",
        "L['x'].size()[0] % 2 == 0",
        "max(1, 2) == 3",
    ]
    graph = type("Graph", (), {"nodes": [_Node()]})()
    program = type("Program", (), {"_guards_code": said, "range_constraints": {}, "graph": graph})()
    limits = limits_of(program, [("x", "L['x']", "x")])
    assert limits is not None and [r.text for r in limits.relations] == ["x.shape[0] % 2 == 0"]


class _Node:
    name, op = "x", "placeholder"
    meta = {"val": torch.ones(2)}  # noqa: RUF012


CALLS: dict[str, tuple[Any, str]] = {
    "another dtype": (lambda p, x: p(x.double(), x), r"argument x is of torch.float64, and .* torch.float32"),
    "another rank": (lambda p, x: p(x[0], x), r"the input x has 1 axes"),
    "another size": (lambda p, x: p(x[:, :3], x), r"argument x has 3 on axis 1, and the program was compiled for 4"),
    "sizes that differ": (lambda p, x: p(x, x[:2]), r"the input y has the shape \[2, 4\].* n is 3"),
    "a missing argument": (lambda p, x: p(x), r"missing a required argument: 'y'"),
    "an extra argument": (lambda p, x: p(x, x, 2.0, x), r"too many positional arguments"),
    "an unknown keyword": (lambda p, x: p(x, x, mask=x), r"unexpected keyword argument 'mask'"),
    "another number": (lambda p, x: p(x, x, 3.0), r"argument scale, which was not exported|argument scale is 3.0"),
    "no tensor": (lambda p, x: p(x, "y"), r"argument y is a str"),
    "a tensor on another device": (lambda p, x: p(x.to("meta"), x), r"argument x is on meta"),
    "a sparse tensor": (lambda p, x: p(x.to_sparse(), x), r"argument x has the layout torch.sparse_coo"),
    "a gradient": (lambda p, x: p(x.clone().requires_grad_(), x), r"argument x requires a gradient"),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls_that_do_not_fit_are_refused_in_words(mixed: ModuleProgram, what: str) -> None:
    call, said = CALLS[what]
    x = torch.ones(3, 4)
    for _ in range(2):
        with pytest.raises(BindError, match=said):
            call(mixed, x)
        assert torch.equal(mixed(x, x)["sum"], 3 * x)


def test_inputs_with_a_gradient_are_taken_where_none_is_recorded(mixed: ModuleProgram) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            found = mixed(x, x)["sum"]
        assert torch.allclose(found, 3 * x) and not found.requires_grad


def test_dicts_of_a_tokeniser_are_taken_as_keywords() -> None:
    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 4)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.words(input_ids) * attention_mask[..., None]

    encoded = UserDict({"input_ids": torch.arange(6).view(2, 3), "attention_mask": torch.ones(2, 3)})
    module = Embeds().eval()
    program = dovetail.compile(module, args=encoded)
    for found in (program(**encoded), program(encoded), program(*encoded.values())):
        assert torch.equal(found, module(**encoded))


def test_examples_that_do_not_fit_are_refused_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    linear = nn.Linear(3, 2).eval()
    with pytest.raises(LoadError, match=r"torch\.export refuses the module") as caught:
        dovetail.compile(linear, args=(torch.ones(1, 4),))
    told = str(caught.value)
    assert told.count("reduction dim") == 1 and not capfd.readouterr().err
    with pytest.raises(OptionError, match="does not fit forward"):
        dovetail.compile(linear, args=(torch.ones(1, 3), 1, 2), dynamic=True)
    with pytest.raises(OptionError, match="args is a Tensor"):
        dovetail.compile(linear, args=torch.ones(1, 3))
    with pytest.raises(OptionError, match="training mode"):
        dovetail.compile(nn.Sequential(linear, nn.Dropout(0.1)).train(), args=(torch.ones(1, 3),))


def test_a_program_is_a_module_in_the_place_of_a_module() -> None:
    inner = nn.Linear(4, 4).eval()
    outer = nn.Sequential(nn.ReLU(), inner)
    x = torch.randn(2, 4)
    wanted = outer(x).detach()
    outer[1] = compiled(inner, x).as_module()
    outer.eval()
    assert list(outer.state_dict()) == [] and not any(True for _ in outer.parameters())
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            assert torch.allclose(outer(x), wanted, atol=1e-6)
    assert "compiled module Linear" in repr(outer)
    with pytest.raises(BindError, match="cannot be trained"):
        outer.train()


def test_programs_run_in_workers_of_a_loader() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).eval()
    program = compiled(module, torch.ones(1, 4))
    program(torch.ones(1, 4))

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return program(torch.full((1, 4), float(index)))[0]

    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    found = torch.cat(list(loader))
    wanted = module(torch.arange(6.0)[:, None].expand(6, 4))
    assert torch.allclose(found, wanted, atol=1e-6)
    with pytest.raises(BindError, match="cannot be saved"):
        pickle.dumps(program)


class CompiledInItsWorker(torch.utils.data.Dataset):
    """Rows of a module that the process compiles which reads the first of them."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.program: ModuleProgram | None = None

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        if self.program is None:
            self.program = compiled(self.module, torch.ones(1, 4))
        return self.program(torch.full((1, 4), float(index)))[0]


def test_workers_that_spawn_compile_for_themselves() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).eval().requires_grad_(False)
    rows = CompiledInItsWorker(module)
    loader = torch.utils.data.DataLoader(rows, batch_size=3, num_workers=1, multiprocessing_context="spawn")
    (found,) = loader
    assert torch.allclose(found, module(torch.arange(3.0)[:, None].expand(3, 4)), atol=1e-6)
    assert torch.allclose(rows[2], found[2]) and rows.program is not None
    with pytest.raises(BindError, match="cannot be saved"):
        next(iter(loader))  # what is compiled here does not travel to a worker


class Indexed(nn.Module):
    """Weights, and a small table of integers, which becomes part of the graph."""

    def __init__(self, picked: list[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("picked", torch.tensor(picked))

    def forward(self, x: Tensor, scale: float) -> dict[str, Any]:
        return {"y": self.linear(x)[:, self.picked] * scale, "n": 3}


def test_a_program_that_is_known_is_not_decomposed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4)

    def made(picked: list[int], scale: float = 2.0) -> tuple[Any, ModuleProgram]:
        module = Indexed(picked).eval().requires_grad_(False)
        return module, dovetail.compile(module, args=(x, scale), cache=str(tmp_path))

    made([2, 0])

    def refuse(*_: Any) -> Any:
        raise AssertionError("decomposed again")

    with monkeypatch.context() as patched:
        patched.setattr(load, "decomposed", refuse)
        module, program = made([2, 0])
        for _ in range(2):
            found = program(x, 2.0)
            assert torch.allclose(found["y"], module(x, 2.0)["y"], atol=1e-6) and found["n"] == 3
        module.linear.weight.mul_(2)
        assert torch.allclose(program.refresh()(x, 2.0)["y"], module(x, 2.0)["y"], atol=1e-6)
        for other in (([1, 0], 2.0), ([2, 0], 3.0)):
            with pytest.raises(AssertionError, match="decomposed again"):
                made(*other)
    assert program.report.count("linear") == 1
