"""Every option of a compilation, typed and described in one place.

An environment variable is only ever a second way to give an option, and never changes a result. The one exception is
what a whole process has to agree on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.nearest import nearest

_T = TypeVar("_T")

ENGINES = ("egraph", "greedy", "egglog")
"""How fusions can be chosen, the default first."""
BF16 = "bf16"
PRECISIONS = ("exact", "fast", BF16)
"""How the factors of products are read, the default first."""
TUNE_ALWAYS, TUNE_OFF = "always", "off"
TUNINGS = ("auto", TUNE_ALWAYS, TUNE_OFF)
"""When the waits of persistent kernels, and products by libraries, are measured, the default first."""
OFF = "off"
"""What an option is where it is switched off."""
LIBRARIES = ("auto", OFF)
"""Whether libraries may compute products, the default first."""


def _option(default: _T, doc: str, choices: tuple[_T, ...] = ()) -> _T:
    found = field(default=default, metadata={"doc": doc, "choices": choices})
    return found  # pyright: ignore[reportReturnType]  # dataclass reads it


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compile, where there is a choice."""

    strict: bool = _option(
        False,
        "Allow only rewrites that keep every bit; others may change the last digits, as reordering a sum does, and "
        "compute where what is written overflows (`log(exp(x))` is `x`); where a pixel is infinite, convolutions by "
        "transforms or phases may give NaN next to it.",
    )

    precision: str = _option(
        "exact",
        "How products with weights in blocks read activations: `exact` keeps what f32 keeps of a sum; `fast` rounds "
        "them to bytes, a scale for each group, which takes a third of the multiplications. With `fast`, Winograd's "
        "larger patches serve every convolution that they suit, at three times the error of plain sums, and ARM "
        "multiplies weights in f16 with activations rounded to f16, and in attention queries with keys and values "
        "rounded to f16. On x86 with AMX, products of 32 rows or more round activations and weights, in blocks, f16 or "
        "bf16, to bf16 instead. `bf16` rounds both factors of every product with weights to bf16 and sums in f32, an "
        "error of about 0.24 % of a product; weights in f32 are packed as bf16. It needs x86 with AMX-BF16 or "
        "AVX512-BF16 and is refused elsewhere; weights in blocks, f16 or bf16 are rounded by AMX alone, from 32 rows "
        "on; attention, convolutions and products of two activations stay f32. A report tells what each kernel rounds.",
        choices=PRECISIONS,
    )
    engine: str = _option(
        "egraph",
        "How fusions are chosen: `egraph` keeps all alternatives and chooses by the cost of the whole graph; `greedy` "
        "takes the best at each place, which is faster to compile and rarely cheaper to run: the choice is made before "
        "epilogues. `egglog` is as `egraph`, with egglog matching declared ops. See [egglog](egglog.md).",
        choices=ENGINES,
    )
    search_seconds: int = _option(
        0,
        "Seconds that the rules of `egraph` and `egglog` may take; 0 stands for no limit: the search is bounded by "
        "counts of nodes, matches and rounds, and its result depends on the model alone. With a limit it may depend on "
        "how fast the machine is. A report says which limit ended a search.",
    )
    verify_each_pass: bool = _option(
        False, "Verify the graph after every pass, so that an error names the pass that made it. Slower; tests do it."
    )
    memory_limit: int = _option(
        0, "Bytes that a run may allocate at once; 0 stands for what the machine has left. More is refused, not tried."
    )
    memory: str = _option(
        "",
        "What the tensors of a run may take at most, weights and inputs aside: `200MB`, `1.5GB`, or `least`. A step of "
        "training then saves less for its backward pass and computes more again; a smaller budget never gives a larger "
        "peak. One that no plan meets is a `BudgetError`, which names the smallest. Empty stands for no budget. See "
        "[save or compute again](recompute.md).",
    )
    threads: int = _option(
        0, "How many threads a run may use; 0 stands for as many as the machine allows. Results do not depend on it."
    )
    cache: str = _option(
        "",
        "The folder that keeps compiled code for the next process; empty stands for the user's own folder for caches, "
        "and off for none. See [cache](cache.md).",
    )
    cache_limit: int = _option(
        1 << 30, "Bytes that the folder of the cache may hold; the least recently used entries are removed beyond it."
    )
    tune: str = _option(
        "auto",
        "Which products on a GPU are measured by our kernels and by cuBLASLt when parameters are bound (see "
        "`libraries`): `auto` those that may gain, where a cache keeps what it finds; `always` all, with or without a "
        "cache; `off` none, so that only what is kept counts.",
        choices=TUNINGS,
    )
    libraries: str = _option(
        "auto",
        "Whether cuBLASLt may compute products on a GPU: `auto` where it is installed "
        "(`pip install 'dovetail-ml[cublas]'`, or torch for CUDA) and runs on the card have shown that it is faster "
        "than our kernels; which products are measured, `tune` says. `off` never. Products of f32 stay f32 (never "
        "tf32). The last digits may differ, since sums have another order; with `strict` our kernels compute all. A "
        "report has both times, or what refuses a product.",
        choices=LIBRARIES,
    )
    print_report: bool = _option(
        False, "Print the report of every compilation to stderr. It exists as data in any case."
    )


