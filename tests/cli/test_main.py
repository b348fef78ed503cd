"""The command line as a person meets it: exit codes, streams, interruptions."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dovetail
from dovetail.cli import dispatch as entry
from dovetail.cli.command import Answer, Command
from dovetail.cli.completion import SHELLS
from dovetail.cli.dispatch import COMMANDS, help_text
from dovetail.cli.main import main
from dovetail.cli.old_spellings import split_explain
from dovetail.cli.page import describe
from tests.cli.commands import SMALL, Shell, without_progress
from tests.frontends.onnx.build import model
from tests.golden import Golden

RUN = [sys.executable, "-m", "dovetail"]


@pytest.mark.slow
def test_version_of_the_module() -> None:
    done = subprocess.run([*RUN, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dovetail {dovetail.__version__}\n"


def test_unknown_option_is_a_user_error(shell: Shell) -> None:
    said = shell.fails(1, "--no-such-option")
    assert "--no-such-option" in said and "hint: dovetail --help" in said


def test_nothing_asked_for_shows_what_there_is(shell: Shell) -> None:
    said = shell()
    assert said.code == 1 and not said.out
    assert all(command.name in said.err for command in COMMANDS)


def test_unknown_command_is_a_user_error(shell: Shell) -> None:
    assert "'explode'" in shell.fails(1, "explode", "model")


def test_missing_argument_is_a_user_error(shell: Shell) -> None:
    assert "MODEL" in shell.fails(1, "explain")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_every_command_helps(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command.name, "--help"])
    assert not caught.value.code
    shown = capsys.readouterr().out
    for argument in command.arguments:
        name = argument.name if argument.name[0] == "-" else str(argument.how["metavar"])
        assert argument.hidden or name in shown
    assert "--engine" not in shown


def test_page_of_the_command_line(golden: Golden) -> None:
    golden.file("docs/cli.md", describe(COMMANDS))


def test_help_fits_a_terminal(shell: Shell) -> None:
    lines = help_text().splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert all(re.search(rf"\b{command.name}\b", help_text()) for command in COMMANDS)


def test_a_misspelt_command_is_told_the_nearest(shell: Shell) -> None:
    assert "hint: did you mean explain?" in shell.fails(1, "explian", "bert")
    assert "hint: dovetail --help lists them" in shell.fails(1, "zzzzzz")


@pytest.mark.parametrize(
    ("line", "flag", "needed"),
    [
        (["explain", SMALL["bert"], "--runs", "3"], "--runs", "--measure"),
        (["explain", SMALL["bert"], "--input", "ids=1"], "--input", "--measure"),
        (["what-if", SMALL["bert"], "--threads", "1"], "--threads", "--apply"),
        (["diff", SMALL["bert"], SMALL["bert"], "--runs", "3"], "--runs", "--measure"),
        (["diff", SMALL["bert"], SMALL["bert"], "--tolerance", "0.1"], "--tolerance", "--gate"),
        (["run", SMALL["bert"], "--tolerance", "0.1"], "--tolerance", "--check"),
        (["run", SMALL["bert"], "--place", "data"], "--place", "--mesh"),
        (["run", SMALL["bert"], "--restarts", "1"], "--restarts", "--hosts"),
        (["lock", SMALL["bert"], "--place", "data", "--lock", "x"], "--place", "--mesh"),
        (["verify", SMALL["bert"], "--wrt", "w"], "--wrt", "--gradients"),
        (["train", SMALL["bert"], "--data", "x", "--every", "1"], "--every", "--checkpoint"),
        (["generate", "x.gguf", "hello", "--adapter-scale", "2"], "--adapter-scale", "--adapter"),
    ],
)
def test_an_option_without_effect_is_refused(shell: Shell, line: list[str], flag: str, needed: str) -> None:
    assert f"{flag} without {needed}" in shell.fails(1, *line)


@pytest.mark.parametrize(
    ("line", "near"),
    [
        (["bench", "bert_base_1x12"], "bert_base_1x128"),
        (["bench", "resnet50", "--vs", "onnxruntme"], "onnxruntime"),
        (["explain", SMALL["bert"], "--target", "referense"], "reference"),
    ],
    ids=["bench", "--vs", "--target"],
)
def test_a_misspelt_name_has_the_nearest_in_its_hint(shell: Shell, line: list[str], near: str) -> None:
    said = shell(*line)
    assert said.code in (1, 2) and f"did you mean {near}?" in said.err


def test_a_size_of_nothing_has_a_hint(shell: Shell) -> None:
    for command in ("explain", "run", "plan"):
        assert "write an integer from 1 on, as in --size b=1" in shell.fails(1, command, SMALL["bert"], "--size", "b=0")


def test_every_option_that_needs_another_names_one_of_its_command() -> None:
    for command in COMMANDS:
        names = {argument.name for argument in command.arguments}
        assert {a.needs for a in command.arguments if a.needs} <= names, command.name


@pytest.mark.slow
def test_options_that_a_mode_ignores_are_refused(shell: Shell) -> None:
    for more in (["--measure"], ["--target", "cpu"]):
        said = shell("explain", SMALL["llama"], "--mesh", "tp=2", *more)
        assert said.code == 1 and not said.out and more[0] in said.err
    assert "--target with status" in shell.fails(1, "cache", "status", "--target", "cuda")
    assert "--without with --gradients" in shell.fails(1, "verify", SMALL["bert"], "--gradients", "--without", "linear")
    assert "--platforms with text" in shell.fails(1, "export", "m", "--stablehlo", "x.mlir", "--platforms", "cpu")
    assert "--target cuda with --mesh" in shell.fails(
        1, "run", SMALL["bert"], "--random", "0", "--mesh", "tp=2", "--target", "cuda"
    )


@pytest.mark.heavy
def test_old_spellings_work_and_say_the_new_ones(shell: Shell, layer: str) -> None:
    old, new = shell("explain", layer, "--assume", "--json"), shell("what-if", layer, "--json")
    assert (old.code, old.out) == (new.code, new.out)
    told = "explain --assume is now dovetail what-if MODEL; the old spelling goes with dovetail 0.2"
    assert old.err == f"dovetail: dovetail {told}\n"
    said = shell("catalogue", "linear")
    assert said.out == shell("catalog", "linear").out and "is now dovetail catalog" in said.err
    said = shell("explain", SMALL["llama"], "--quantise=int8", "--json")
    assert said.code == 0 and "--quantise is now --quantize" in said.err
    assert split_explain(["explain", "m", "--assume", "a", "b", "--json"])[0] == (
        ["what-if", "m", "--miss", "a", "--miss", "b", "--json"]
    )
    assert split_explain(["explain", "m", "--mesh=dp=2"])[0] == ["place", "m", "--mesh=dp=2"]
    assert split_explain(["explain", "m", "--apply"])[0] == ["what-if", "m", "--apply"]
    flags = [a.old for command in COMMANDS for a in command.arguments if a.old]
    assert {"--rate", "--decay", "--most", "--quantise"} == set(flags)


@pytest.mark.parametrize("name", SHELLS)
def test_completions_hold_every_command_and_option(shell: Shell, name: str) -> None:
    script = shell("completion", name).out
    for command in COMMANDS:
        assert command.name in script
        assert all(a.name.lstrip("-") in script for a in command.arguments if a.name[0] == "-" and not a.hidden)
    assert "engine" not in script and "egraph" not in script


@pytest.mark.parametrize("name", SHELLS)
def test_shells_read_their_completions(shell: Shell, name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    path = tmp_path / "dovetail"
    path.write_text(shell("completion", name).out)
    subprocess.run([name, "-n", str(path)], check=True, capture_output=True, timeout=60)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "dovetail"
    path.write_text(shell("completion", "bash").out)

    def completed(*words: str) -> list[str]:
        listed = " ".join(f"'{word}'" for word in words)
        script = f'. {path}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _dovetail; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.split()

    assert completed("dovetail", "ex") == ["explain", "export"]
    assert completed("dovetail", "explain", "m", "--req") == ["--require", "--require-clean"]
    assert completed("dovetail", "explain", "m", "--precision", "") == ["exact", "fast", "bf16"]


def test_unsupported_input_has_its_own_code(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(["StringConcat x x -> y"], {"x": dovetail.dtypes.f32[3]}, ["y"]).SerializeToString())
    assert "StringConcat" in shell.fails(2, "explain", str(path))
    path.write_bytes(b"")
    assert "model.onnx" in shell.fails(1, "explain", str(path))


def test_a_graph_that_does_not_verify_has_its_own_code(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "twice.txt"
    path.write_text(
        'graph twice(x: f32[4]) {\n  %0 = param() {name="x", type=f32[4]}\n  %1 = add(x, %0)\n  return y = %1\n}\n'
    )
    assert "'x' is" in shell.fails(3, "explain", str(path))


def unread(*argv: str) -> tuple[int, str]:
    """The exit code and the words of a command whose reader has gone before it writes."""
    with subprocess.Popen([*RUN, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None and command.stderr is not None
        command.stdout.close()
        said = command.stderr.read()
    return command.returncode, without_progress(said)


@pytest.mark.heavy
def test_a_reader_that_goes_away_is_no_failure() -> None:
    assert unread("show", SMALL["bert"], "--stage", "rules") == (0, "")


@pytest.mark.heavy
def test_a_gate_fails_even_if_nobody_reads_the_report() -> None:
    code, said = unread("explain", SMALL["bert"], "--require", "swiglu=9")
    assert code == 4 and "swiglu: 0 of 9" in said


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_said_in_words() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RUN, "catalog"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    said = without_progress(done.stderr)
    assert done.returncode == 1
    assert said.startswith("dovetail: the output cannot be written") and "Traceback" not in said


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="closing a stream is written for a POSIX shell")
def test_a_closed_stdout_is_no_failure() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m dovetail catalog >&-', sys.executable], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")


@pytest.mark.heavy
def test_a_terminal_without_unicode_gets_the_text_all_the_same() -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*RUN, "explain", SMALL["unet"]], capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 0 and not without_progress(done.stderr)
    assert "unet on cpu" in done.stdout and "\\u2192" in done.stdout


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_interrupting_is_quiet() -> None:
    large = "llama:layers=1000,hidden=8,heads=2,kv_heads=1,inner=8,vocabulary=8,batch=1,seq=4"
    # Whoever runs the tests in the background of a shell has them ignore the signal.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from dovetail.cli import main, progress\n"
        "began = progress.Log.began\n"
        "def ready(self, phase, *, still):\n"
        "    progress.Log.began = began\n"
        "    print('ready', flush=True)\n"
        "    began(self, phase, still=still)\n"
        "progress.Log.began = ready\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "explain", large]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None and busy.stdout.readline() == "ready\n"
        busy.send_signal(signal.SIGINT)
        try:
            out, err = busy.communicate(timeout=60)
        finally:
            busy.kill()
    assert (busy.returncode, out, without_progress(err)) == (130, "", "dovetail: interrupted\n")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6])
def test_interrupting_the_imports_is_quiet(seconds: float) -> None:
    # Whoever runs the tests in the background of a shell has them ignore the signal.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from dovetail.cli import main\n"
        "print('ready', flush=True)\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "explain", "llama:layers=400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None and busy.stdout.readline() == "ready\n"
        time.sleep(seconds / 3)
        busy.send_signal(signal.SIGINT)
        out, err = busy.communicate(timeout=60)
    assert (busy.returncode, out, without_progress(err)) == (130, "", "dovetail: interrupted\n")


@pytest.mark.slow
def test_the_command_imports_nothing_large_before_it_answers_ctrl_c() -> None:
    program = "import sys; import dovetail.cli.main; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"numpy", "dovetail.ops", "dovetail.ir.value", "argparse"} & set(done.stdout.split())


def test_memory_that_runs_out_is_said_in_words(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(args: object) -> Answer:
        raise MemoryError

    monkeypatch.setattr(entry, "COMMANDS", (Command("greedy", "Takes too much.", (), greedy),))
    assert "not enough memory" in shell.fails(1, "greedy")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--sise", "rows=2"], "did you mean --size?"),
        (["--sise=rows=2"], "did you mean --size?"),
        (["--qqqqqq"], "dovetail explain --help lists what there is"),
        (["--without", "swiglo"], "did you mean swiglu?"),
        (["--require", "swigl=2"], "did you mean swiglu?"),
    ],
)
def test_a_misspelt_option_or_rule_has_the_nearest_in_its_hint(
    words: list[str], hint: str, shell: Shell, layer: str
) -> None:
    assert hint in shell.fails(1, "explain", layer, *words)
