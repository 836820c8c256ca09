"""A network whose hidden layer is fine-tuned by low-rank adapters: only these and the head travel."""

import torch
from torch import nn


class Adapted(nn.Module):
    """A frozen layer and its adapters, named as PEFT names them; B starts at zero."""

    def __init__(self, inputs, outputs, rank):
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs)
        self.base_layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))


class LoraNet(nn.Module):
    """Pictures (1, 8, 8), ten classes."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = Adapted(64, 32, 4), nn.Linear(32, 10)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(x.flatten(1))))
