"""How a case is declared: what it builds, what it is given, how it is exported."""
CASES = {}

# exporter, opset, attention implementation, dynamic dims
USUAL = [("dynamo", 18, "eager", False), ("dynamo", 18, "sdpa", True), ("dynamo", 23, "sdpa", True),
         ("ts", 14, "eager", True), ("ts", 17, "sdpa", True)]
MORE = USUAL + [("dynamo", 23, "eager", True), ("dynamo", 25, "sdpa", False), ("ts", 17, "eager", False)]
OLD = [("ts", 14, "eager", True), ("ts", 17, "sdpa", True)]
PLAIN = [("dynamo", 18, "none", True), ("dynamo", 25, "none", False), ("ts", 14, "none", True), ("ts", 17, "none", False)]


def case(name, inputs, outputs, variants=USUAL, dims=None, sizes=((2, 8), (3, 5), (1, 11), (1, 6)), old=(), dtype="float32"):
    """inputs: a function of (batch, length, generator) to {name: tensor}; dims: {name: {axis: dim name}}."""
    def register(build):
        CASES[name] = dict(build=build, inputs=inputs, outputs=outputs, variants=variants, dims=dims or {}, sizes=sizes, old=old, dtype=dtype)
        return build
    return register


def wrap(model, call, count):
    """A module of `count` positional tensors around a model, so that both exporters see the same signature."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

    forwards = {1: lambda self, a: call(self.model, a), 2: lambda self, a, b: call(self.model, a, b),
                3: lambda self, a, b, c: call(self.model, a, b, c), 4: lambda self, a, b, c, d: call(self.model, a, b, c, d),
                7: lambda self, a, b, c, d, e, f, g: call(self.model, a, b, c, d, e, f, g)}
    Wrapped.forward = forwards[count]
    return Wrapped()


def tokens(b, s, g, vocab=40):
    import torch
    return torch.randint(3, vocab, (b, s), generator=g)


def padded(b, s):
    import torch
    mask = torch.ones(b, s, dtype=torch.long)
    for i in range(1, b):
        mask[i, max(1, s - 2 * i):] = 0
    return mask


def text(b, s, g):
    return {"input_ids": tokens(b, s, g), "attention_mask": padded(b, s)}


TEXT = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}
