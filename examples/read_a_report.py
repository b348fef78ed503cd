"""Reading a report: as text, as data, as JSON, and as a gate that fails with its reason."""

from __future__ import annotations

import json

import dovetail
from dovetail import ops
from dovetail.dtypes import f32
from dovetail.inspect import as_json


def model(bias_shape: tuple[int, ...]) -> dovetail.Graph:
    """Two layers; the bias of the first may have a shape that no epilogue takes."""
    builder = dovetail.Builder("two_layers")
    x = builder.input("x", f32[16, 384])
    up, down = builder.param("up", f32[384, 1536]), builder.param("down", f32[1536, 384])
    bias, shift = builder.param("bias", f32[bias_shape]), builder.param("shift", f32[384])
    with builder.recording():
        hidden = ops.relu(x @ up + bias)
        builder.output("y", hidden @ down + shift)
    return builder.graph()


def main() -> None:
    # Epilogues take such an add in anyhow; without that pass it is a miss.
    program = dovetail.compile(model((16, 1536)), without=["fuse_epilogues"])
    report = program.report

    print("As text, for people:\n")
    print(report)

    print("\nAs data, what was missed with its price, the costliest first:\n")
    for missed in sorted(report.missed, key=lambda m: -m.seconds):
        print(f"  {missed.rule} at {missed.node}")
        print(f"    {missed.reason}: {missed.message}")
        print(f"    hint: {missed.hint}")
        print(f"    {missed.bytes:,} bytes and {missed.seconds * 1e6:.1f} µs a run, by the machine model")

    print("\nEvery pair of kernels that hands a tensor over has a reason:\n")
    for apart in report.boundaries:
        print(f"  {apart.producer} → {apart.consumer}: {apart.reason}: {apart.message}")

    print("\nAs JSON, for programs; the fields of schema version 1:\n")
    found = json.loads(as_json(report))
    print("  " + ", ".join(found))
    print("  first miss: " + json.dumps(found["missed"][0]))

    print("\nAs a gate, which fails with the reason:\n")
    try:
        dovetail.compile(model((16, 1536)), require={"linear": 2}, without=["fuse_epilogues"])
    except dovetail.errors.GateError as error:
        print(f"  {error}".replace("\n", "\n  "))

    print("\nFollow the hint, and the gate lets it pass:\n")
    print(dovetail.compile(model((1536,)), require={"linear": 2}, require_clean=True).report)


if __name__ == "__main__":
    main()
