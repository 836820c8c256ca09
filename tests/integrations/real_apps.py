"""Small apps of the shapes of Flower's examples, written for these tests."""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, FedProx
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from glasshouse.data.sources import load
from glasshouse.models.adapt import adapt
from glasshouse.settings import covers

DIGITS, LETTERS = load("digits"), load("sentences")
EXAMPLES, BATCH = 12, 4


def loader(number, source=DIGITS, split="test"):
    """The private examples of a client, in an order of its own."""
    rows = torch.arange(number * EXAMPLES, (number + 1) * EXAMPLES)
    batch = source.splits[split].batch(rows)
    return DataLoader(TensorDataset(batch.inputs, batch.labels), batch_size=BATCH, shuffle=True)


class ConvNet(nn.Module):
    """As the example for PyTorch: convolutions, pools, three linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(32, 24), nn.Linear(24, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x.flatten(1))))))


def train_pytorch(net, number, config):
    """SGD with momentum; the rate comes with the message."""
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    net.train()
    for _ in range(2):
        for images, labels in loader(number):
            optimizer.zero_grad()
            criterion(net((images - 0.5) / 0.5), labels).backward()
            optimizer.step()
    return EXAMPLES


class Lit(nn.Module):
    """As people write modules for a trainer: the step and the optimizer belong to the network."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.encoder(x))

    def training_step(self, batch, index):
        images, labels = batch
        return functional.cross_entropy(self(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train_by_trainer(net, number, config):
    """What a trainer does with such a module."""
    del config
    optimizer = net.configure_optimizers()
    net.train()
    for index, batch in enumerate(loader(number)):
        loss = net.training_step(batch, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return EXAMPLES


class Dense(nn.Module):
    """As the example for MONAI: densely connected layers with batch norm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(8)])
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)])
        self.out = nn.Linear(12, 10)

    def forward(self, x):
        x = self.first(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = torch.cat([x, layer(functional.relu(norm(x)))], 1)
        return self.out(x.mean((2, 3)))


def train_counting_batches(net, number, config):
    """Adam; what is reported as a number of examples is the length of the loader."""
    del config
    optimizer, criterion, batches = (
        torch.optim.Adam(net.parameters(), 1e-3),
        nn.CrossEntropyLoss(),
        loader(number),
    )
    net.train()
    for images, labels in batches:
        optimizer.zero_grad()
        criterion(net(images), labels).backward()
        optimizer.step()
    return len(batches)


class Mobile(nn.Module):
    """As mobilenet_v3: hard swish, and hard sigmoid in a gate, which have no second derivative."""

    def __init__(self):
        super().__init__()
        self.conv, self.gate = nn.Conv2d(1, 8, 3, padding=1, stride=2), nn.Conv2d(8, 8, 1)
        self.squeeze, self.out = nn.Hardsigmoid(), nn.Linear(128, 10)

    def forward(self, x):
        x = functional.hardswish(self.conv(x))
        return self.out((x * self.squeeze(self.gate(x.mean((2, 3), keepdim=True)))).flatten(1))


def train_sgd(net, number, config):
    """Plain SGD; with the pull that FedProx asks for."""
    start = [p.detach().clone() for p in net.parameters()]
    optimizer, criterion = torch.optim.SGD(net.parameters(), lr=config.get("lr", 0.05)), nn.CrossEntropyLoss()
    net.train()
    for images, labels in loader(number):
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        if pull := config.get("proximal-mu"):
            far = sum((p - s).square().sum() for p, s in zip(net.parameters(), start, strict=True))
            loss = loss + pull / 2 * far
        loss.backward()
        optimizer.step()
    return EXAMPLES


class Lstm(nn.Module):
    """One's own classifier of sentences."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS.inputs.vocabulary.size, 16)
        self.lstm, self.out = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, tokens):
        states, _ = self.lstm(self.embed(tokens))
        return self.out(states[:, -1])


def train_text(net, number, config):
    """Plain SGD on sentences."""
    del config
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for tokens, labels in loader(number, LETTERS):
        optimizer.zero_grad()
        functional.cross_entropy(net(tokens), labels).backward()
        optimizer.step()
    return EXAMPLES


def tiny_bert():
    """A BERT from a configuration, untrained."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=LETTERS.inputs.vocabulary.size, hidden_size=16, num_hidden_layers=1,
            num_attention_heads=2, intermediate_size=32, max_position_embeddings=64, num_labels=4,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def bert():
    """The same for an audit: logits instead of a dictionary."""
    return adapt(tiny_bert(), logits=lambda output: output.logits)


def train_bert(net, number, config):
    """AdamW on dictionaries of tensors; the loss is computed inside, and batches are counted."""
    del config
    optimizer, batches = torch.optim.AdamW(net.parameters(), lr=5e-5), loader(number, LETTERS)
    net.train()
    for tokens, labels in batches:
        batch = {"input_ids": tokens, "labels": labels}
        net(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return len(batches)


def lora_bert():
    """Adapters beside the attention, and a head."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_alpha=4, target_modules=["query"], modules_to_save=["classifier"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, about its own names
        return get_peft_model(tiny_bert(), config)


def lora():
    """The same for an audit."""
    return adapt(lora_bert(), logits=lambda output: output.logits)


BACKBONE = ["*.embeddings", "*.base_layer", "*.key", "*.value", "*.dense", "*.LayerNorm", "*.original_module"]
"""What LoRA leaves as it was."""


def train_privately(net, number, config):
    """DP-SGD by Opacus."""
    from opacus import PrivacyEngine

    del config
    inner, criterion = copy.deepcopy(net).train(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus, about its random numbers and hooks
        private, optimizer, batches = PrivacyEngine(accountant="rdp").make_private(
            module=inner,
            optimizer=optimizer,
            data_loader=loader(number),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for images, labels in batches:
            if len(images):
                optimizer.zero_grad()
                criterion(private(images), labels).backward()
                optimizer.step()
    net.load_state_dict(inner.state_dict())
    return EXAMPLES


class Autoencoder(nn.Module):
    """As the example for Lightning: the step calls encoder and decoder itself, on flattened pictures."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 64))

    def forward(self, x):
        return self.encoder(x)


class Rebuilding(Autoencoder):
    """The same for an audit: what it rebuilds."""

    def forward(self, x):
        return self.decoder(self.encoder(x.flatten(1)))


def train_autoencoder(net, number, config):
    """Adam on the squared error, as a function."""
    del config
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net.train()
    for images, _ in loader(number):
        flat = images.view(len(images), -1)
        loss = functional.mse_loss(net.decoder(net.encoder(flat)), flat)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return EXAMPLES


class Variational(nn.Module):
    """As the example of a variational autoencoder, without its noise: a tuple of three."""

    def __init__(self):
        super().__init__()
        self.encode, self.mu, self.logvar = nn.Conv2d(1, 4, 4, stride=2), nn.Linear(36, 3), nn.Linear(36, 3)
        self.back, self.decode = nn.Linear(3, 36), nn.ConvTranspose2d(4, 1, 4, stride=2)

    def forward(self, x):
        hidden = functional.relu(self.encode(x)).flatten(1)
        mu = self.mu(hidden)
        return self.decode(self.back(mu).view(-1, 4, 3, 3)).tanh(), mu, self.logvar(hidden)


def variational():
    """The same for an audit: one tensor."""
    return adapt(Variational(), logits=lambda out: torch.cat([out[0].flatten(1), out[1], out[2]], 1))


def train_variational(net, number, config):
    """Squared error plus a share of the divergence of the latents; the pictures are normalised."""
    del config
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for images, _ in loader(number):
        images = (images - 0.5) / 0.5
        optimizer.zero_grad()
        rebuilt, mu, logvar = net(images)
        divergence = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
        (functional.mse_loss(rebuilt, images) + 0.05 * divergence).backward()
        optimizer.step()
    return EXAMPLES


class Wide(nn.Module):
    """A network of more outputs than there are classes, as one that was trained on something else."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(64, 24), nn.Linear(24, 40)

    def forward(self, x):
        return self.out(functional.relu(self.first(x.flatten(1))))


@dataclass(frozen=True, kw_only=True)
class App:
    """One app: the network that trains and the one that an audit builds, its data, loop and configuration."""

    train: Callable[[nn.Module, int, Mapping[str, Any]], int]
    network: Callable[[], nn.Module]
    audited: Callable[[], nn.Module] | None = None
    normalize: tuple[float, float] | None = None
    text: bool = False
    strategy: Callable[[], FedAvg] = field(default=lambda: FedAvg(fraction_evaluate=0.0))
    config: Mapping[str, Any] = field(default_factory=dict)
    terms: Mapping[str, Any] | None = None

    @property
    def apart(self):
        """Patterns of what is not sent."""
        training = (self.terms or {}).get("training", {})
        return (*training.get("personal", ()), *training.get("fixed", ()))

    def state(self, net):
        """What travels of a network."""
        return {n: t for n, t in net.state_dict().items() if not covers(self.apart, n)}

    def client(self, number, mods):
        """A client that keeps its network over the rounds."""
        app, net = ClientApp(mods=mods), self.network()

        @app.train()
        def _train(message, context):
            net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
            examples = self.train(net, number, dict(message.content["config"]))
            content = {
                "arrays": ArrayRecord(self.state(net)),
                "metrics": MetricRecord({"num-examples": examples}),
            }
            return Message(RecordDict(content), reply_to=message)

        return app

    def server(self):
        """Two rounds."""
        app = ServerApp()

        @app.main()
        def _main(grid, context):
            torch.manual_seed(0)
            start = ArrayRecord(self.state(self.network()))
            config = ConfigRecord(dict(self.config))
            self.strategy().start(grid=grid, initial_arrays=start, num_rounds=2, train_config=config)

        return app


APPS = {
    "pytorch": App(train=train_pytorch, network=ConvNet, normalize=(0.5, 0.5), config={"lr": 0.01}),
    "huggingface": App(train=train_bert, network=tiny_bert, audited=bert, text=True),
    "lightning": App(train=train_by_trainer, network=Lit),
    "monai": App(train=train_counting_batches, network=Dense),
    "mobilenet": App(train=train_sgd, network=Mobile, config={"lr": 0.05}),
    "fedprox": App(
        train=train_sgd, network=ConvNet, config={"lr": 0.05},
        strategy=lambda: FedProx(fraction_evaluate=0.0, proximal_mu=0.5),
    ),
    "lstm": App(train=train_text, network=Lstm, text=True),
    "fedbn": App(
        train=train_counting_batches, network=Dense,
        terms={"training": {"mode": "training", "personal": ["norms"]}},
    ),
    "lora": App(
        train=train_bert, network=lora_bert, audited=lora, text=True, terms={"training": {"fixed": BACKBONE}}
    ),
    "opacus": App(train=train_privately, network=ConvNet, normalize=None),
}  # fmt: skip
