"""Modules and data as users of Lightning write them; nothing here knows of Lightloop."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset


def generator(seed):
    return torch.Generator().manual_seed(seed)


def loaders():
    """96 samples in 12 shuffled batches, and the same in 3 to validate on.

    Each loader has generators of its own, since a pass of validation draws from torch's in Lightning and not in Lightloop;
    and no RandomSampler, which draws once more when it is read to its end, as it is not in Lightning.
    """
    x = torch.randn(96, 8, generator=generator(1))
    data = TensorDataset(x, (x[:, :3] + 0.3 * torch.randn(96, 3, generator=generator(2))).argmax(1))
    order = SubsetRandomSampler(range(96), generator=generator(3))
    return DataLoader(data, 8, sampler=order, generator=generator(4)), DataLoader(data, 32, generator=generator(5))


class Classifier(LightningModule):
    def __init__(self, lr=0.1, width=16, schedule="step"):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return {"loss": loss, "size": len(batch[0])}

    def validation_step(self, batch, _):  # Lightning passes by position: the name is the user's
        self.log_dict({"val_loss": self._loss(batch), "width": float(self.hparams.width)}, batch_size=len(batch[0]))

    test_step = validation_step

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        if self.hparams.schedule == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
        return [optimizer], [{"scheduler": schedule, "interval": self.hparams.schedule}]

    def _loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


class ManualGAN(LightningModule):
    """Two optimizers, stepped by hand, with schedules, clipping and a graph that is gone through twice."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        made = self.generator(torch.randn(len(batch[0]), 4))

        self.toggle_optimizer(first)
        loss = nn.functional.softplus(-self.critic(made)).mean()
        first.zero_grad()
        self.manual_backward(loss, retain_graph=True)
        self.manual_backward(0.1 * loss)
        self.clip_gradients(first, gradient_clip_val=0.01, gradient_clip_algorithm="norm")
        first.step()
        self.untoggle_optimizer(first)

        with second.toggle_model():
            loss = (
                nn.functional.softplus(self.critic(made.detach())) + nn.functional.softplus(-self.critic(batch[0]))
            ).mean()
            second.zero_grad()
            self.manual_backward(loss)
            second.step()
        self.log("critic_loss", loss, prog_bar=True)
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self):
        both = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (self.generator, self.critic)]
        return both, [torch.optim.lr_scheduler.ExponentialLR(each, 0.95) for each in both]


class ManualAccumulation(Classifier):
    """Step every third batch, and leave what is over at the end of an epoch for the next."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(self._loss(batch) / 5)
        if (batch_idx + 1) % 5 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()
            self.lr_schedulers().step()


class Overriding(Classifier):
    """What modules do by themselves, by the hooks that Lightning offers."""

    def backward(self, loss):
        (2 * loss).backward()

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm="value")

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + self.trainer.global_step)
        optimizer.step(closure=optimizer_closure)

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.stepped = getattr(self, "stepped", 0) + 1

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + 1, batch[1]]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 0.5, batch[1]]


class Data(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.told = []

    def prepare_data(self):
        self.told.append("prepare_data")

    def setup(self, stage):
        self.told.append(f"setup {stage}")
        self.train, self.val = loaders()

    def train_dataloader(self):
        return self.train

    def val_dataloader(self):
        return self.val

    test_dataloader = val_dataloader

    def teardown(self, stage):
        self.told.append(f"teardown {stage}")

    def state_dict(self):
        return {"told": list(self.told)}

    def load_state_dict(self, state):
        self.loaded = state
