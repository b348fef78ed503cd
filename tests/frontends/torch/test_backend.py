"""torch.compile with our backend: what it computes, changes, shares and draws is what eager does, or it is refused."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

import dovetail
import dovetail.torch as backend_module
from dovetail.errors import DeviceError, DovetailError, OptionError, UnsupportedError
from dovetail.frontends.torch.dynamo.region import Region
from dovetail.torch import explain, reports
from dovetail.torch.compiled import CompiledGraph, live
from dovetail.torch.region_call import DeviceRegionCall
from tests.sources import ROOT
from tests.torch_networks.judge import assert_as_near_as_eager, wide

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
dynamo: Any = pytest.importorskip("torch._dynamo")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def graphs() -> Iterator[Callable[[], list[CompiledGraph]]]:
    """The graphs that a test has compiled so far."""
    dynamo.reset()
    torch.manual_seed(0)
    before = set(live())
    yield lambda: [graph for graph in live() if graph not in before]
    dynamo.reset()


Graphs: TypeAlias = Callable[[], list[CompiledGraph]]


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=dovetail.torch.backend, **options)


class Network(nn.Module):
    """A convolution with batch norm in training, attention, a norm, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.qkv, self.last = nn.Linear(8, 24), nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, image: Any) -> Any:
        x = F.gelu(self.norm(self.conv(image))).flatten(2).transpose(1, 2)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(self.last(x + y)).mean(dim=1)


def test_training_steps_are_as_near_as_eager() -> None:
    ours = Network()
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    steps = [(compiled(ours), ours), (eager, eager), (exact, exact)]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for _, module in steps]
    for step in range(2):
        image = torch.randn(2, 3, 6, 6)
        made: list[Any] = []
        for (run, module), optimizer in zip(steps, optimizers, strict=True):
            optimizer.zero_grad()
            y = run(wide(image) if module is exact else image)
            (y * y).sum().backward()
            made.append([y.detach(), [p.grad for p in module.parameters()], list(module.buffers())])
        assert_as_near_as_eager(*made)
        for optimizer in optimizers:
            optimizer.step()
        assert step or ours.norm.num_batches_tracked == 1
    told = reports()[-2:]
    assert [r.kind for r in told] == ["forward", "backward"] and all(r.regions for r in told)


