"""A script of Lightning's: ``flare.patch`` lets the trainer receive and send; one line for the audit."""

import argparse
import logging

import nvflare.client.lightning as flare
import pytorch_lightning as lightning
import torch
from network import Net
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from glasshouse.integrations.nvflare import truth

BATCH, RATE = 16, 0.1


class Digits(lightning.LightningModule):
    """Plain SGD with cross-entropy; logs its loss, which FLARE's patch sends along."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("val_acc", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--truth")
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images[:48], dtype=torch.float32)[:, None] / 16
    data = TensorDataset(images, torch.tensor(digits.target[:48]))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    module = Digits()
    flare.patch(trainer)
    truth(options.truth)
    while flare.is_running():
        trainer.validate(module, DataLoader(data, BATCH), verbose=False)
        trainer.fit(module, DataLoader(data, BATCH))


if __name__ == "__main__":
    main()
