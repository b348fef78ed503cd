"""From an nn.Module to a fusion missed, its line, the fix of one line, the gain: needs dovetail-ml[torch]."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportMissingImports=false

import statistics
import time

import torch

import dovetail

WIDTH, HEADS, LENGTH = 128, 4, 512


class Attention(torch.nn.Module):
    """Attention as many people write it: keys that are padding score `hidden`."""

    def __init__(self, hidden: float) -> None:
        super().__init__()
        self.hidden = hidden
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, keep):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~keep[:, None, None, :], self.hidden)
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(-2))


def compiled(module, x, keep):
    """The module for every batch and length, from one compilation."""
    axes = {0: "batch", 1: "length"}
    return dovetail.compile(module, args=(x, keep), dynamic={"x": axes, "keep": axes})


def milliseconds(calls, rounds=15):
    """The median time of each call, taken in turns: what else the machine does slows all of them alike."""
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, into in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            into.append((time.perf_counter() - started) * 1e3)
    return [statistics.median(t) for t in times]


def main(rounds=15) -> None:
    torch.manual_seed(0)
    x, keep = torch.randn(2, LENGTH, WIDTH), torch.ones(2, LENGTH, dtype=torch.bool)
    keep[1, LENGTH // 2 :] = False
    module = Attention(hidden=-1000.0).eval()

    # 1. Compile, and read what was missed. Every miss has its reason, and the line of the module that it is about.
    before = compiled(module, x, keep)
    print(f"{len(before.plan.steps)} steps. What is missed:")
    for missed in before.report.missed:
        if missed.rule == "attention":
            print(f"  {missed.rule} at {missed.node}")
            print(f"  {missed.reason}: {missed.message}")

    # 2. A score of -1000 hides a key only while no other score is as low. -inf hides it always, so that the kernel may
    #    skip it: that is the fix, and `require` makes sure that the fusion stays.
    fixed = Attention(hidden=float("-inf")).eval()
    fixed.load_state_dict(module.state_dict())
    after = compiled(fixed, x, keep)
    print(f"With -inf: {len(after.plan.steps)} steps, attention {after.report.count('attention')} time")
    with torch.inference_mode():
        apart = (after(x, keep) - module(x, keep)).abs().max().item()
        print(f"The results are the same: {apart < 1e-5}")

        # 3. The gain.
        names = ("eager", "before", "after")
        calls = [lambda run=run: run(x, keep) for run in (module, before, after)]
        milliseconds(calls, 2)
        for name, took in zip(names, milliseconds(calls, rounds), strict=True):
            print(f"{name:7} {took:7.2f} ms")


if __name__ == "__main__":
    main()
