"""What people try first with modules of torch: it works, or one error says what to write."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import copy
import socket
from typing import Any

import pytest

import dovetail
from dovetail.errors import BindError, LoadError, OptionError
from dovetail.frontends.torch.reading.capture import _hint  # pyright: ignore[reportPrivateUsage]
from dovetail.torch import explain
from dovetail.torch.options import options_of

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


class Adds(nn.Module):
    def forward(self, ids: Any, mask: Any = None) -> Any:
        return ids * 2 if mask is None else ids * mask


def test_arguments_without_a_name_are_refused_with_the_call_to_write() -> None:
    unnamed: Any = dovetail.compile
    with pytest.raises(OptionError, match=r"compile\(module, args=\(x,\)\)"):
        unnamed(Adds(), torch.ones(2))
    with pytest.raises(OptionError, match=r"jax\.jit\(f\)\.lower\(\*args\)"):
        unnamed(lambda x: x, torch.ones(2))
    with pytest.raises(OptionError, match=r"jax\.jit\(f\)\.lower\(\*args\)"):
        unnamed(lambda x: x, args=(torch.ones(2),))
    with pytest.raises(OptionError, match="missing a required argument: 'ids'") as raised:
        dovetail.compile(Adds())
    assert "args=(x,)" in str(raised.value)


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"idz": {0: "n"}}, "names 'idz', which is no argument of the example call\n.*did you mean 'ids'"),
        ({"ids": {2: "n"}}, r"dynamic\['ids'\] names the axis 2 of a tensor with 2 axes"),
        ({"ids": {"0": "n"}}, "names the axis '0'"),
        (({3: "n"},), r"dynamic\[0\] names the axis 3"),
    ],
)
def test_a_misspelt_name_among_sizes_is_refused(dynamic: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dovetail.compile(Adds(), args=(torch.ones(2, 3),), dynamic=dynamic)


def test_a_size_that_was_not_left_open_is_told_with_what_to_write() -> None:
    program = dovetail.compile(Adds(), args=(torch.ones(2, 3),))
    with pytest.raises(BindError, match="argument ids has 4 on axis 0, and the program was compiled for 2") as raised:
        program(torch.ones(4, 3))
    assert 'dynamic={"ids": {0: "n"}}' in str(raised.value)
    dovetail.compile(Adds(), args=(torch.ones(2, 3),), dynamic={"ids": {0: "n"}})(torch.ones(4, 3))


def test_weights_that_change_in_place_are_read_again() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
    x = torch.randn(2, 64)
    program = dovetail.compile(module, args=(x,))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for change in (
        lambda: module[0].weight.mul_(3),
        lambda: module[2].bias.copy_(torch.ones(4)),
        lambda: module.load_state_dict({name: t * 0.5 for name, t in module.state_dict().items()}),
        lambda: optimizer.step(),
    ):
        module(x).square().sum().backward()
        with torch.no_grad():
            program(x)
            change()
            torch.testing.assert_close(program(x), module(x))
    narrow = dovetail.compile(copy.deepcopy(module), args=(x,), quantize="int8")
    with torch.no_grad():
        narrow(x)
        next(iter(narrow._imported.held.values())).mul_(2)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(BindError, match=r"quanti[sz]ed"):
            narrow(x)


def test_every_mode_of_torch_is_taken() -> None:
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", None):
        tuned = options_of(mode, None, [torch.ones(2)]).settings.get("tune")
        assert tuned == ("always" if mode and mode.startswith("max") else None)
    assert options_of("max-autotune", {"tune": "off"}, [torch.ones(2)]).settings["tune"] == "off"
    with pytest.raises(OptionError, match="did you mean 'max-autotune'"):
        options_of("max-autotun", None, [torch.ones(2)])


def test_a_module_of_ddp_is_explained() -> None:
    distributed: Any = pytest.importorskip("torch.distributed")
    torch._dynamo.reset()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:

        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

            def forward(self, x: Any) -> Any:
                return self.b(self.a(x).relu())

        run = torch.compile(nn.parallel.DistributedDataParallel(Two()), backend=dovetail.torch.backend)
        explained = explain(run, torch.ones(2, 8), repeats=2)
        assert explained.graphs and "a call" in str(explained)
    finally:
        distributed.destroy_process_group()
        torch._dynamo.reset()


def test_models_of_transformers_say_how_to_leave_out_their_caches() -> None:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=50
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(8)[None]
    with pytest.raises(LoadError, match=r"returns a DynamicCache: set module\.config\.use_cache = False"):
        dovetail.compile(model, kwargs={"input_ids": ids})
    model.config.use_cache = False
    with torch.no_grad():
        found, expected = dovetail.compile(model, kwargs={"input_ids": ids})(input_ids=ids), model(input_ids=ids)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-5)


def test_a_cache_that_torch_does_not_know_is_named_with_what_to_set() -> None:
    class OtherCache:
        pass

    class Returns(nn.Module):
        def forward(self, x: Any) -> Any:
            return x, OtherCache()

    with pytest.raises(LoadError, match=r"returns a OtherCache: set module\.config\.use_cache = False"):
        dovetail.compile(Returns(), args=(torch.ones(2),))


def test_branches_on_data_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    class Branches(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(LoadError, match=r"torch\.where or torch\.cond"):
        dovetail.compile(Branches(), args=(torch.ones(2),))
    assert not capfd.readouterr().err
    assert "torch.export.export" in _hint(RuntimeError("anything else"))
