"""Small programs of what makes trouble: control flow, sizes that data decide, state, numbers as arguments."""

# torch is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.torch_networks.network import Network, collected, network

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional


class Function(nn.Module):
    """A function of a module and tensors as a module; buffers and submodules are given by name."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *tensors: Any) -> Any:
        return self.function(self, *tensors)


ROWS = (({0: "rows"},),)


@network("control flow")
def cond() -> Network:
    def run(_: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() + 1, (x,))

    return Network(Function(run), (torch.randn(3, 4),), ROWS)


@network("control flow", note="branches that read weights")
def cond_of_layers() -> Network:
    def run(self: Any, x: Any) -> Any:
        return torch.cond(x.mean() > 0, lambda x: self.a(x), lambda x: F.gelu(self.b(x)), (x,))

    return Network(Function(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),), ROWS)


@network("control flow")
def while_loop() -> Network:
    from torch._higher_order_ops.while_loop import while_loop as loop

    def run(_: Any, x: Any) -> Any:
        return loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 1.5), (torch.tensor(0), x))

    return Network(Function(run), (torch.randn(3, 4),), ROWS)


@network("control flow", note="a loop that ends by what it computes")
def while_of_layers() -> Network:
    from torch._higher_order_ops.while_loop import while_loop as loop

    def run(self: Any, x: Any) -> Any:
        return loop(lambda y: y.abs().max() > 0.1, lambda y: (torch.tanh(self.a(y)) * 0.5,), (x,))

    return Network(Function(run, a=nn.Linear(4, 4, bias=False)), (torch.randn(3, 4),))


@network("control flow")
def scan() -> Network:
    from torch._higher_order_ops.scan import scan as torch_scan

    def run(_: Any, x: Any) -> Any:
        return torch_scan(lambda c, x: (c + x, c * x), torch.zeros(4), x)

    return Network(Function(run), (torch.randn(5, 4),), ROWS)


@network("control flow", note="a recurrence with weights, from the last slice to the first")
def scan_of_layers() -> Network:
    from torch._higher_order_ops.scan import scan as torch_scan

    def run(self: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            new = torch.tanh(self.a(h) + x)
            return new, new * 2

        return torch_scan(step, torch.zeros(2, 4), x, dim=1, reverse=True)

    return Network(Function(run, a=nn.Linear(4, 4)), (torch.randn(2, 5, 4),))


@network("control flow")
def map_over_rows() -> Network:
    from torch._higher_order_ops.map import map as torch_map

    def run(_: Any, xs: Any, y: Any) -> Any:
        return torch_map(lambda x, y: (x @ y).relu(), xs, y)

    return Network(Function(run), (torch.randn(3, 2, 4), torch.randn(4, 4)))


@network("control flow")
def associative_scan() -> Network:
    from torch._higher_order_ops.associative_scan import associative_scan as torch_scan

    def run(_: Any, x: Any) -> Any:
        return torch_scan(lambda a, b: a * b + a, x, 0, combine_mode="generic")

    return Network(Function(run), (torch.rand(5, 4),))


@network("control flow", note="invoke_subgraph")
def nested_region() -> Network:
    @torch.compiler.nested_compile_region
    def block(w: Any, b: Any, x: Any) -> Any:
        return torch.relu(F.linear(x, w, b))

    def run(self: Any, x: Any) -> Any:
        return block(self.b.weight, self.b.bias, block(self.a.weight, self.a.bias, x))

    return Network(Function(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(2, 4),))


@network("attention", note="a higher-order operator")
def flex_attention() -> Network:
    from torch.nn.attention.flex_attention import flex_attention as flex

    def run(_: Any, q: Any, k: Any, v: Any) -> Any:
        return flex(q, k, v, score_mod=lambda s, b, h, i, j: 20.0 * torch.tanh(s / 20.0) - (i - j).abs())

    return Network(Function(run), tuple(torch.randn(2, 4, 128, 16) for _ in range(3)))


@network("sizes of data")
def chosen_rows() -> Network:
    def run(_: Any, x: Any) -> Any:
        return x[x > 0].sum() + x.nonzero().shape[0]

    return Network(Function(run), (torch.randn(6),), ROWS)


@network("sizes of data")
def number_of_tensor() -> Network:
    def run(_: Any, x: Any, n: Any) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        return x[:k] * 2

    return Network(Function(run), (torch.randn(6), torch.tensor(3)))


@network("state")
def slices_written() -> Network:
    def run(_: Any, x: Any, y: Any) -> Any:
        out = torch.zeros(x.shape[0], 8)
        out[:, :4] = x
        out[:, 4:] += y
        out[0].mul_(2)
        return out

    return Network(Function(run), (torch.randn(3, 4), torch.randn(3, 4)), (({0: "rows"}, {0: "rows"}),))


@network("state")
def indices_written() -> Network:
    def run(_: Any, x: Any, i: Any, v: Any) -> Any:
        y = x.clone()
        y[:, i] = v
        y[x > 1] = 0.0
        return y.index_add(1, i, v)

    return Network(Function(run), (torch.randn(3, 6), torch.tensor([1, 4]), torch.randn(3, 2)))


@network("state", note="a ring of rows in a buffer")
def ring_buffer() -> Network:
    def run(self: Any, x: Any) -> Any:
        self.ring.index_copy_(0, (self.count % 4)[None], x[None])
        self.count += 1
        return self.ring.mean(0)

    module = Function(run, count=torch.zeros((), dtype=torch.int64), ring=torch.zeros(4, 3))
    return Network(module, (torch.randn(3),), again=(torch.randn(3),))


@network("state", note="a plain object holds a buffer, as the caches of transformers do")
def buffer_of_two_names() -> Network:
    class Held:
        def __init__(self, rows: Any) -> None:
            self.rows = rows

    def run(self: Any, x: Any, at: Any) -> Any:
        self.held.rows.index_copy_(0, at, x)
        return self.held.rows.sum(0)

    module = Function(run, rows=torch.zeros(8, 4, dtype=torch.int64))
    module.held = Held(module.rows)
    return Network(module, (torch.tensor([[1, 2, 3, 4]]), torch.tensor([2])))


@network("state")
def argument_written() -> Network:
    def run(_: Any, x: Any, cache: Any, at: Any) -> Any:
        cache.index_copy_(0, at, x)
        return cache.sum(0)

    return Network(Function(run), (torch.randn(1, 4), torch.zeros(8, 4), torch.tensor([2])))


@network("modes", note="a region in bf16")
def autocast() -> Network:
    def run(self: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
        return y.float() + 1

    return Network(Function(run, a=nn.Linear(8, 8)), (torch.randn(2, 8),))


@network("modes")
def gradient_modes() -> Network:
    def run(_: Any, x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            return y + 1

    return Network(Function(run), (torch.randn(2, 8),))


@network("modes")
def activation_checkpoint() -> Network:
    from torch.utils.checkpoint import checkpoint

    def run(self: Any, x: Any) -> Any:
        return checkpoint(lambda y: torch.relu(self.a(y)), x, use_reentrant=False)

    return Network(Function(run, a=nn.Linear(8, 8)), (torch.randn(2, 8),))


@network("arguments", note="numbers in, a dict out")
def numbers() -> Network:
    def run(_: Any, x: Any, n: int, f: float) -> Any:
        return x.repeat(n, 1) * f, {"rows": x.shape[0], "name": "y", "none": None}

    return Network(Function(run), (torch.randn(2, 3), 3, 0.5))


@network("arguments")
def promotion() -> Network:
    def run(_: Any, i: Any, h: Any, s: Any) -> Any:
        halves = (i / 2, i * 0.5, torch.where(i > 0, i, 0.5), i.float().mean())
        return *halves, h + s, h * 2.5, i // 3, -7 % i, i**2, (i > 0).sum()

    return Network(Function(run), (torch.arange(1, 5), torch.randn(4, dtype=torch.bfloat16), torch.tensor(2.0)))


@network("views")
def strided_views() -> Network:
    def run(_: Any, x: Any) -> Any:
        return x.unfold(1, 4, 2).sum(-1), x.as_strided((2, 3), (8, 2)), x.t().reshape(-1), x.diagonal().clone()

    return Network(Function(run), (torch.randn(2, 8),))


@network("sizes", note="mod, floordiv, max and powers of sizes")
def arithmetic_of_sizes() -> Network:
    def run(_: Any, x: Any) -> Any:
        n = x.shape[1]
        more = (-n) % 8
        y = F.pad(x, (0, more)).view(x.shape[0], (n + more) // 8, 8)
        half = y[:, : max(y.shape[1] // 2, 1)]
        return half * (n**-0.5) + torch.arange(8) * (n * x.shape[0])

    return Network(Function(run), (torch.randn(2, 13),), (({0: "batch", 1: "length"},),), sizes={"length": 10})


@network("order")
def sorting() -> Network:
    def run(_: Any, x: Any) -> Any:
        values, places = x.topk(3)
        rows = (x.sort(descending=True)[1], x.argsort(), x.cumsum(-1), x.cummax(-1)[0], x.median(-1)[0])
        return values, places, *rows, torch.bucketize(x, x[0].sort()[0])

    return Network(Function(run), (torch.randn(2, 8),))


@network("matrices")
def matrices() -> Network:
    def run(_: Any, x: Any) -> Any:
        return torch.linalg.inv(x), torch.linalg.norm(x), torch.linalg.solve(x, x), torch.cdist(x, x), x.det()

    return Network(Function(run), (torch.randn(3, 3) + 3 * torch.eye(3),))


@network("weights", note="int8 with a scale for each row")
def quantised_weights() -> Network:
    def run(_: Any, x: Any, w: Any, s: Any) -> Any:
        return F.linear(x, w.to(x.dtype) * s[:, None])

    weights = torch.randint(-127, 127, (4, 8), dtype=torch.int8)
    return Network(Function(run), (torch.randn(2, 8), weights, torch.rand(4)))


@network("checks")
def assertions() -> Network:
    def run(_: Any, x: Any) -> Any:
        torch._check(x.shape[0] > 1)
        torch._assert_async((x < 100).all(), "too large")
        return x + 1

    return Network(Function(run), (torch.randn(2, 8),), ROWS)


@network("weights", note="one tensor, two names")
def tied_weights() -> Network:
    words = nn.Embedding(20, 8)
    head = nn.Linear(8, 20, bias=False)
    head.weight = words.weight

    def run(self: Any, i: Any) -> Any:
        return self.head(self.words(i))

    return Network(
        Function(run, words=words, head=head), (torch.randint(0, 20, (2, 5)),), (({0: "batch", 1: "length"},),)
    )


@network("weights", note="tensors that are no parameters")
def constants() -> Network:
    table = torch.randn(4)

    def run(_: Any, x: Any) -> Any:
        return x * table + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(3)

    return Network(Function(run), (torch.randn(2, 4),))


CASES = collected(globals())