Precision: TypeAlias = Literal["exact", "fast", "bf16"]
"""What products may round."""


class OtherSettings(TypedDict, total=False):
    """The fields of `Settings` as keyword options, but for `precision`, which training has another one of."""

    strict: bool
    engine: str
    search_seconds: int
    verify_each_pass: bool
    memory_limit: int
    memory: str
    threads: int
    cache: str
    cache_limit: int
    tune: Literal["auto", "always", "off"]
    libraries: Literal["auto", "off"]
    print_report: bool


class SettingsOptions(OtherSettings, total=False):
    """The fields of `Settings` as keyword options."""

    precision: Precision


FROM_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {"DOVETAIL_REPORT": "print_report", "DOVETAIL_CACHE": "cache", "DOVETAIL_THREADS": "threads"}
)
"""The environment variables that are read, each with its option: a switch as 1 or 0, numbers, others as text."""

ISA = "DOVETAIL_ISA"
MACHINE = "DOVETAIL_MACHINE"
BUILT_IN = "built-in"
"""The figures of no machine in particular: what `DOVETAIL_MACHINE` may ask for."""
FOR_A_PROCESS: Mapping[str, str] = MappingProxyType(
    {
        ISA: "The instructions that compiled code is limited to: `sse`, `avx2` or `avx512` on x86-64, `neon` on "
        "aarch64. Without it code uses all that the processor has. The last digits of results may differ. It shows "
        "what other machines do; tests run kernels with it.",
        MACHINE: "`built-in`: predicted times come from the same figures on every machine, so that reports can be "
        "compared. Without it they come from the calibration of this machine, or from what its processor says of "
        "itself. Code and results do not depend on it.",
    }
)
"""The environment variables that no option gives: they hold for the whole process, from its first compilation on."""


def settings_of(options: Mapping[str, Any], environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings that these options ask for; an option that is given wins over the environment."""
    known: dict[str, type[Any]] = {f.name: f.default.__class__ for f in fields(Settings)}
    choices: dict[str, tuple[Any, ...]] = {f.name: f.metadata["choices"] for f in fields(Settings)}
    asked: dict[str, Any] = {
        option: _READ[known[option]](name, environ[name])
        for name, option in FROM_ENVIRONMENT.items()
        if name in environ
    }
    for name, value in options.items():
        if name not in known:
            raise OptionError(f"there is no option {name!r}", hint=_nearest(name, known))
        _check(name, value, known[name])
        if choices[name] and value not in choices[name]:
            raise OptionError(f"the option {name} is {value!r}", hint=f"use one of {', '.join(choices[name])}")
        asked[name] = value
    return Settings(**asked)


def describe() -> str:
    """The options as a page of Markdown."""
    variables = {option: name for name, option in FROM_ENVIRONMENT.items()}
    lines = [
        "# Settings",
        "",
        "Each is a keyword argument of `dovetail.compile` and a field of `dovetail.programs.Settings`.",
    ]
    for f in fields(Settings):
        lines += ["", f"## `{f.name}: {f.type} = {f.default!r}`", "", f.metadata["doc"]]
        if f.name in variables:
            is_switch = f.default.__class__ is bool
            gives, shown = ("switches it on", "=1") if is_switch else ("gives it too", "")
            lines.append(f"The environment variable `{variables[f.name]}{shown}` {gives}.")
    for name, doc in FOR_A_PROCESS.items():
        lines += ["", f"## The environment variable `{name}`", "", doc]
    return "\n".join(lines) + "\n"


def _check(name: str, value: Any, wanted: type[Any]) -> None:
    if not isinstance(value, wanted) or (wanted is int and (isinstance(value, bool) or value < 0)):
        kind = "a whole number, 0 or more" if wanted is int else f"a value of type {wanted.__name__}"
        raise OptionError(f"the option {name} is {value!r}", hint=f"it takes {kind}")


def _switch(name: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise OptionError(f"the environment variable {name} is {text!r}", hint="set it to 1 or 0")
    return text == "1"


def _text(name: str, text: str) -> str:
    return text


def _number(name: str, text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise OptionError(f"the environment variable {name} is {text!r}", hint="set it to a number, 0 or more")
    return int(text)


_READ: Mapping[type[Any], Callable[[str, str], Any]] = {bool: _switch, int: _number, str: _text}
"""How the text of an environment variable is read, by the type of its option."""


def _nearest(name: str, known: Mapping[str, type[Any]]) -> str:
    near = nearest(name, known)
    return f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
