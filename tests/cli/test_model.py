"""MODEL: files and built-in models, and what is said of those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail.cli.model import BUILDERS, graph_of, known_options
from dovetail.dtypes import bf16, f32
from dovetail.errors import DovetailError, LoadError, OptionError, ParseError
from dovetail.ir.text import print_graph
from dovetail.ir.verify import verify
from tests.cli.commands import LAYER, SMALL, Shell


@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_built_in_models_are_built(model: str) -> None:
    graph = graph_of(model)
    verify(graph)
    assert graph.name == model.partition(":")[0]


def test_every_built_in_model_is_tested() -> None:
    assert set(SMALL) == set(BUILDERS)


def test_a_name_alone_has_the_defaults() -> None:
    assert graph_of("llama").inputs[0].type == dovetail.dtypes.i64["b", "s"]


def test_options_reach_the_shape_and_the_function() -> None:
    graph = graph_of("llama:layers=1,hidden=8,heads=2,kv_heads=1,inner=16,vocabulary=32,batch=3,seq=t,dtype=bf16")
    assert graph.inputs[0].type == dovetail.dtypes.i64[3, "t"]
    params = {str(p.attrs["name"]): p.type for p in graph.parameters}
    assert params["head"] == bf16[8, 32] and params["layers.0.wk"] == bf16[8, 4]
    assert not any(name.startswith("layers.1") for name in params)


def test_a_list_goes_on_behind_a_comma() -> None:
    graph = graph_of("resnet:blocks=1,2,width=8,classes=10,image=32")
    stages = {str(p.attrs["name"]).split(".1.w")[0] for p in graph.parameters if "stages" in str(p.attrs["name"])}
    assert {s for s in stages if s.count(".") == 2} == {"stages.0.0", "stages.1.0", "stages.1.1"}


def test_switches_and_numbers_are_read() -> None:
    graph = graph_of("llama:layers=1,hidden=8,heads=2,kv_heads=1,normed_heads=true,eps=0.25")
    block = next(v for v in graph.values if v.op.name == "llama_layer")
    assert block.attrs["eps"] == 0.25
    assert any(p.attrs["name"] == "layers.0.q_norm.gain" for p in graph.parameters)


@pytest.mark.parametrize(
    ("model", "found", "hint"),
    [
        ("llama:", "'' is no option of llama", "layers=8"),
        ("llama:layers", "'layers' is no option of llama", "key=value"),
        ("llama:layers=", "'layers=' is no option of llama", "key=value"),
        ("llama:layer=2", "llama has no option 'layer'", "did you mean layers?"),
        ("llama:zzz=2", "llama has no option 'zzz'", "kv_heads=8"),
        ("llama:layers=2,layers=3", "layers twice", "once"),
        ("llama:layers=0", "layers of llama is '0'", "a whole number above 0 and below 2³¹, as in layers=8"),
        ("llama:hidden=99999999999999999999", "hidden of llama is '99999999999999999999'", "below 2³¹"),
        ("llama:layers=two", "layers of llama is 'two'", "a whole number"),
        ("llama:layers=2,3", "layers of llama is '2,3'", "a whole number"),
        ("llama:eps=nan", "eps of llama is 'nan'", "a number above 0"),
        ("llama:theta=inf", "theta of llama is 'inf'", "a number above 0"),
        ("llama:dtype=f8", "dtype of llama is 'f8'", "bf16"),
        ("llama:normed_heads=maybe", "normed_heads of llama is 'maybe'", "true or false"),
        ("llama:seq=2+", "seq of llama is '2+'", "name of a size"),
        ("resnet:blocks=3,x", "blocks of resnet is '3,x'", "a list of positive integers"),
        ("lama", "neither a file nor a built-in model 'lama'", "did you mean llama?"),
        ("zzz", "neither a file nor a built-in model 'zzz'", "bert, llama, llama_step, resnet, unet"),
    ],
)
def test_malformed_models_are_option_errors(model: str, found: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        graph_of(model)
    assert found in caught.value.message and hint in caught.value.hint


@pytest.mark.parametrize(
    "model", ["llama:heads=3", "llama:kv_heads=16,heads=8", "llama:dtype=i64", "bert:hidden=30", "unet:groups=3"]
)
def test_sizes_that_do_not_go_together_are_typed_errors(model: str) -> None:
    with pytest.raises(DovetailError) as caught:
        graph_of(model)
    assert caught.value.hint


@pytest.mark.slow
def test_every_option_has_a_default() -> None:
    for name, builder in BUILDERS.items():
        listed = ",".join(map(str, known_options(builder).values()))
        assert print_graph(graph_of(f"{name}:{listed}")) == print_graph(graph_of(name))


def test_files_in_both_forms_hold_the_same_graph(layer: str, tmp_path: Path) -> None:
    graph = graph_of(layer)
    assert graph.inputs[0].type == f32["rows", 4]
    dovetail.save(graph, tmp_path / "layer.saved")
    assert graph_of(str(tmp_path / "layer.saved")).outputs["y"] is graph.outputs["y"]


def test_a_file_with_the_name_of_a_model_is_written_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bert").write_text(LAYER)
    Path("mine").write_text(LAYER)
    assert graph_of("./bert").name == "layer"
    assert graph_of("mine").name == "layer"


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="is not a file"):
        graph_of(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe junk", b"\x89PNG\r\n\x1a\n", b"[1, 2]", b"graph", bytes(999)])
def test_junk_is_said_to_be_junk(content: bytes, shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "junk.bin"
    path.write_bytes(content)
    assert "junk.bin" in shell.fails(1, "explain", str(path))


@pytest.mark.slow
def test_a_saved_file_that_was_cut_is_refused(shell: Shell, layer: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.saved"
    dovetail.save(graph_of(layer), path)
    whole = path.read_bytes()
    for length in (8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        shell.fails(1, "plan", str(path))


def test_text_that_does_not_parse_names_line_and_column(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(LAYER.replace("relu(%1)", "rellu(%1)"))
    with pytest.raises(ParseError) as caught:
        graph_of(str(path))
    assert (caught.value.line, caught.value.column) == (6, 8)
    assert "wrong.txt, line 6, column 8" in shell.fails(1, "show", str(path))


def test_a_file_that_may_not_be_read_is_said_so(shell: Shell, layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "Permission denied" in shell.fails(1, "explain", layer)


def test_a_path_with_a_nul_or_too_long_is_an_error(shell: Shell) -> None:
    shell.fails(1, "explain", "a\0b")
    shell.fails(1, "explain", "a" * 5000)
    shell.fails(1, "explain", "./" + "a" * 5000)