def test_ten_sizes_take_no_more_graphs_than_torch_needs(graphs: Graphs) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: Any) -> Any:
            rows, length, _ = x.shape
            q, k, v = self.qkv(x).view(rows, length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(rows, length, 8) * length

    module = Attends()
    counts: list[int] = []
    for backend in ("aot_eager", dovetail.torch.backend):
        dynamo.reset()
        dynamo.utils.counters.clear()
        run = torch.compile(module, backend=backend)
        with torch.no_grad():
            for size in range(2, 12):
                x = torch.randn(size, size + 3, 8)
                assert_as_near_as_eager(run(x), module(x), copy.deepcopy(module).double()(x.double()))
        counts.append(dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[1] <= counts[0]
    programs = [program for graph in graphs() for program in graph.programs]
    assert len(programs) == counts[1] and not any(program.cases for program in programs)
    assert reports()[-1].regions[0].count("attention") == 1 and not reports()[-1].fallbacks


def test_sizes_of_values_in_a_region_are_known_by_their_types(graphs: Graphs) -> None:
    """torch computes no size that regions alone read, and no region gives a tensor out for the sake of its size."""

    def rows_of_windows(x: Any) -> Any:
        y = x.exp().unfold(0, 2, 2)
        return y.reshape(-1, 2).relu().view(y.shape[0], -1).sum(0)

    run = torch.compile(rows_of_windows, backend=dovetail.torch.backend, dynamic=True)
    with torch.no_grad():
        for size in (4, 6):
            x = torch.randn(size, 8)
            assert torch.allclose(run(x), rows_of_windows(x), rtol=1e-5)
    (graph,) = graphs()
    assert any(str(node.target) == "aten.sym_size.int" for node in graph.division.module.graph.nodes)
    (program,) = graph.programs
    assert len(graph.division.steps) == 1 and not graph.report().fallbacks and len(program.graph.outputs) == 1


def test_weights_are_read_at_every_call_and_never_copied(graphs: Graphs) -> None:
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    run = compiled(module)
    with torch.no_grad():
        for _ in range(3):
            run(x)
        for change in (
            lambda: module.weight.mul_(2),
            lambda: module.weight.data.fill_(0.5),  # no version tells of it
            lambda: setattr(module.weight, "data", torch.randn(2, 3)),
            lambda: module.load_state_dict(nn.Linear(3, 2).state_dict()),
        ):
            change()
            assert torch.allclose(run(x), module(x), atol=1e-6)
    (graph,) = graphs()
    assert not graph.programs[0].params


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(6, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any, at: Any) -> Any:
        self.rows.index_copy_(0, at, x)
        self.count += 1
        return self.rows.sum(dim=0), self.rows[1:]


def test_buffers_are_changed_in_place(graphs: Graphs) -> None:
    ours, eager = Cache(), Cache()
    run, place = compiled(ours), ours.rows.data_ptr()
    with torch.no_grad():
        for step in range(3):
            x, at = torch.full((1, 3), float(step + 1)), torch.tensor([step])
            for found, wanted in zip(run(x, at), eager(x, at), strict=True):
                assert torch.equal(found, wanted)
    assert torch.equal(ours.rows, eager.rows) and ours.count == 3 and ours.rows.data_ptr() == place
    (donated,) = [program.plan.donations for graph in graphs() for program in graph.programs]
    assert [donation.copied for donation in donated] == [0, 0]


def test_outputs_share_memory_and_are_stored_as_in_eager() -> None:
    def views(x: Any) -> Any:
        y = x * 2
        return y, y.view(-1), x.t(), x, y.t(), (x + 1).t().exp()

    x = torch.randn(2, 3)
    found, wanted = compiled(views)(x), views(x)
    for ours, eager in zip(found, wanted, strict=True):
        assert torch.equal(ours, eager) and ours.stride() == eager.stride()
    found[0].zero_()
    assert not found[1].any() and not found[4].any()
    found[2].zero_()
    assert not x.any() and found[3] is x


@pytest.mark.parametrize("given", ["transposed", "strided", "expanded"])
def test_inputs_may_have_any_strides(given: str) -> None:
    base = torch.randn(3, 4)
    x = {"transposed": base.t(), "strided": base[:, ::2], "expanded": base[:, :1].expand(3, 4)}[given]
    run = compiled(lambda x: x.exp() + 1)
    assert torch.allclose(run(x), x.exp() + 1) and run(x).stride() == (x.exp() + 1).stride()


def test_random_numbers_are_those_of_eager() -> None:
    def draws(x: Any) -> Any:
        return F.dropout(x * 2, 0.5) + torch.randn(3, 4) * torch.rand_like(x)

    run, x = compiled(draws), torch.ones(3, 4)
    found: list[Any] = []
    for function in (run, draws):
        torch.manual_seed(3)
        found.append((function(x), torch.rand(1)))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6) and torch.equal(found[0][1], found[1][1])
    assert {f.op.split(".")[1] for f in reports()[-1].fallbacks} >= {"randn", "rand_like"}


def test_numbers_that_are_no_sizes_reach_the_graph(graphs: Graphs) -> None:
    def scaled(x: Any, n: int) -> Any:
        return x * n + torch.arange(x.shape[0])

    run = compiled(scaled, dynamic=True)
    for n in (2, -3, 7):
        x = torch.randn(5 + abs(n))
        assert torch.allclose(run(x, n), scaled(x, n))
    assert len(graphs()) == 1


def test_constants_of_a_graph() -> None:
    def shifted(x: Any) -> Any:
        return x * 2 + torch.tensor([1.0, 2.0, 3.0])

    for graded in (False, True):
        x = torch.randn(2, 3, requires_grad=graded)
        assert torch.allclose(compiled(shifted)(x), shifted(x))


def shrunk(x: Any) -> Any:
    return F.interpolate(x[None, None], size=(3, 3), mode="bilinear", antialias=True)[0, 0]


def lacks(x: Any) -> Any:
    y = shrunk(x * 2) + 1
    return shrunk(y) @ torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 1, 1]), axis=0, unsafe=True)


def test_torch_runs_what_has_no_rule_and_the_report_prices_it() -> None:
    x = torch.eye(3) + torch.rand(3, 3)
    explained = explain(compiled(lacks), x, repeats=2)
    (graph,) = explained.graphs
    assert len(graph.regions) == 3 and graph.runs == 5
    twice = next(f for f in graph.fallbacks if f.op == "aten._upsample_bilinear2d_aa.default")
    assert twice.count == 2 and twice.bytes > 0 and 0 < twice.seconds <= graph.seconds <= explained.call_seconds * 2
    assert len(twice.places) == 1 and all("in shrunk" in place for place in twice.places)
    assert "torch runs aten._upsample_bilinear2d_aa.default 2 times" in str(explained)
    assert torch.allclose(compiled(lacks)(x), lacks(x), atol=1e-4)


