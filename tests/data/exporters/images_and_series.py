"""Networks of images, noise and series, at tiny sizes."""
from cases import OLD, PLAIN, USUAL, case, padded, wrap


def image(size, channels=3):
    def inputs(b, s, g):
        import torch
        return {"pixel_values": torch.randn(b, channels, size, size, generator=g)}
    return inputs


IMAGE, FEW = {"pixel_values": {0: "batch"}}, ((2, 1), (1, 1))


@case("vit", image(16), ["logits"], USUAL, IMAGE, sizes=FEW, old=OLD)
def vit(attention):
    from transformers import ViTConfig, ViTForImageClassification
    model = ViTForImageClassification(ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
                                                num_labels=5, attn_implementation=attention))
    return wrap(model, lambda m, x: m(pixel_values=x, return_dict=False)[0], 1)


@case("resnet", image(32), ["logits"], PLAIN, IMAGE, sizes=FEW)
def resnet(attention):
    import torch
    from torch import nn

    def unit(i, o, size, stride=1):
        return nn.Sequential(nn.Conv2d(i, o, size, stride, size // 2, bias=False), nn.BatchNorm2d(o))

    class Bottleneck(nn.Module):
        def __init__(self, i, mid, o, stride):
            super().__init__()
            self.a, self.b, self.c = unit(i, mid, 1), unit(mid, mid, 3, stride), unit(mid, o, 1)
            self.short = unit(i, o, 1, stride) if stride > 1 or i != o else nn.Identity()

        def forward(self, x):
            y = torch.relu(self.b(torch.relu(self.a(x))))
            return torch.relu(self.c(y) + self.short(x))

    return nn.Sequential(unit(3, 16, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), Bottleneck(16, 8, 32, 1), Bottleneck(32, 8, 32, 1),
                         Bottleneck(32, 16, 48, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(48, 10))


@case("mobilenet", image(24), ["logits"], PLAIN, IMAGE, sizes=FEW)
def mobilenet(attention):
    from torch import nn

    def unit(i, o, size, stride=1, group=1, act=None):
        return nn.Sequential(nn.Conv2d(i, o, size, stride, size // 2, groups=group, bias=False), nn.BatchNorm2d(o), *([act()] if act else []))

    class Squeeze(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // 4, 1), nn.ReLU(), nn.Conv2d(c // 4, c, 1), nn.Hardsigmoid())

        def forward(self, x):
            return x * self.gate(x)

    class Inverted(nn.Module):
        def __init__(self, i, o, stride, act, squeeze):
            super().__init__()
            self.body = nn.Sequential(unit(i, 3 * i, 1, act=act), unit(3 * i, 3 * i, 3, stride, 3 * i, act), *([Squeeze(3 * i)] if squeeze else []),
                                      unit(3 * i, o, 1))
            self.add = stride == 1 and i == o

        def forward(self, x):
            return x + self.body(x) if self.add else self.body(x)

    return nn.Sequential(unit(3, 8, 3, 2, act=nn.Hardswish), Inverted(8, 8, 1, nn.ReLU6, False), Inverted(8, 16, 2, nn.ReLU6, False),
                         Inverted(16, 16, 1, nn.Hardswish, True), unit(16, 32, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 7))


def noisy(b, s, g):
    import torch
    return {"sample": torch.randn(b, 4, 16, 16, generator=g), "timestep": torch.randint(0, 900, (b,), generator=g)}


@case("unet", noisy, ["noise"], PLAIN, {"sample": {0: "batch"}, "timestep": {0: "batch"}}, sizes=FEW)
def unet(attention):
    import math
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, i, o, t):
            super().__init__()
            self.norm1, self.conv1, self.time = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1), nn.Linear(t, o)
            self.norm2, self.conv2, self.drop = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1), nn.Dropout(0.1)
            self.short = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

        def forward(self, x, t):
            y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
            return self.conv2(self.drop(F.silu(self.norm2(y)))) + self.short(x)

    class Attend(nn.Module):
        def __init__(self, c, heads=2):
            super().__init__()
            self.norm, self.qkv, self.out, self.heads = nn.GroupNorm(4, c), nn.Linear(c, 3 * c), nn.Linear(c, c), heads

        def forward(self, x):
            b, c, h, w = x.shape
            t = self.norm(x).view(b, c, h * w).transpose(1, 2)
            q, k, v = (p.view(b, h * w, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(t).chunk(3, dim=-1))
            t = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
            return x + self.out(t).transpose(1, 2).reshape(b, c, h, w)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
            self.start, self.one, self.down = nn.Conv2d(4, 16, 3, padding=1), Residual(16, 16, 32), nn.Conv2d(16, 16, 3, 2, 1)
            self.two, self.attend, self.up = Residual(16, 24, 32), Attend(24), nn.Conv2d(24, 24, 3, padding=1)
            self.three, self.norm, self.end = Residual(40, 16, 32), nn.GroupNorm(4, 16), nn.Conv2d(16, 4, 3, padding=1)

        def forward(self, x, step):
            phase = step[:, None].float() * torch.exp(-math.log(10000) * torch.arange(8, dtype=torch.float32) / 8)[None]
            t = self.time(torch.cat([phase.cos(), phase.sin()], dim=-1))
            high = self.one(self.start(x), t)
            low = self.attend(self.two(self.down(high), t))
            low = self.up(F.interpolate(low, scale_factor=2.0, mode="nearest"))
            return self.end(F.silu(self.norm(self.three(torch.cat([low, high], dim=1), t))))

    return Net()


def series(b, s, g, width=16):
    import torch
    return {"x": torch.randn(b, s, width, generator=g)}


SERIES = {"x": {0: "batch", 1: "seq"}}


@case("lstm", series, ["y", "h", "c"], PLAIN, SERIES)
def lstm(attention):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(16, 24, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1), nn.Linear(48, 5)

        def forward(self, x):
            y, (h, c) = self.lstm(x)
            return self.head(y), h, c

    return Net()


def series_padded(b, s, g):
    return {"x": series(b, s, g, 32)["x"], "padding": padded(b, s) == 0}


SERIES_PADDED = {"x": {0: "batch", 1: "seq"}, "padding": {0: "batch", 1: "seq"}}


# the TorchScript exporter freezes batch and length inside nn.MultiheadAttention
HEADS = [("dynamo", 18, "none", True), ("dynamo", 25, "none", False), ("ts", 14, "none", False), ("ts", 17, "none", False)]


@case("encoder_layer", series_padded, ["y"], HEADS, SERIES_PADDED)
def encoder_layer(attention):
    import torch
    from torch import nn
    torch.backends.mha.set_fastpath_enabled(False)  # the fused kernel of eval mode has no ONNX form

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.post = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu", batch_first=True)
            self.pre = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="relu", batch_first=True, norm_first=True)

        def forward(self, x, padding):
            return self.pre(self.post(x, src_key_padding_mask=padding))

    return Net()


def two_series(b, s, g):
    import torch
    return {"query": torch.randn(b, s, 32, generator=g), "memory": torch.randn(b, 6, 24, generator=g), "padding": padded(b, 6) == 0}


@case("multihead", two_series, ["y", "weights"], HEADS, {"query": {0: "batch", 1: "seq"}, "memory": {0: "batch"}, "padding": {0: "batch"}})
def multihead(attention):
    import torch
    from torch import nn
    torch.backends.mha.set_fastpath_enabled(False)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.cross_attention = nn.MultiheadAttention(32, 4, kdim=24, vdim=24, batch_first=True)

        def forward(self, query, memory, padding):
            s = query.shape[1]
            future = torch.triu(torch.ones(s, s, dtype=torch.bool, device=query.device), diagonal=1)
            x = query + self.self_attention(query, query, query, attn_mask=future, need_weights=False)[0]
            y, weights = self.cross_attention(x, memory, memory, key_padding_mask=padding, need_weights=True)
            return x + y, weights

    return Net()
