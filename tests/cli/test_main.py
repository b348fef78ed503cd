"""The command line as a person meets it: exit codes, streams, interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from dovetail.cli import main as entry
from dovetail.cli.command import Answer, Command
from dovetail.cli.main import COMMANDS, main
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
    assert all((a.name if a.name[0] == "-" else str(a.how["metavar"])) in shown for a in command.arguments)


def test_page_of_the_command_line(golden: Golden) -> None:
    golden.file("docs/cli.md", describe(COMMANDS))


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


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_failure() -> None:
    assert unread("show", SMALL["bert"], "--stage", "rules") == (0, "")


@pytest.mark.slow
def test_a_gate_fails_even_if_nobody_reads_the_report() -> None:
    code, said = unread("explain", SMALL["bert"], "--require", "swiglu=9")
    assert code == 4 and "swiglu: 0 of 9" in said


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_said_in_words() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RUN, "catalog"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    said = without_progress(done.stderr)
    assert done.returncode == 1
    assert said.startswith("dovetail: the output cannot be written") and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="closing a stream is written for a POSIX shell")
def test_a_closed_stdout_is_no_failure() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m dovetail catalogue >&-', sys.executable], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")


@pytest.mark.slow
def test_a_terminal_without_unicode_gets_the_text_all_the_same() -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*RUN, "explain", SMALL["unet"]], capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 0 and not without_progress(done.stderr)
    assert "unet on cpu" in done.stdout and "\\u2192" in done.stdout


@pytest.mark.slow
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


def test_memory_that_runs_out_is_said_in_words(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(args: object) -> Answer:
        raise MemoryError

    monkeypatch.setattr(entry, "COMMANDS", (Command("greedy", "Takes too much.", (), greedy),))
    assert "not enough memory" in shell.fails(1, "greedy")