def test_fallbacks_can_be_refused_all_in_one_error() -> None:
    for x in (torch.eye(3), torch.eye(3, requires_grad=True)):
        with pytest.raises(UnsupportedError) as caught:
            compiled(lacks, options={"fallback": "error"})(x)
        told = str(caught.value)
        assert "_upsample_bilinear2d_aa.default: 2 times" in told and "in lacks" in told and "segment_reduce" in told
    assert compiled(lambda x: x + 1, options={"fallback": "error"})(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"options": {"fallbck": "error"}}, OptionError, "did you mean fallback"),
        ({"options": {"fallback": "maybe"}}, OptionError, "eager, error"),
        ({"options": {"threads": -1}}, OptionError, "threads"),
        ({"options": {"target": "tpu"}}, DovetailError, "tpu"),
        ({"options": {"target": "cuda"}}, DeviceError, "tensors on cpu for the target cuda"),
        ({"mode": "fastest"}, OptionError, "the modes are default, reduce-overhead"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        compiled(lambda x: x + 1, **options)(torch.ones(2))


def test_options_reach_programs_and_threads_are_those_of_torch(graphs: Graphs) -> None:
    compiled(lambda x: x * 3)(torch.ones(2))
    compiled(lambda x: x * 4, mode="reduce-overhead")(torch.ones(2))
    compiled(lambda x: x * 5, options={"threads": 1, "strict": True})(torch.ones(2))
    pools = [program._binding.runner.threads for graph in graphs() for program in graph.programs]  # pyright: ignore
    assert pools == [torch.get_num_threads(), torch.get_num_threads(), 1]


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(DeviceError, match="tensors on meta"):
        compiled(lambda x: x + 1)(torch.ones(2, device="meta"))


def test_the_entry_point_names_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["dovetail"].partition(":")
    assert module == "dovetail.torch" and getattr(backend_module, name) is dovetail.torch.backend


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_layers_that_torch_has_one_operator_for_fuse(options: dict[str, Any]) -> None:
    """Without gradients, torch runs an encoder layer as one operator of its own."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x, keep = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    eager, exact = copy.deepcopy(layer), copy.deepcopy(layer).double()
    run = compiled(layer)
    with torch.no_grad():
        for given in ({}, {"src_key_padding_mask": keep}):
            assert_as_near_as_eager(run(x, **given), eager(x, **given), exact(x.double(), **given))
    whole, masked = reports()[-2:]
    assert not whole.fallbacks and whole.regions[0].count("attention") == 1 and whole.regions[0].count("linear") >= 4
    assert [f.op for f in masked.fallbacks] == ["aten._transformer_encoder_layer_fwd.default"]


def test_graph_breaks_are_told_with_their_place() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.cell = nn.Linear(4, 6), nn.LSTM(6, 5, batch_first=True)

        def forward(self, x: Any) -> Any:
            h = self.first(x).relu()
            h = self.cell(h)[0]  # the line that breaks the graph
            return h.tanh()

    module, x = Recurrent(), torch.randn(2, 3, 4)
    with torch.no_grad():
        explained = explain(compiled(module), x, repeats=1)
        assert torch.allclose(compiled(module)(x), module(x), atol=1e-6)
    (ended,) = [g.graph_break for g in explained.graphs if g.graph_break is not None]
    assert "in forward" in ended.place and "LSTM" in ended.reason
    assert ended in explained.breaks and f"graph break at {ended.place}" in str(explained)


def test_tensors_of_a_device_pass_through_dlpack(graphs: Graphs) -> None:
    def steps(state: Any, x: Any) -> Any:
        state.add_(x)
        return state.t() * 2

    compiled(steps)(torch.zeros(2, 3), torch.ones(2, 3))
    (graph,) = graphs()
    region = next(one for one in graph.division.steps if isinstance(one, Region))
    call = DeviceRegionCall(graph.programs[0], region)
    given = {"state": torch.zeros(2, 3), "x": torch.ones(2, 3)}
    ordered = [given["state" if feed.node in {w.copy.args[0] for w in region.writes} else "x"] for feed in region.feeds]
    (found,) = call(tuple(ordered))
    assert torch.equal(given["state"], torch.ones(2, 3))
    assert torch.equal(found, torch.full(found.shape, 2.0)) and found.stride() == (1, 3)
