"""The network."""

import torch.nn.functional as F
from torch import nn


class Block(nn.Sequential):
    """A 3 x 3 convolution without bias, batch normalisation, ReLU."""

    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Net(nn.Module):
    """A U-Net (Ronneberger 2015) with sums in place of concatenations: logits of 4 classes at half the input's side."""

    WIDTHS = [16, 32, 64, 96, 128]

    def __init__(self):
        super().__init__()
        w = self.WIDTHS
        self.down = nn.ModuleList()
        for i, (cin, cout) in enumerate(zip([1] + w, w)):
            extra = [Block(cout, cout) for _ in range(2 if i >= 2 else 1)]
            self.down.append(nn.Sequential(Block(cin, cout, 2), *extra))
        self.side = nn.ModuleList(nn.Conv2d(w[i + 1], w[i], 1) for i in range(len(w) - 1))
        self.up = nn.ModuleList(Block(w[i], w[i]) for i in range(len(w) - 1))
        self.head = nn.Conv2d(w[0], 4, 1)

    def forward(self, x):
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        for i in reversed(range(len(self.side))):
            x = F.interpolate(self.side[i](x), scale_factor=2, mode="nearest") + skips[i]
            x = self.up[i](x)
        return self.head(x)


def parameters(net):
    return sum(p.numel() for p in net.parameters())
