"""Weights read and written: those of training, and those that the Go program reads, with batch normalisation folded in."""

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from .network import Block, Net


def save(net, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in net.state_dict().items() if "num_batches" not in k}, path)


def load(path):
    net = Net()
    net.load_state_dict(load_file(path), strict=False)
    return net.eval().to(memory_format=torch.channels_last)


def folded(net):
    """The network's convolutions with batch normalisation in them: name, weight, bias."""

    def block(name, b):
        conv, norm = b[0], b[1]
        by = norm.weight / (norm.running_var + norm.eps).sqrt()
        return name, conv.weight * by[:, None, None, None], norm.bias - norm.running_mean * by

    out = [block(f"down.{i}.{j}", b) for i, stage in enumerate(net.down) for j, b in enumerate(stage)]
    out += [block(f"up.{i}", b) for i, b in enumerate(net.up)]
    out += [(f"side.{i}", c.weight, c.bias) for i, c in enumerate(net.side)]
    return out + [("head", net.head.weight, net.head.bias)]


def exported(net, path):
    """Writes the weights in 16 bits, as toolserver/segment reads them, and returns them."""
    tensors = {}
    with torch.no_grad():
        for name, weight, bias in folded(net):
            tensors[f"{name}.weight"], tensors[f"{name}.bias"] = weight.half().contiguous(), bias.half().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    path.chmod(0o644)
    return tensors


def load_exported(path):
    """The network of a file that exported wrote: normalisations that change nothing stand behind the convolutions."""
    tensors, net = {k: v.float() for k, v in load_file(path).items()}, Net()
    with torch.no_grad():
        for name, weight, bias in folded(net):
            if tensors.get(f"{name}.weight", weight[:0]).shape != weight.shape or tensors.get(f"{name}.bias", bias[:0]).shape != bias.shape:
                raise SystemExit(f"weights {path}: no {name} of shape {tuple(weight.shape)}: not a file that segment.py export wrote")
        for name, module in net.named_modules():
            if isinstance(module, Block):
                conv, norm = module[0], module[1]
                conv.weight.copy_(tensors[f"{name}.weight"])
                norm.bias.copy_(tensors[f"{name}.bias"])
                norm.running_var.fill_(1 - norm.eps)
            elif isinstance(module, nn.Conv2d) and module.bias is not None:
                module.weight.copy_(tensors[f"{name}.weight"])
                module.bias.copy_(tensors[f"{name}.bias"])
    return net.eval().to(memory_format=torch.channels_last)


def unfolded(tensors):
    """The network with folded weights: batch normalisation does nothing."""
    net = Net().eval()
    convolutions = {f"down.{i}.{j}": b for i, stage in enumerate(net.down) for j, b in enumerate(stage)}
    convolutions |= {f"up.{i}": b for i, b in enumerate(net.up)} | {f"side.{i}": c for i, c in enumerate(net.side)} | {"head": net.head}
    for name, b in convolutions.items():
        weight, bias = tensors[f"{name}.weight"].float(), tensors[f"{name}.bias"].float()
        if isinstance(b, Block):
            b[0].weight.data, b[1].bias.data = weight, bias
            b[1].running_var.data.fill_(1 - b[1].eps)
        else:
            b.weight.data, b.bias.data = weight, bias
    return net
